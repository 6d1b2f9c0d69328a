"""Kernels that compute the same in different ways are read as the same; so is each after a change of its text."""

from __future__ import annotations

import os

import pytest

from cubridge_engine.lift import lift
from cubridge_engine.source import parse, with_includes
from tests.ladder.changes import in_a_header, in_macros, reformatted
from tests.ladder.launching import TOLERANCE, error_of
from tests.ladder.rungs import EXPERTS, FULL, PATHS, contract_of, lifted_of, meaning_of, source_of
from tests.lift.renamer import renamed

ALL = os.environ.get("CUBRIDGE_LADDER") == "all"
OWN = [name for name in PATHS if name not in EXPERTS]
LAUNCHED = OWN if ALL else ["wmma", "rows_in_shared", "struct_parameters", "helpers_in_header", "uniform_tail"]
CHANGED = OWN if ALL else ["block_of_elements", "warp_per_row", "wmma", "mma_padded", "helpers_in_header"]


def test_the_ladder_has_rungs():
    assert len(PATHS) >= 16


@pytest.mark.parametrize("name", PATHS)
def test_a_rung_is_read_as_the_same_attention(name):
    lifted = lifted_of(name)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert lifted.kernel is not None
    assert meaning_of(lifted.kernel) == FULL


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_rung_computes_attention(name):
    error, findings = error_of(name)
    assert findings == []
    assert error < TOLERANCE[contract_of(name).instances[0].dtype]


def _same(name, source):
    lifted = lift(source, anchors=False, remember=False)
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert lifted.kernel is not None
    assert meaning_of(lifted.kernel) == FULL


def _text(name):
    return contract_of(name).source_path.read_text()


@pytest.mark.parametrize("name", [name for name in CHANGED if name != "helpers_in_header"])
def test_names_do_not_matter(name):
    _same(name, source_of(name, renamed(_text(name))[0]))


@pytest.mark.parametrize("name", CHANGED)
def test_lines_and_spaces_do_not_matter(name):
    text = reformatted(_text(name))
    assert text != _text(name)
    _same(name, source_of(name, text))


@pytest.mark.parametrize("name", CHANGED)
def test_macros_do_not_matter(name):
    text = in_macros(_text(name))
    assert "MEET();" in text or "INDEX " in text.partition("#define INDEX const int\n")[2]
    _same(name, source_of(name, text))


@pytest.mark.parametrize("name", [name for name in CHANGED if name != "helpers_in_header"])
def test_a_header_does_not_matter(name, tmp_path):
    moved = in_a_header(_text(name), "before.cuh")
    (tmp_path / "before.cuh").write_text(moved.header)
    path = tmp_path / "kernel.cu"
    source = with_includes(parse(str(path), moved.main.encode()))
    assert [h.source.path for h in source.headers] == [str(tmp_path / "before.cuh")]
    _same(name, source)


BACKWARDS = {
    "warp_per_row": (
        "for (int start = 0; start < kv_len; start += WARP)",
        "for (int start = (kv_len - 1) / WARP * WARP; start >= 0; start -= WARP)",
    ),
    "wmma": (
        "for (int key = 0; key < sk; key += kKeys)",
        "for (int key = (sk - 1) / kKeys * kKeys; key >= 0; key -= kKeys)",
    ),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_the_order_of_the_tiles_does_not_matter(name):
    forwards, backwards = BACKWARDS[name]
    text = _text(name)
    assert forwards in text
    lifted = lifted_of(name, text.replace(forwards, backwards))
    assert lifted.coverage.complete, [d.message for d in lifted.diagnostics]
    assert lifted.kernel is not None
    assert meaning_of(lifted.kernel) == FULL


def test_a_missing_header_is_named(tmp_path):
    path = tmp_path / "kernel.cu"
    text = contract_of("helpers_in_header").source_path.read_text()
    lifted = lift(with_includes(parse(str(path), text.encode())), anchors=False, remember=False)
    assert not lifted.coverage.complete
    assert "without the header rowwise.cuh" in lifted.summary
    assert [d.code for d in lifted.diagnostics if "rowwise.cuh" in d.message] == ["CB110"]

"""Which texts can take their KV tiles from a list, and which use the loop variable so that it would be left wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.pipeline.files import lift_at
from cubridge_engine.source import parse

ROOT = Path(__file__).parents[2]
SM80 = (ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu").read_text()
SCALAR = (ROOT / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu").read_text()

FAST = (ROOT / "expert_kernels" / "flash_fwd_sm90" / "kernel.cu").read_text()


def walk(text: str):
    return lift_at(parse("kernel.cu", text.encode()), None, 64).anchors.kv_loop.walk


def texts(text: str, site) -> list[tuple[str, str]]:
    data = text.encode()
    return [(use.what, data[use.span.start : use.span.end].decode()) for use in site.uses]


def test_a_loop_over_tiles_has_its_rows_and_its_helper():
    found = texts(SM80, walk(SM80))
    assert ("tile", "tile") in found  # kv0 = tile * Bc
    assert found.count(("name", "tile * Bc")) == 2
    assert [what for what, _ in found].count("argument") == 2
    assert [what for what, _ in found].count("parameter") == 1


def test_a_loop_over_columns_has_a_header():
    site = walk(SCALAR)
    assert site.uses == ()
    assert SCALAR.encode()[site.header.start : site.header.end] == b"int kv0 = 0; kv0 < sk; kv0 += Bc"


def test_a_walk_over_items_has_the_places_where_a_position_becomes_a_key():
    site = walk(FAST)
    assert texts(FAST, site) == [("tile", "tile"), ("tile", "tile")]
    assert (site.trip, site.first) == ("tile", "item.kv_lo")


CHANGES = {
    "another use of the variable": (
        SM80,
        "    const int kv0 = tile * Bc;",
        "    const int kv0 = tile * Bc;\n    const int third = tile * 3;\n    (void)third;",
    ),
    "the helper has another caller": (
        SM80,
        "// Starts the copies of KV tile",
        "template <typename T, int D, int DV>\n__device__ void other(const T* k) {\n"
        "  load_kv_tile<T, D, DV>(0, 0, k, k, 1, 1, 0, 1);\n}\n\n// Starts the copies of KV tile",
    ),
    "a key of another form": (FAST, "? tile * Bc : Bc", "? (tile + 0) * Bc : Bc"),
    "a loop from the second tile": (SCALAR, "for (int kv0 = 0;", "for (int kv0 = Bc;"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_list_would_leave_wrong_has_no_site(what):
    text, old, new = CHANGES[what]
    assert text.count(old) == 1
    assert walk(text.replace(old, new)) is None

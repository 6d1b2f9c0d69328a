"""Rows looked up in pages, in the text of both expert kernels: small hunks that read back, and slips that do not."""

from __future__ import annotations

from functools import cache

import pytest

from cubridge_engine.lift import lift
from cubridge_engine.lower import identifiers, lower, parse_header, read_back
from cubridge_engine.source import parse
from cubridge_engine.transfer import transfer
from tests.lower.builders import ROOT
from tests.transfer.builders import make_attention

SCALAR, SM80 = "flash_fwd_scalar", "flash_fwd_sm80"


def lifted_text(data: bytes):
    found = lift(parse("kernel.cu", data))
    return found.kernel, found.diagnostics


SINK_AND_WINDOW = "j < lens[b] & (j < 4 | j >= lens[b] - 96)"


@cache
def adapted(name: str, size: int = 16, mask: str = "j < lens[b]", change: tuple[str, str] = ("", "")):
    before = (ROOT / "expert_kernels" / name / "kernel.cu").read_text()
    assert change[0] in before
    source = parse("kernel.cu", before.replace(*change).encode() if change[0] else before.encode())
    lifted = lift(source)
    dtype = "float32" if name == SCALAR else "float16"
    spec = {"mask": mask, "operands": ("lens:B:int32",), "dtype": dtype, "specialised": {"D": 64}}
    attention = make_attention(**spec, pages=f"block_table:{size}", empty_rows="zero")
    result = transfer(lifted.kernel, attention, reserved=identifiers(source))
    lowered = lower(lifted, result, source, spec="spec.py")
    assert lowered.text is not None, [d.message for d in lowered.diagnostics]
    return result, lowered


def problems(name: str, text: bytes) -> list[str]:
    result, _ = adapted(name)
    return [d.message for d in read_back(text, result.target, result.bindings, lifted_text, result.operands)[1]]


@pytest.mark.parametrize(("name", "size"), [(SCALAR, 16), (SCALAR, 64), (SM80, 16), (SM80, 64)])
def test_the_text_reads_back(name: str, size: int) -> None:
    result, lowered = adapted(name, size)
    kernel, found = read_back(lowered.text, result.target, result.bindings, lifted_text, result.operands)
    assert found == ()
    assert kernel is not None
    text = lowered.text.decode()
    assert "const int* pages = block_table + b * block_table_stride_b;" in text
    assert f"/ {size}]" in text
    assert "K + hk * k_stride_h;" in text


@pytest.mark.parametrize("name", [SCALAR, SM80])
def test_a_list_of_tiles_names_rows_that_are_looked_up(name: str) -> None:
    result, lowered = adapted(name, 16, SINK_AND_WINDOW)
    assert [bool(o.tiles) for o in result.operands if o.tiles or o.page] == [True, False]
    kernel, found = read_back(lowered.text, result.target, result.bindings, lifted_text, result.operands)
    assert found == ()
    assert kernel is not None
    text = lowered.text.decode()
    assert "kv_list[" in text
    assert "pages[" in text
    own = (ROOT / "expert_kernels" / name / "kernel.cu").read_text().splitlines()
    assert max(len(line) for line in text.splitlines() if line not in own) <= 120
    wrong = text.replace("kv_list[tile + 2] * Bc", "tile * Bc").replace("kv_list[t + 2] * Bc", "t * Bc")
    assert wrong != text
    assert read_back(wrong.encode(), result.target, result.bindings, lifted_text, result.operands)[1]


@pytest.mark.parametrize(
    "change", [("", ""), ("src + row * stride_row", "src + (in ? row : 0) * stride_row")], ids=["condition", "choice"]
)
def test_only_a_row_that_exists_is_looked_up(change: tuple[str, str]) -> None:
    """Rows at the end of the last tile have no page: the table ends before them."""
    text = adapted(SM80, change=change)[1].text.decode()
    assert "page_offset = in ? pages[row / 16] * stride_page + row % 16 * stride_row : 0;" in text
    assert "src + page_offset + chunk * 8;" in text


def test_a_function_that_copies_q_too_is_left_alone() -> None:
    before = (ROOT / "expert_kernels" / SM80 / "kernel.cu").read_text()
    _, lowered = adapted(SM80)
    text = lowered.text.decode()
    start = before.index("template <typename T, int W>\n__device__ __forceinline__ void load_tile(")
    own = before[start : before.index("\n}\n", start)]
    assert own in text
    assert text.count("load_tile_paged") == 3, "its definition, and the calls for K and V"
    assert "load_tile<T, D>(smem_q," in text


def test_a_row_that_is_an_expression_is_named_once_for_each_block() -> None:
    _, lowered = adapted(SCALAR)
    hunks = [h for h in lowered.hunks if "key_row = kv0 + j" in h.new]
    assert len(hunks) == 2
    assert all(h.start == h.end for h in hunks)


def test_the_header_says_how_to_pass_the_pages() -> None:
    _, lowered = adapted(SM80)
    (line,) = [x for x in lowered.header_lines if "cubridge: pages" in x]
    assert "block_table = int32[B, ceil(Sk / 16)]" in line
    assert parse_header(line).operands == {}


@pytest.mark.parametrize(
    ("name", "old", "new", "word"),
    [
        (SCALAR, "pages[key_row / 16] * v_stride_b", "pages[key_row / 16] * k_stride_b", "strides of V"),
        (
            SCALAR,
            "v[pages[key_row / 16] * v_stride_b + key_row % 16 * v_stride_row + d]",
            "v[key_row * v_stride_row + d]",
            "",
        ),
        (SM80, "sk, pages, v_stride_page", "sk, pages, k_stride_page", "strides of V"),
        (SM80, "row / 16] * stride_page + row % 16", "row / 32] * stride_page + row % 32", "pages of 32"),
        (SM80, "row / 16] * stride_page + row % 16", "row / 16] * stride_page + row % 32", ""),
    ],
)
def test_a_slip_does_not_read_back(name: str, old: str, new: str, word: str) -> None:
    text = adapted(name)[1].text.decode()
    assert old in text
    found = problems(name, text.replace(old, new, 1).encode())
    assert found
    assert any(word in message for message in found), found

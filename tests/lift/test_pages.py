"""Rows of K and V looked up in a table of pages: what is lifted, what is not, and where the text says it."""

from __future__ import annotations

import re

import pytest

from cubridge_engine.ir.nodes import Copy
from cubridge_engine.transfer.structure import walk_ops

from .conftest import SCALAR, SM80, edited, lift_text

TABLE = "const int* __restrict__ table, long long table_stride"
SETUP = "const int* pages = table + b * table_stride;\n  "


def paged(page: str = "{row} / 16", inside: str = "{row} % 16") -> str:
    """flash_fwd_scalar with rows of K and V in pages, as a person would write it."""
    text = edited(
        SCALAR,
        ("                     float scale) {", f"                     float scale, {TABLE}) {{"),
        ("const float* k = K + b * k_stride_b + hk", f"{SETUP}const float* k = K + hk"),
        ("const float* v = V + b * v_stride_b + hk", "const float* v = V + hk"),
    )
    for t in "kv":
        row = "(kv0 + j)"
        new = f"pages[{page.format(row=row)}] * {t}_stride_b + ({inside.format(row=row)}) * {t}_stride_row"
        text = edited(text, (f"(kv0 + j) * {t}_stride_row", new))
    return text


def copies(text: str) -> dict[str, tuple[str, int]] | None:
    lifted = lift_text(text)
    if lifted.kernel is None or not lifted.coverage.complete:
        return None
    return {op.tensor: (op.table, op.page) for op in walk_ops(lifted.kernel.body) if isinstance(op, Copy)}


@pytest.mark.parametrize(
    ("page", "inside", "size"),
    [
        ("{row} / 16", "{row} % 16", 16),
        ("{row} >> 4", "{row} & 15", 16),
        ("{row} / 64", "{row} % 64", 64),
        ("{row} / 12", "{row} % 12", 12),
    ],
)
def test_rows_in_pages_are_read_as_rows(page: str, inside: str, size: int) -> None:
    assert copies(paged(page, inside)) == {"q": ("", 0), "k": ("table", size), "v": ("table", size)}
    kernel = lift_text(paged(page, inside)).kernel
    assert kernel is not None
    assert [p.role for p in kernel.params if p.name == "table"] == ["operand:table"]
    assert {role: str(kernel.tensors[role][0].name) for role in "kv"} == {"k": "k_stride_b", "v": "v_stride_b"}


@pytest.mark.parametrize(
    ("page", "inside"),
    [
        ("{row} / 16", "{row} % 8"),
        ("{row} / 8", "{row} % 16"),
        ("{row} / 16", "{row}"),
        ("{row} / 16 + 1", "{row} % 16"),
        ("j / 16", "{row} % 16"),
    ],
)
def test_what_is_no_page_of_a_row_is_not_understood(page: str, inside: str) -> None:
    assert copies(paged(page, inside)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("table + b * table_stride", "table + h * table_stride"),
        (
            "v[pages[(kv0 + j) / 16] * v_stride_b + ((kv0 + j) % 16) * v_stride_row",
            "v[b * v_stride_b + (kv0 + j) * v_stride_row",
        ),
        (
            "v[pages[(kv0 + j) / 16] * v_stride_b + ((kv0 + j) % 16)",
            "v[pages[(kv0 + j) / 32] * v_stride_b + ((kv0 + j) % 32)",
        ),
    ],
    ids=["a table of heads", "values without pages", "values in other pages"],
)
def test_the_row_of_the_table_is_the_batch_and_k_and_v_have_the_same_pages(old: str, new: str) -> None:
    assert copies(edited(paged(), (old, new))) is None


def test_the_place_of_the_rows_is_found_through_device_functions() -> None:
    site = lift_text(SM80).anchors.pages
    assert site is not None
    assert {f.name: (f.strides, f.shared) for f in site.functions} == {
        "load_kv_tile": (("k_stride_row", "v_stride_row"), False),
        "load_tile": (("stride_row",), True),
    }
    assert [(p.function, p.row, p.stride) for p in site.products] == [("load_tile", "row", "stride_row")]
    assert sorted(SM80[span.start : span.end] for span, _ in site.bases) == ["K + b * k_stride_b", "V + b * v_stride_b"]
    assert site.strides == {"k_stride_row": "k_stride_b", "v_stride_row": "v_stride_b"}


def test_renaming_does_not_matter_and_another_use_of_a_stride_does() -> None:
    renamed = re.sub(r"\bk_stride_row\b", "zebra", SCALAR)
    site = lift_text(renamed).anchors.pages
    assert site is not None
    assert site.strides["zebra"] == "k_stride_b"
    moved = edited(SCALAR, ("k[(kv0 + j) * k_stride_row + d]", "(k + (k_stride_row + 0) * (kv0 + j))[d]"))
    assert lift_text(moved).anchors.pages is None

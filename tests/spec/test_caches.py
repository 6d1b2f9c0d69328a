# ruff: noqa: E501 - a spec text reads best as one string
"""Caches and packed rows: pages, cumulative lengths, [T, H, D], one query; loops over lengths are taught, not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cubridge_engine.spec import SpecResult, read_spec
from cubridge_engine.spec.attention import Paging
from cubridge_engine.spec.core import find_core
from cubridge_engine.spec.dropin import drop_in
from cubridge_engine.spec.lengths import cumulative_axis, free_lengths, real_arguments
from cubridge_engine.spec.paging import paging_of
from cubridge_engine.spec.program import load
from cubridge_engine.spec.reference import reference

from .conftest import HEADER
from .test_read_table import same

PAGED = (
    HEADER
    + """
def attention(q, k_cache, v_cache, table, lengths):
    {gather}
    keys = torch.arange(k.shape[2], device=q.device)
    mask = keys[None, None, None, :] < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

def example_inputs():
    torch.manual_seed(0)
    k, v = (torch.randn({cache}) for _ in range(2))
    table = {table}
    return torch.randn(2, 4, 1, 32), k, v, table, torch.tensor([20, 48], dtype=torch.int32)
"""
)
TABLE = "torch.randperm(12)[:6].reshape(2, 3).int()"
FLAT = "k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in (k_cache, v_cache))"
HEADS_FIRST = "k, v = (c[table].permute(0, 2, 1, 3, 4).reshape(2, 2, -1, 32) for c in (k_cache, v_cache))"
SELECTED = (
    "k, v = (c.index_select(0, table.reshape(-1)).reshape(2, -1, 2, 32).transpose(1, 2) for c in (k_cache, v_cache))"
)

PACKED = (
    HEADER
    + """
def attention(q, k, v, cu):
    {body}

def example_inputs():
    torch.manual_seed(0)
    q = torch.randn(50, 4, 32)
    k, v = (torch.randn(50, {kv}, 32) for _ in range(2))
    return q, k, v, torch.tensor([0, 20, 21, 50], dtype=torch.int32)
"""
)


def paged(gather: str = FLAT, cache: str = "12, 16, 2, 32", table: str = TABLE) -> str:
    return PAGED.format(gather=gather, cache=cache, table=table)


def packed(*lines: str, kv: int = 4) -> str:
    return PACKED.format(body="\n    ".join(lines), kv=kv)


Read = Callable[..., SpecResult]


@pytest.fixture(scope="module")
def one_paged(tmp_path_factory: pytest.TempPathFactory) -> SpecResult:
    path = tmp_path_factory.mktemp("paged") / "spec.py"
    path.write_text(paged())
    return read_spec(str(path))


def test_gathered_pages_are_read_in_place(one_paged: SpecResult) -> None:
    found = one_paged.attention
    assert found is not None, [d.message for d in one_paged.diagnostics]
    copied = 2 * 2 * 48 * 2 * 32 * 4
    assert found.paging == Paging("table", 16, "k_cache", "v_cache", (0, 2, 1, 3), (0, 2, 1, 3), "int32", copied)
    assert found.mask is not None
    same(found.mask, "j < lengths[b]")
    assert {"B", "Sq", "Sk"}.isdisjoint(found.specialised), "one query is no fixed number of them"
    (note,) = [d for d in one_paged.diagnostics if d.code == "CB257"]
    assert str(copied) in note.message
    assert "CB235" not in [d.code for d in one_paged.diagnostics], "nothing is computed before the attention"


def test_the_drop_in_passes_the_caches_and_gathers_nothing(one_paged: SpecResult) -> None:
    assert one_paged.core is not None
    assert one_paged.attention is not None
    made = drop_in(one_paged.core, one_paged.attention, paged=True)
    assert "kernel(q, k_cache.permute(0, 2, 1, 3), v_cache.permute(0, 2, 1, 3), lengths, table)" in made.text
    assert "k_cache[" not in made.text
    seen: list[torch.Tensor] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor):
        seen.extend((k, v))
        rows = [c[table.long()].permute(0, 2, 1, 3, 4).flatten(2, 3) for c in (k, v)]
        keep = torch.arange(rows[0].shape[2]) < lengths[:, None, None, None]
        return torch.nn.functional.scaled_dot_product_attention(q, *rows, attn_mask=keep, enable_gqa=True)

    inputs = one_paged.core.whole.program.example
    torch.testing.assert_close(
        made.run(inputs, kernel)[0].double(), reference(one_paged.core.whole.program, inputs)[0], rtol=1e-5, atol=1e-5
    )
    assert seen[0].data_ptr() == inputs[1].data_ptr(), "the cache itself, not a copy"


def pages_in(path: Path, text: str) -> Paging | None:
    """What is found in the core, without the checks of a whole reading."""
    path.write_text(text)
    core, _ = find_core(load(str(path), "attention", 20.0))
    found, templates = core.whole.read(core.whole.model)
    return paging_of(found.cuts[0], templates[0])


def test_pages_whose_heads_come_first(tmp_path: Path) -> None:
    found = pages_in(tmp_path / "spec.py", paged(HEADS_FIRST, "12, 2, 16, 32"))
    assert found is not None
    assert (found.size, found.k_order, found.v_order) == (16, (0, 1, 2, 3), (0, 1, 2, 3))


@pytest.mark.parametrize(
    "gather",
    [
        "k, v = (c[table].flatten(1, 2).flip(1).transpose(1, 2) for c in (k_cache, v_cache))",
        "k = k_cache[table].flatten(1, 2).transpose(1, 2); v = v_cache[table.flip(1)].flatten(1, 2).transpose(1, 2)",
        "k, v = (c[table].transpose(1, 2).flatten(1, 2).transpose(1, 2) for c in (k_cache, v_cache))",
    ],
    ids=["reversed", "other pages for v", "rows of all pages first"],
)
def test_another_order_of_rows_is_not_taken_for_pages(tmp_path: Path, gather: str) -> None:
    assert pages_in(tmp_path / "spec.py", paged(gather)) is None


def test_negative_page_numbers_are_refused(read: Read) -> None:
    result = read(paged(table="torch.arange(-1, 5).reshape(2, 3).int()"))
    assert [d.code for d in result.diagnostics if d.severity >= 3] == ["CB258"]


# ---- packed rows ----------------------------------------------------------------------------------------------------
IDS = ("t = torch.arange(q.shape[0])", "seq = torch.bucketize(t, cu, right=True)")
MASK = "keep = (seq[:, None] == seq) & (t[:, None] >= t)"
EINSUM = (
    "x = torch.einsum('qhd,khd->hqk', q, k) * q.shape[-1] ** -0.5",
    "p = x.masked_fill(~keep, -math.inf).softmax(-1)",
    "return torch.einsum('hqk,khd->qhd', p, v)",
)
FUSED = "return F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=keep, enable_gqa=True).transpose(0, 1)"


@pytest.mark.parametrize(
    ("body", "kv"), [((*IDS, MASK, *EINSUM), 4), ((*IDS, MASK, FUSED), 2)], ids=["einsum", "grouped heads"]
)
def test_packed_rows_are_heads_of_one_batch_at_any_length(read: Read, body: tuple[str, ...], kv: int) -> None:
    found = read(packed(*body, kv=kv)).attention
    assert found is not None
    assert found.mask is not None
    same(found.mask, "seq[i] == seq[j] & j <= i")
    assert found.specialised["B"] == 1
    assert {"Sq", "Sk"}.isdisjoint(found.specialised)
    assert "h" in found.input("q").axes
    assert not found.input("q").computed, "the argument itself: no copy is made of it"
    same(found.head_map, "h" if kv == 4 else "h // (H // Hkv)", equal_heads=kv == 4)


def test_heads_that_share_k_and_v_are_no_batches(read: Read) -> None:
    """[T, H, D] with fewer KV heads: read as batches, h would index past the end of K."""
    body = ("keep = cu[:1].sum() + torch.arange(q.shape[0])[:, None] >= torch.arange(k.shape[0])", FUSED)
    found = read(packed(*body, kv=2)).attention
    assert found is not None
    assert found.input("k").axes == ("j", "hk", "d") or "hk" in found.input("k").axes


LOOP = ("o = torch.empty_like(q)", "c = cu.tolist()", "for a, b in zip(c[:-1], c[1:]):")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (
            (
                *LOOP,
                "    y = F.scaled_dot_product_attention(*(x[a:b].transpose(0, 1) for x in (q, k, v)), is_causal=True)",
                "    o[a:b] = y.transpose(0, 1)",
                "return o",
            ),
            "cu.tolist()",
        ),
        (
            (
                "o = []",
                "for n in range(len(cu) - 1):",
                "    a, b = cu[n], cu[n + 1]",
                "    o.append(torch.einsum('hqk,khd->qhd', torch.einsum('qhd,khd->hqk', q[a:b], k[a:b]).softmax(-1), v[a:b]))",
                "return torch.cat(o)",
            ),
            "q[a:b]",
        ),
    ],
    ids=["tolist", "slices"],
)
def test_a_loop_over_documents_is_refused_with_the_form_that_works(
    read: Read, body: tuple[str, ...], word: str
) -> None:
    text = packed(*body)
    result = read(text)
    (problem,) = [d for d in result.diagnostics if d.severity >= 3]
    assert problem.code == "CB255"
    assert problem.span is not None
    assert word in text.splitlines()[problem.span.line]
    assert "torch.bucketize(torch.arange(q.shape[0]), cu, right=True)" in problem.help


def test_a_loop_over_lengths_is_refused_with_the_mask(read: Read) -> None:
    text = (
        HEADER
        + "def attention(q, k, v, lengths):\n    o = []\n    for b, n in enumerate(lengths.tolist()):\n"
        + "        o.append((q[b] @ k[b, :, :n].mT * 0.1).softmax(-1) @ v[b, :, :n])\n    return torch.stack(o)\n"
        + "def example_inputs():\n    return *(torch.randn(2, 4, 48, 32) for _ in range(3)), torch.tensor([20, 48])\n"
    )
    (problem,) = [d for d in read(text).diagnostics if d.severity >= 3]
    assert problem.code == "CB256"
    assert "< lengths[:, None, None, None]" in problem.help


def test_cumulative_lengths_are_known_by_what_they_hold() -> None:
    rows = torch.zeros(50, 4, 32)
    cu = torch.tensor([0, 20, 50], dtype=torch.int32)
    assert cumulative_axis([rows, cu], cu) == (0, 0)
    for other in ([0, 20, 49], [1, 20, 50], [0, 30, 20, 50]):
        ids = torch.tensor(other, dtype=torch.int32)
        assert cumulative_axis([rows, ids], ids) is None


def test_made_up_cumulative_lengths_end_where_the_rows_do(tmp_path: Path) -> None:
    path = tmp_path / "spec.py"
    path.write_text(packed(*IDS, MASK, *EINSUM))
    program = load(str(path), "attention", 20.0)
    lengths = free_lengths(program)
    values = tuple(f.base + 7 for f in lengths)
    q, *_, cu = real_arguments(program, lengths, values, seed=3)
    assert int(cu[0]) == 0
    assert int(cu[-1]) == q.shape[0]
    assert bool((cu[1:] >= cu[:-1]).all())

"""No empty tiles: which KV tiles an adapted kernel visits, against those with an attended key, for masks that people
compose of lengths, windows, sinks, chunks, documents, prefixes and offsets.

The tiles are counted on the program of each expert kernel after transfer, one CTA at a time; the golden table says by
which means the loop finds them. Every set of tiles must be the one of brute force.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.kernel_mask import first_keys
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.lift import lift
from cubridge_engine.lower import identifiers, lower, read_back
from cubridge_engine.source import parse
from cubridge_engine.transfer import MaskEdit, RangeEdit, WalkEdit, transfer
from cubridge_engine.verify.bindings import Given, bind_kernel, extra_tensors, indexed_operands
from cubridge_engine.verify.ir_level import element_strides
from tests.transfer.builders import FLASH, formula, make_attention, tensors_for

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
KERNELS = ("flash_fwd_sm80", "flash_fwd_scalar", "flash_fwd_sm90_plain")
LENGTHS, WINDOW = "j < n[b]", "j >= n[b] - 96"
AT = "i + n[b] - Sq"  # the place of query i, where the queries are the last of the n[b] tokens

MASKS = {
    "causal": ("j <= i + (Sk - Sq)", ()),
    "causal, top left": ("j <= i", ()),
    "sliding window": ("j <= i & i - j < 100", ()),
    "two-sided window": ("abs(i - j) <= 90", ()),
    "lengths": (LENGTHS, ("n:B:int32",)),
    "lengths, window": (f"{LENGTHS} & {WINDOW}", ("n:B:int32",)),
    "lengths, wide window": (f"{LENGTHS} & j >= n[b] - 1024", ("n:B:int32",)),
    "lengths, window, sink": (f"{LENGTHS} & (j < 4 | {WINDOW})", ("n:B:int32",)),
    "lengths, causal offset": (f"j <= {AT}", ("n:B:int32",)),
    "lengths, causal offset, window": (f"j <= {AT} & j > {AT} - 100", ("n:B:int32",)),
    "lengths, causal offset, window, sink": (f"j <= {AT} & (j < 4 | j > {AT} - 100)", ("n:B:int32",)),
    "lengths, chunk": (f"{LENGTHS} & j // 128 == (n[b] - 1) // 128", ("n:B:int32",)),
    "lengths, block in the middle": (f"{LENGTHS} & ({WINDOW} | abs(j - p[b]) < 40)", ("n:B:int32", "p:B:int32")),
    "lengths of heads, window": ("j < n[b, h] & j >= n[b, h] - 96", ("n:B,H:int32",)),
    "lengths, dilated": (f"{LENGTHS} & (n[b] - j) % 3 == 0", ("n:B:int32",)),
    "left padding, causal": ("j >= p[b] & j <= i + (Sk - Sq)", ("p:B:int32",)),
    "left padding, causal, window": ("j >= p[b] & j <= i & i - j < 100", ("p:B:int32",)),
    "cache position": ("j <= i + p[b]", ("p:B:int32",)),
    "prefix": ("j <= i | j < p[b]", ("p:B:int32",)),
    "prefix, lengths": (f"{LENGTHS} & (j <= i | j < p[b])", ("n:B:int32", "p:B:int32")),
    "chunk, sink": ("j <= i & (i // 128 == j // 128 | j < 4)", ()),
    "window of a head": ("j <= i & i - j < w[h]", ("w:H:int32",)),
    "documents, window": ("d[b, i] == d[b, j] & j <= i & i - j < 100", ("d:B,Sk:int32",)),
    "documents, prefix": ("d[b, i] == d[b, j] & (j <= i | j < p[b])", ("d:B,Sk:int32", "p:B:int32")),
    "bounds of a row": ("j >= f[b, i] & j < t[b, i]", ("f:B,Sq:int32", "t:B,Sq:int32")),
    "bounds of a column, causal": ("j <= i & i < t[b, j]", ("t:B,Sk:int32",)),
}
SIZES = ((1, 1300), (1, 700), (333, 333), (70, 500), (300, 100), (200, 200))
B, H = 5, 2


@dataclass(frozen=True)
class Adapted:
    """A program that means a mask, how its tensors are passed, and by what means it finds its tiles."""

    kernel: object
    binding: object
    means: str


@cache
def lifted(name):
    found = lift(parse("kernel.cu", (ROOT / "expert_kernels" / name / "kernel.cu").read_bytes()))
    return found.kernel, found.anchors.kv_loop is not None and found.anchors.kv_loop.walk is not None


def adapt(kernel, listed, mask, operands):
    spec = make_attention(mask=mask, operands=operands, empty_rows="zero")
    result = transfer(kernel, spec, tile_lists=listed)
    assert result.target is not None, [d.message for d in result.diagnostics]
    edits = [edit for _, edit in result.edits]
    bounds = next((edit for edit in edits if isinstance(edit, RangeEdit)), None)
    ends = [end for end in ("lo", "hi") if bounds is not None and getattr(bounds, end) is not None]
    means = "list" if any(isinstance(e, WalkEdit) for e in edits) else " and ".join(ends) or "its own range"
    means += "".join(f" ({d.code})" for d in result.diagnostics if d.code == "CB314")
    bound = bind_kernel(result.target, spec, Given(result.bindings, {o.param: o.name for o in result.operands}))
    assert bound.diagnostics == ()
    return Adapted(result.target, bound.binding, means)


def data(operands, sizes, seed):
    """Lengths and bounds from none to one more than there are, ids of documents in order."""
    rng = np.random.default_rng(seed)
    made = {}
    for text in operands:
        name, axes, _ = text.split(":")
        shape = tuple(sizes[a] for a in axes.split(","))
        # Ids are read at rows and at columns.
        shape = (*shape[:-1], max(sizes["Sq"], sizes["Sk"])) if name == "d" else shape
        numbers = rng.integers(0, sizes["Sk"] + 2, shape)
        edges = np.array([sizes["Sk"], 1, 64, sizes["Sk"] - 1, 0])
        numbers = numbers if len(shape) > 1 else edges[np.arange(shape[0]) % 5] if seed % 2 else numbers
        made[name] = np.sort(numbers, axis=-1) // 70 if name == "d" else numbers
    return made


def tiles(adapted, mask, operands, sizes, seed=0):
    """(visited, with an attended key), each a set of (b, h, q0, first key), and what is visited twice."""
    kernel, binding = adapted.kernel, adapted.binding
    given = data(operands, sizes, seed)
    extra = extra_tensors(binding, given, sizes)
    tensors = indexed_operands(kernel, binding, extra)
    values = {**binding.values, **element_strides(binding, extra), **sizes, "D": kernel.D}
    values |= {p.name: sizes[p.role] for p in kernel.params if p.role in sizes}
    visited, needed, again = set(), set(), []
    keep = np.ones((B, H, sizes["Sq"], sizes["Sk"]), dtype=bool)
    axes = {
        name: np.arange(keep.shape[n]).reshape([-1 if n == m else 1 for m in range(4)]) for n, name in enumerate("bhij")
    }
    keep &= np.asarray(evaluate(parse_expr(mask), {**sizes, **axes, "hk": axes["h"]}, given), dtype=bool)
    for b, h, q0 in np.ndindex(B, H, -(-sizes["Sq"] // kernel.Br)):
        start = q0 * kernel.Br
        keys = first_keys(kernel, {**values, "b": b, "h": h, "hk": h, "q0": start, "qt": q0}, tensors)
        again += keys if len(set(keys)) < len(keys) else ()
        visited |= {(b, h, start, key) for key in keys}
        live = np.flatnonzero(keep[b, h, start : start + kernel.Br].any(axis=0)) // kernel.Bc * kernel.Bc
        needed |= {(b, h, start, int(key)) for key in live}
    return visited, needed, again


def crossed(visited, needed):
    """Tiles beyond the needed ones that are declared: a Q tile that attends to no key at all may visit one, where the
    two ends of its range cross inside a tile. None where there are others.
    """
    extra = [place[:3] for place in visited - needed]
    busy = {place[:3] for place in needed}
    return len(extra) if len(set(extra)) == len(extra) and busy.isdisjoint(extra) else None


def row_of(name, kernel):
    """By what means, and over all sizes: tiles visited, needed, and those of ranges that cross."""
    mask, operands = MASKS[name]
    one = adapt(*lifted(kernel), mask, operands)
    counts = np.zeros(3, dtype=int)
    for seed, (sq, sk) in enumerate(SIZES):
        sizes = {"B": B, "H": H, "Hkv": H, "Sq": sq, "Sk": sk}
        visited, needed, again = tiles(one, mask, operands, sizes, seed)
        assert needed <= visited, f"{kernel} leaves out tiles of {name} at {sizes}"
        assert not again
        empty = crossed(visited, needed)
        assert empty is not None, f"{kernel} visits empty tiles of {name} at {sizes}"
        counts += len(visited), len(needed), empty
    return one.means, *counts


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_empty_tile_is_visited(kernel):
    """The table of all masks: where the loop takes its tiles from, and how many of them there are."""
    lines = [f"{'mask':40}{'tiles from':16}{'visited':>8}{'needed':>8}{'crossed':>8}"]
    for name in MASKS:
        means, visited, needed, empty = row_of(name, kernel)
        lines.append(f"{name:40}{means:16}{visited:8d}{needed:8d}{empty:8d}")
    text = "\n".join(lines) + "\n"
    path = GOLDEN / f"visited_{kernel}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def lifted_text(data):
    found = lift(parse("kernel.cu", data))
    return found.kernel, found.diagnostics


@pytest.mark.parametrize("name", ["lengths, causal offset, window", "lengths, chunk", "lengths, window, sink"])
def test_the_text_says_the_same_where_tensor_maps_bound_the_rows(name):
    """sq in the bound of the loop is not taken for the number of keys, and a chunk of whole tiles needs no test."""
    data = (ROOT / "expert_kernels" / "flash_fwd_sm90_plain" / "kernel.cu").read_bytes()
    source, (mask, operands) = parse("kernel.cu", data), MASKS[name]
    found = lift(source)
    spec = make_attention(mask=mask, operands=operands, empty_rows="zero", specialised={"D": found.kernel.D})
    result = transfer(found.kernel, spec, reserved=identifiers(source))
    lowered = lower(found, result, source, spec="spec.py")
    assert lowered.text is not None
    assert read_back(lowered.text, result.target, result.bindings, lifted_text, result.operands)[1] == ()


def test_a_chunk_of_whole_tiles_is_not_tested_element_by_element():
    spec = make_attention(mask="j < n[b] & j // 32 == (n[b] - 1) // 32", operands=("n:B:int32",), empty_rows="zero")
    result = transfer(parse_kernel(FLASH), spec)
    (edit,) = (edit for _, edit in result.edits if isinstance(edit, MaskEdit))
    assert [print_expr(part) for part in (*edit.guarded, *edit.always)] == ["j < n[b]"]
    sizes = {"B": 5, "H": 1, "Hkv": 1, "Sq": 3, "Sk": 100, "D": 8}
    tensors = tensors_for(spec, sizes) | {"n": np.array([100, 33, 32, 31, 64])}
    out = execute(result.target, tensors, sizes, result.bindings)
    assert not out.findings
    np.testing.assert_allclose(out.o, formula(spec, tensors, sizes)[0], atol=1e-9)
    of_half_a_tile = make_attention(mask="j < n[b] & j // 8 == (n[b] - 1) // 8", operands=("n:B:int32",))
    (edit,) = (e for _, e in transfer(parse_kernel(FLASH), of_half_a_tile).edits if isinstance(e, MaskEdit))
    assert len((*edit.guarded, *edit.always)) == 2


conditions = st.sampled_from(
    [
        LENGTHS,
        "j >= n[b] - 20",
        f"j <= {AT}",
        f"j > {AT} - 12",
        "j <= i + p[b]",
        "j < p[b]",
        "j >= p[b]",
        "abs(j - p[b]) < 9",
        "j < 3",
        "j <= i",
        "i - j < 24",
        "i // 24 == j // 24",
        "j // 32 == (n[b] - 1) // 32",
    ]
)
compositions = st.recursive(
    conditions,
    lambda inner: st.tuples(inner, st.sampled_from("&|"), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(compositions, st.sampled_from([(1, 130), (40, 40), (37, 90), (90, 37), (16, 0)]), st.integers(0, 9))
def test_the_tiles_of_brute_force_whatever_the_composition(mask, lengths, seed):
    """On tiles of 16 x 16."""
    operands = tuple(f"{name}:B:int32" for name in "np" if f"{name}[b]" in mask)
    one = adapt(parse_kernel(FLASH), True, mask, operands)
    sizes = {"B": B, "H": H, "Hkv": H, "Sq": lengths[0], "Sk": lengths[1]}
    visited, needed, again = tiles(one, mask, operands, sizes, seed)
    assert needed <= visited
    assert not again
    assert crossed(visited, needed) is not None

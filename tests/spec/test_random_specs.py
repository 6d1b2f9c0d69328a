"""Random compositions of scores and masks, written as files: what is read must be what brute force computes.

CUBRIDGE_EXAMPLES sets the number of examples (CI: 16, the same ones each time; more draws new ones).
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.spec import Attention, evaluate_attention, read_spec
from cubridge_engine.transfer.ranges import key_range, tile_guard
from cubridge_engine.transfer.tile_lists import build_tile_list, tile_list_of

from .random_specs import RandomSpec, draw_operand, expected, random_specs

EXAMPLES = int(os.environ.get("CUBRIDGE_EXAMPLES", "16"))
BR, BC = 16, 16
EXAMPLE_SIZES = {"B": 2, "H": 4, "Hkv": 2, "Sq": 48, "Sk": 48, "D": 16}
_FILES = tempfile.TemporaryDirectory()

sizes = st.fixed_dictionaries(
    {
        "B": st.integers(1, 3),
        "Hkv": st.integers(1, 3),
        "groups": st.integers(1, 3),
        "Sq": st.integers(1, 70),
        "Sk": st.integers(1, 70),
    }
)


def arrays_of(spec: RandomSpec, at: dict[str, int], seed: int) -> list[np.ndarray]:
    """q, k, v in the spec's layout, then its operands; float32 and integers."""
    generator = np.random.default_rng(seed)
    shapes = [(at["B"], at["H"], at["Sq"], at["D"])] + [(at["B"], at["Hkv"], at["Sk"], at["D"])] * 2
    tensors = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    if spec.sequence_first:
        tensors = [np.swapaxes(x, 1, 2) for x in tensors]
    for axes, kind in spec.operands.values():
        shape = tuple(at[a] if a in at else int(a) for a in axes.split())
        tensors.append(draw_operand(kind, shape, at["Sk"], generator))
    return tensors


def read_text(spec: RandomSpec) -> Attention:
    """Write the drawn function to a file and read it."""
    at = {**EXAMPLE_SIZES, "Hkv": 2 if spec.groups != "none" else 4}
    path = Path(_FILES.name) / "spec.py"
    saved = Path(_FILES.name) / "example.pt"
    torch.save([torch.from_numpy(np.ascontiguousarray(a)) for a in arrays_of(spec, at, 0)], saved)
    path.write_text(spec.text() + f"\n\ndef example_inputs():\n    return tuple(torch.load({str(saved)!r}))\n")
    logging.disable(logging.CRITICAL)  # pytest keeps what torch says of each trace
    result = read_spec(str(path), time_limit=120.0)
    logging.disable(logging.NOTSET)
    assert result.attention is not None, (spec.text(), [d.message for d in result.diagnostics])
    return result.attention


@pytest.mark.filterwarnings("ignore:The recursion limit")
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES <= 16,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
)
@given(random_specs(), sizes, sizes)
def test_what_is_read_is_what_brute_force_computes(spec, first, second):
    attention = read_text(spec)
    torch._dynamo.reset()
    for seed, drawn in enumerate((first, second), start=1):
        at = {**drawn, "H": drawn["Hkv"] * drawn["groups"], "D": EXAMPLE_SIZES["D"]}
        if spec.groups == "none":
            at["Hkv"] = at["H"]
        at |= {a: at[b] for b, a in attention.equal_sizes if {a, b} == {"Sq", "Sk"}}
        assert attention.allows(at), (spec.text(), attention.specialised, attention.equal_sizes)
        arrays = arrays_of(spec, at, seed)
        named = dict(zip(("q", "k", "v", *spec.operands), arrays, strict=True))
        (got,) = evaluate_attention(attention, [named[i.name] for i in attention.inputs])
        plain = [np.swapaxes(x, 1, 2) for x in arrays[:3]] if spec.sequence_first else arrays[:3]
        want = expected(spec, *plain, {n: named[n] for n in spec.operands})
        if spec.sequence_first:
            got = np.swapaxes(got, 1, 2)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=spec.text())
        tiles_are_safe(attention, at, named, spec)


def tiles_are_safe(attention: Attention, at: dict[str, int], named: dict[str, np.ndarray], spec: RandomSpec) -> None:
    """No attended key outside the derived range, no masked key in a tile that the guard calls whole; the list of tiles
    names exactly those with a key, the ones that need testing first.
    """
    if attention.mask is None:
        return
    types = {i.name: {"b": "bool", "f": "float"}.get(named[i.name].dtype.kind, "int") for i in attention.operands}
    lo, hi = key_range(attention.mask, types)
    guard = tile_guard(attention.mask, types)
    grids = np.meshgrid(*(np.arange(at[n]) for n in ("B", "H", "Sq", "Sk")), indexing="ij", sparse=True)
    env = {**at, **dict(zip("bhij", grids, strict=True))}
    keep = np.broadcast_to(evaluate(attention.mask, env, named), [at[n] for n in ("B", "H", "Sq", "Sk")])
    tiles = tile_list_of(attention.mask, BR, BC)
    lists = build_tile_list(tiles, at, named)
    for b, h in np.ndindex(at["B"], at["H"]):
        for q0 in range(0, at["Sq"], BR):
            place = {"b": b, "h": h, "qt": q0 // BR}
            row = lists[tuple(place[name] for name in tiles.index)].tolist()
            blocks = {n: keep[b, h, q0 : q0 + BR, kv0 : kv0 + BC] for n, kv0 in enumerate(range(0, at["Sk"], BC))}
            live = [n for n, block in blocks.items() if block.any()]
            partial = [n for n in live if not blocks[n].all() or blocks[n].shape[1] < BC]
            assert row[:2] == [len(live), len(partial)], spec.text()
            assert row[2 : 2 + len(live)] == [*partial, *(n for n in live if n not in partial)], spec.text()
            scope = {**at, "b": b, "h": h, "q0": q0, "Br": BR, "Bc": BC}
            first = 0 if lo is None else int(evaluate(lo, scope, named))
            last = at["Sk"] if hi is None else int(evaluate(hi, scope, named))
            attended = np.flatnonzero(keep[b, h, q0 : q0 + BR].any(0))
            assert all(first <= j < last for j in attended), spec.text()
            for kv0 in range(0, at["Sk"], BC):
                if not keep[b, h, q0 : q0 + BR, kv0 : kv0 + BC].all():
                    assert bool(evaluate(guard, {**scope, "kv0": kv0}, named)), spec.text()

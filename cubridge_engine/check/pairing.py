"""The first product of a kernel's execution that pairs elements that do not belong together, and its line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..ir.expr import Call, Const, J, Read, conjoin
from ..simulate import Schedule
from ..simulate.calling import output
from ..simulate.flow import Flow
from ..simulate.model import Instruction, Sym
from ..spec.attention import Attention
from ..verify.grid import Case
from ..verify.steps_causes import near, pattern
from ..verify.steps_tables import tables_of
from .launched import Launched, load_before
from .numbers import Wrong, reference, reference_with
from .operands import Mispaired, Pairs
from .shuffles import wrong_shuffle
from .tags import Tags, tagged_inputs
from .watch_cases import WatchCase, allowed

Array = NDArray[Any]
LOG2E = 1.0 / math.log(2.0)
OUTPUT = 1e-2  # of the largest output: two hypotheses are further apart
MANY_ROWS = 8  # of O, below which columns may look alike by accident


def mispaired(wrong: Wrong, launched: Launched) -> Mispaired | None:
    """The first wrong product of the kernel that gives `wrong`; None where all are right, or none is known."""
    case = _case(wrong)
    if case is None:
        return None
    dtype, scale = wrong.instance.dtype, launched.scale
    tensors = tagged_inputs(case.sizes, dtype)
    tables = tables_of(wrong.meaning, tensors, case.sizes)
    heads = np.broadcast_to(evaluate(wrong.meaning.head_map, {**case.sizes, "h": np.arange(case.case.H)}), case.case.H)
    forms = (1.0, scale, scale * LOG2E)
    pairs = Pairs(
        launched.code,
        Tags(tensors["q"], dtype, forms),
        Tags(tensors["k"], dtype),
        Tags(tensors["v"], dtype),
        np.asarray(heads, dtype=int),
        tables.x[0],
    )
    call = launched.call(case, tensors)
    if call.diagnostics:
        return None
    run = launched.run(call, Schedule("late", "forward"), observer=pairs)
    got = output(call, run, "o") if "O" in run.outputs else None
    found = pairs.found
    if found is not None and found.step == "m":
        found = wrong_shuffle(launched.code, pairs.lane_rows) or found
    found = (
        found
        or _left_out(pairs, wrong.meaning, tensors, got, launched.flow)
        or pairs.shifted(wrong.contract.bc)
        or wrong_shuffle(launched.code, pairs.lane_rows)
    )
    if found is not None:
        return replace(found, site=_site(launched.code, found))
    return None if got is None else _stored_elsewhere(got, reference(wrong.meaning, tensors)[0], launched.code)


def _left_out(
    pairs: Pairs, meaning: Attention, tensors: Mapping[str, Array], got: Array | None, flow: Flow
) -> Mispaired | None:
    """Columns or keys that no product has. Not every product is known as one: it counts where the output is exactly
    what the mathematics gives without them.
    """
    columns, keys = pairs.missing(), _unseen(pairs, flow)
    if got is None or (columns is None and keys is None):
        return None
    if columns is not None and columns.step == "s":
        kept = np.isin(np.arange(tensors["q"].shape[3]), list(pairs.columns["q"]))
        o, _ = reference(meaning, {**tensors, "q": tensors["q"] * kept})
        if bool(near(got, o, OUTPUT).all()):
            return columns
    if keys is not None:
        dropped = [n not in pairs.keys for n in range(tensors["k"].shape[2])]
        mask = Call("ne", (Read("<left out>", (J,)), Const(1)))
        fewer = replace(meaning, mask=mask if meaning.mask is None else conjoin([meaning.mask, mask]))
        o, _ = reference_with(fewer, tensors, {"<left out>": np.array(dropped, dtype=np.int32)})
        live = np.isfinite(o)
        if bool(near(np.where(live, got, 0.0), np.where(live, o, 0.0), OUTPUT).all()):
            return keys
    return None


def _case(wrong: Wrong) -> WatchCase | None:
    """A problem with few enough elements that all can be different."""
    c, i = wrong.contract, wrong.instance
    heads = ((4, 2), (2, 1), (1, 1)) if c.gqa else ((2, 2), (1, 1))
    dv = i.value_dim if i.value_dim != i.head_dim else 0
    lengths = ((c.br + 9, 2 * c.bc + 5), (c.br, 2 * c.bc), (c.br, c.bc + 5), (c.br, c.bc), (1, c.bc + 5), (1, c.bc))
    for h, hkv in heads:
        for sq, sk in lengths:
            case = WatchCase(Case("tagged", "", 1, h, hkv, sq, sk, i.head_dim, Dv=dv), wrong.case.flag)
            if not allowed(case.case, c, i):
                continue
            try:
                tagged_inputs(case.sizes, i.dtype)
            except ValueError:
                continue
            return case
    return None


def _site(code: list[Instruction], found: Mispaired) -> int:
    """The load of an operand whose elements lie wrong in it, the last shuffle before weights whose lanes disagree; else
    the product.
    """
    if found.step == "m":
        return next((n for n in range(found.site, -1, -1) if code[n].parts[0] == "shfl"), found.site)
    if found.step not in ("q", "k", "v"):
        return found.site
    load = load_before(code, found.site, found.operand)
    return found.site if load is None else load


def _unseen(pairs: Pairs, flow: Flow) -> Mispaired | None:
    """Keys that some row attends and that are never multiplied with Q: the loop over KV tiles leaves them out."""
    needed = np.flatnonzero(np.isfinite(pairs.logits).any(axis=(0, 1)))
    unseen = np.array([n not in pairs.keys for n in range(pairs.logits.shape[2])])
    absent = unseen & np.isin(np.arange(len(unseen)), needed)
    if not pairs.keys or not absent.any():
        return None
    words = pattern(absent, rows="keys")
    cause = f"{words} of {len(absent)} are attended, and never multiplied with Q"
    return Mispaired("range", _loop_around(flow, pairs.sites["q"]), 0, cause, words, {})


def _loop_around(flow: Flow, site: int) -> int:
    """The branch back of the outermost loop around an instruction; the instruction itself where there is none."""
    found = site
    for n in range(site + 1, len(flow.code)):
        ins = flow.code[n]
        if ins.parts[0] != "bra" or not ins.args or not isinstance(ins.args[0], Sym):
            continue
        block = flow.block_of.get(ins.args[0].name)
        if block is not None and flow.blocks[block].start <= site:
            found = n
    return found


def _stored_elsewhere(got: Array, want: Array, code: list[Instruction]) -> Mispaired | None:
    """O whose columns stand in another order than they should."""
    rows, columns = (x.reshape(-1, x.shape[-1]) for x in (got, want))
    judged = np.isfinite(rows).all(axis=1) & np.isfinite(columns).all(axis=1)
    rows, columns = rows[judged], columns[judged]
    if len(rows) < MANY_ROWS or bool(near(rows, columns, OUTPUT).all()):
        return None
    order: list[int] = []
    for d in range(rows.shape[1]):
        error = np.abs(columns - rows[:, d : d + 1]).max(axis=0)
        order.append(int(error.argmin()))
        if error.min() > OUTPUT * max(float(np.abs(columns).max()), 1e-6):
            return None
    if len(set(order)) != len(order):
        return None
    moved = np.flatnonzero(np.array(order) != np.arange(len(order)))
    stores = [n for n, ins in enumerate(code) if ins.parts[0] == "st" and ins.space in ("global", "")]
    if not len(moved) or not stores:
        return None
    d = int(moved[0])
    cause = f"column {d} of O holds what belongs into column {order[d]}"
    return Mispaired("o", stores[0], 0, cause, f"{len(moved)} of {len(order)} columns", {"d": d})

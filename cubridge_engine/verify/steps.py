"""Where a kernel that gives wrong numbers goes wrong first: its program is executed, and every step is compared with
what the mathematics gives for it, tile by tile.

Only explains; whether a kernel is right is decided by its outputs. P is judged up to a factor of the row (any reference
may be subtracted in the exponent), and l and O are then judged against the reference that P shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import free_vars
from ..ir.interp import execute
from ..ir.nodes import NOWHERE, For, Kernel, Map, Mask, Mma, Op, Origin, RowReduce, Score
from ..ir.observing import CtaState
from ..spec.attention import Attention
from ..transfer.structure import NotAttention
from .derive import natural_scale
from .steps_causes import near, operand_fault, pattern, ratio_of, scale_cause
from .steps_model import Element, WrongStep
from .steps_outputs import Ending, wrong_output
from .steps_parts import Parts, own_statement, parts_of, reference_rows
from .steps_tables import Tables, tables_of
from .steps_trip import Trip, wrong_state

Array = NDArray[Any]
_STILL_EMPTY = "m is still -inf in a row that has seen no key, and -inf - (-inf) is NaN"
_CORRECTED = ("l", "rescale")  # steps that multiply by the correction
MASKED = -9000.0  # as in `explain`: a logit at or below it is a masked key


def first_wrong_step(
    kernel: Kernel,
    attention: Attention,
    roles: Mapping[str, Array],
    sizes: Mapping[str, int],
    values: Mapping[str, float | int],
    operands: Mapping[str, Array] | None = None,
    async_mode: str = "early",
) -> WrongStep | None:
    """The first step of `kernel` whose value differs from what `attention` gives; None where every step agrees, or
    where this cannot be told (weights that are no softmax, a program without one KV loop, one that does not execute).

    `roles` are q [B, H, Sq, D], k, v and the spec's operands by name; `operands` the kernel's by parameter, and its
    `values`.
    """
    if attention.normaliser != "softmax":
        return None
    try:
        parts = parts_of(kernel)
        tables = tables_of(attention, roles, sizes)
    except (NotAttention, UnboundName, KeyError, ValueError):
        return None
    judge = _Judge(kernel, parts, tables, attention, sizes)
    tensors = {**{role: roles[role] for role in "qkv"}, **(operands or {})}
    try:
        outputs = execute(kernel, tensors, sizes, values, async_mode=async_mode, observe=judge.observe)
    except _Found as found:
        if found.step.step != "mask":
            return found.step
        walk = _Walk(kernel, parts, tables, attention, sizes)
        try:
            execute(kernel, tensors, sizes, values, async_mode=async_mode, observe=walk.observe)
        except _Found as other:
            return _other_tiles(other.step, parts, kernel.Bc)
        return found.step
    return wrong_output(parts, tables, outputs, judge.endings)


def _other_tiles(step: WrongStep, parts: Parts, bc: int) -> WrongStep:
    """A mask that is wrong on the tiles that are visited, which are the wrong ones themselves."""
    cause = f"{step.cause}, and the mask is tested for other keys than those that are multiplied"
    # A tile that begins within a tile was copied from there.
    copied = parts.copy_k is not None and step.kv is not None and step.kv % bc != 0
    return replace(step, cause=cause, origin=parts.copy_k.origin if copied and parts.copy_k else parts.qk.origin)


class _Found(Exception):
    """Ends the execution: the first wrong step is known."""

    def __init__(self, step: WrongStep) -> None:
        super().__init__(step.sentence())
        self.step = step


class _Judge:
    """Follows the execution of one batch of CTAs after the other."""

    def __init__(
        self, kernel: Kernel, parts: Parts, tables: Tables, attention: Attention, sizes: Mapping[str, int]
    ) -> None:
        self.kernel, self.parts, self.tables, self.sizes = kernel, parts, tables, sizes
        self.scale = natural_scale(attention, kernel.D)
        self.cta: CtaState | None = None
        self.endings: list[Ending] = []
        self.trip: Trip | None = None
        self.mask_at: Origin = NOWHERE

    def observe(self, op: Op, cta: CtaState) -> None:
        """Called after each operation."""
        if cta is not self.cta:
            self._start(cta)
        handler = _HANDLERS.get(type(op))
        if handler is not None:
            handler(self, op, cta)
        if op is self.parts.last:
            self._trip_end(cta)
        if op is self.parts.store_tile:
            assert self.trip is not None
            self.endings.append(self.trip.ending(cta, self.q0))

    def _start(self, cta: CtaState) -> None:
        self.cta = cta
        self.q0 = int(np.asarray(cta.env["q0"]).flat[0])
        self.b, self.h = cta.b.reshape(-1), cta.h.reshape(-1)
        self.rows = min(self.kernel.Br, self.sizes["Sq"] - self.q0)  # those that exist
        self.seen: list[int] = []
        self.trip = Trip(self.tables, self.b, self.h, self.q0, self.rows, self.kernel.Bc, self.parts)
        self.unit = float(np.asarray(evaluate(self.kernel.exp_unit, cta.env)).flat[0])

    # ---- steps

    def product(self, op: Mma, cta: CtaState) -> None:
        """S = Q K^T, up to one factor: the scale may be in Q."""
        if op is not self.parts.qk:
            return
        assert self.trip is not None
        kv0 = int(np.asarray(cta.env["kv0"]).flat[0])
        self.trip.begin(kv0, cta)
        got = cta.tiles[op.acc][:, : self.rows]
        want = self._slab(self.tables.s)
        there = np.isfinite(want)
        if not there.any():
            return
        # Zeros in every product are no factor: a kernel that computes nothing is wrong.
        factor = ratio_of(got[there], want[there])
        if factor:
            return
        wrong = there & ~near(got, want)
        self._operands(op, cta, kv0)
        self._report("s", wrong, got, want, op.origin, _product_cause(got, want, self.tables, self.trip))

    def _operands(self, op: Mma, cta: CtaState, kv0: int) -> None:
        """An operand of a product that does not hold the rows it should is what is wrong first."""
        sides = [("v", op.b, op.slot, kv0, self.kernel.Bc)]
        if op.role == "qk":
            sides = [("q", op.a, op.a_slot, self.q0, self.rows), ("k", op.b, op.slot, kv0, self.kernel.Bc)]
        for role, name, slot, row0, rows in sides:
            held = _operand(cta, name, slot)
            if held is None or held.data.shape[2] < getattr(self.tables, role).shape[3]:
                continue
            where = {"b": self.b, "head": self.h if role == "q" else self.tables.heads[self.h]}
            fault = operand_fault(self.tables, role, held.data, where, row0, rows)
            if fault is None:
                continue
            right = [
                n for n, d in enumerate(held.stages) if operand_fault(self.tables, role, d, where, row0, rows) is None
            ]
            at, cause = held.written, fault.cause
            if right:
                at, cause = op.origin, f"it is read from stage {held.stage}, and lies in stage {right[0]}"
            elif fault.other_head and role != "q":
                at = self.kernel.grid.origin
            element = Element(
                int(self.b[fault.cta]),
                int(self.h[fault.cta]),
                row0 + fault.row if role == "q" else None,
                row0 + fault.row if role != "q" else None,
                fault.column,
                fault.got,
                fault.want,
            )
            kv = None if role == "q" else kv0
            step = WrongStep(role, element, self.q0 // self.kernel.Br, kv, pattern(fault.wrong), cause)
            raise _Found(_at(step, at, op.origin))

    def masked(self, op: Mask, cta: CtaState) -> None:
        """Remember the mask that was executed last: its line is what a wrong mask is reported at."""
        self.mask_at = own_statement(op, self.parts.ops)

    def scores(self, op: RowReduce, cta: CtaState) -> None:
        """The scores that the maximum is taken of: values, and what is masked though it should not be."""
        if op.role != "row_max" or self.parts.late_scores:
            return
        self._judge_scores(cta.tiles[op.src])

    def late_scores(self, op: Score | Mask, cta: CtaState) -> None:
        """The same, where scores change after the maximum was taken."""
        if isinstance(op, Mask):
            self.masked(op, cta)
        if op is self.parts.late_scores:
            self._judge_scores(cta.tiles[op.tile])

    def _judge_scores(self, tile: Array) -> None:
        with np.errstate(invalid="ignore"):
            got = tile[:, : self.rows] * self.unit
        want = self._slab(self.tables.x)
        dead = ~(want > MASKED)
        gone = got <= MASKED
        over = gone & ~dead
        if over.any():
            self._report("mask", over, got, want, self._mask_origin(), "a key that is attended is masked")
        judged = ~gone & ~dead
        with np.errstate(invalid="ignore"):
            shift = reference_rows(got - want, judged) if self.tables.sink is None else np.zeros(got.shape[:2])
            wrong = judged & ~near(np.where(judged, got - shift[..., None], 0.0), np.where(judged, want, 0.0))
        if wrong.any():
            ratio = ratio_of(got[judged], want[judged])
            cause = scale_cause(ratio, self.scale, self.kernel.D) if ratio is not None else ""
            # Two places scale where the exponent has a factor of its own: the second one is the odd one out.
            fused = bool(free_vars(self.kernel.exp_unit)) or cause.startswith("exp2")
            at = self.parts.exp_origin if fused or self.parts.score is None else self.parts.score_origin
            self._report("score", wrong, got, want, at, cause)

    def weights(self, op: Map, cta: CtaState) -> None:
        """P up to a factor of the row; the rescaled O is only remembered."""
        assert self.trip is not None
        if op.dst == self.parts.acc and op.role == "rescale":
            self.trip.rescaled = cta.tiles[op.dst].copy()
        if op is not self.parts.exp:
            return
        self.trip.weights = cta.tiles[op.dst].copy()
        got = cta.tiles[op.dst][:, : self.rows]
        want = self._slab(self.tables.x)
        dead = ~(want > MASKED)
        live = self.trip.live()
        under = live[..., None] & dead & (got > 1e-12)
        if under.any():
            cause = "a key beyond Sk is not masked" if not np.isfinite(want[under]).any() else ""
            cause = cause if np.isnan(want[under]).all() else "a key that is not attended is not masked"
            self._report("mask", under, got, np.where(dead, 0.0, got), self._mask_origin(), cause)
        if np.isnan(got).any():
            nan = np.isnan(got)
            alive = np.asarray(live & nan.any(axis=2))
            cause = "" if alive.any() else _STILL_EMPTY
            self._report("p", nan, got, np.where(nan, 0.0, got), self.parts.exp_origin, cause)
        self._reference(got, want, ~dead)

    def _reference(self, got: Array, want: Array, attended: Array) -> None:
        """The reference of each row, ``X - log P``: it must be one for the whole row."""
        assert self.trip is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            refs = want - np.log(got)
        seen = attended & (got > 1e-12)
        ref = reference_rows(refs, seen, got)
        any_key = np.asarray(attended.any(axis=2))
        gone = (
            any_key
            & np.asarray(~seen.any(axis=2))
            & (np.where(attended, want, -np.inf).max(axis=2) >= self.trip.top() - 1e-9)
        )
        if gone.any():
            cause = "what is subtracted in the exponent is so far above the row's scores that every weight is 0"
            top = np.where(attended, want, -np.inf).max(axis=2)
            self._report("m", gone, np.where(gone, np.inf, top), top, self.parts.m_origin, cause)
        with np.errstate(invalid="ignore"):
            model = np.where(attended, np.exp(want - ref[..., None]), 0.0)
            wrong = any_key[..., None] & attended & np.isfinite(ref)[..., None] & ~near(got, model)
        if wrong.any():
            self._report("p", wrong, got, model, self.parts.exp_origin, _weights_cause(wrong))
        self.trip.refer(ref)

    def _trip_end(self, cta: CtaState) -> None:
        assert self.trip is not None
        found = wrong_state(self.trip, cta)
        if found is None:
            return
        if found.step == "pv" and self.parts.pv is not None:
            self._operands(self.parts.pv, cta, self.trip.kv0)
        self._report(found.step, found.wrong, found.got, found.want, found.origin, found.cause)

    def walked(self, op: For, cta: CtaState) -> None:
        """After the KV loop: every attended key must have been in a tile that was visited, once."""
        if op is not self.parts.loop or self.trip is None:
            return
        seen = self.trip.seen
        keys = np.arange(self.sizes["Sk"])
        count = np.zeros(len(keys), dtype=int)
        for kv0 in seen:
            count[max(kv0, 0) : max(kv0 + self.kernel.Bc, 0)] += 1
        keep = self.tables.keep[self.b, self.h, self.q0 : self.q0 + self.rows]
        wrong = keep & (count != 1)
        if wrong.any():
            missing = bool((keep & (count == 0)).any())
            wrong = keep & (count == 0) if missing else wrong
            cause = (
                "keys that are attended lie in tiles that are never visited" if missing else "a tile is visited twice"
            )
            got = np.broadcast_to(count.astype(float), wrong.shape)
            self._report("range", wrong, got, np.ones(wrong.shape), op.origin, cause, kv=seen[0] if seen else None)

    # ---- reporting

    def _slab(self, table: Array) -> Array:
        assert self.trip is not None
        return self.tables.slab(table, self.b, self.h, self.q0, self.rows, self.trip.kv0, self.kernel.Bc)

    def _mask_origin(self) -> Origin:
        return self.mask_at if self.mask_at.span is not None else self.parts.loop.origin

    def _report(
        self, step: str, wrong: Array, got: Array, want: Array, origin: Origin, cause: str, kv: int | None = -1
    ) -> None:
        """Raise what is wrong. Arrays are [CTAs, rows] or [CTAs, rows, columns]; keys count from the tile's first."""
        assert self.trip is not None
        first = [int(n) for n in np.argwhere(wrong)[0]]
        cta, row = first[0], first[1]
        column = first[2] if len(first) > 2 else None
        base = 0 if step == "range" else self.trip.kv0
        of_keys = step not in ("pv", "rescale", "o")
        element = Element(
            int(self.b[cta]),
            int(self.h[cta]),
            self.q0 + row,
            None if column is None or not of_keys else base + column,
            column if not of_keys else None,
            float(got[tuple(first)]),
            float(want[tuple(first)]),
        )
        words = pattern(wrong[cta], columns="keys" if step == "range" else "columns")
        tile = self.trip.kv0 if kv == -1 else kv
        also = self.parts.correction.origin.span if self.parts.correction is not None and step in _CORRECTED else None
        found = WrongStep(step, element, self.q0 // self.kernel.Br, tile, words, cause, also=also)
        raise _Found(_at(found, origin, NOWHERE))


class _Walk(_Judge):
    """Looks at nothing but which tiles are visited."""

    def observe(self, op: Op, cta: CtaState) -> None:
        """Called after each operation."""
        if cta is not self.cta:
            self._start(cta)
        if op is self.parts.qk and self.trip is not None:
            self.trip.begin(int(np.asarray(cta.env["kv0"]).flat[0]), cta)
        if isinstance(op, For):
            self.walked(op, cta)


def _at(step: WrongStep, origin: Origin, otherwise: Origin) -> WrongStep:
    return replace(step, origin=origin if origin.span else otherwise)


@dataclass(frozen=True, slots=True)
class _Held:
    """An operand of a product [CTAs, rows, width], where it was written, and for a ring of stages what each holds."""

    data: Array
    written: Origin
    stage: int = 0
    stages: tuple[Array, ...] = ()


def _operand(cta: CtaState, name: str, slot: Any) -> _Held | None:
    """The operand called `name`; None where it is no tile."""
    if name not in cta.shared.slots:
        return _Held(cta.tiles[name], NOWHERE) if name in cta.tiles else None
    index = int(np.asarray(evaluate(slot, cta.env)).flat[0]) if slot is not None else 0
    held = cta.shared.slots[name]
    if not 0 <= index < len(held):
        return None
    stages = tuple(h.data for h in held) if len(held) > 1 else ()
    return _Held(held[index].data, held[index].written_at or NOWHERE, index, stages)


def _product_cause(got: Array, want: Array, tables: Tables, trip: Trip) -> str:
    """The product over a part of the columns, or of the wrong rows, where that explains it."""
    width = tables.q.shape[3]
    rows = slice(trip.q0, trip.q0 + trip.rows)
    k = tables.k[trip.b, tables.heads[trip.h]]
    there = np.isfinite(want)
    for part in (width // 2, width // 4, width - 16, width - 8, width - 1):
        if 0 < part < width:
            short = np.full(want.shape, np.nan)
            product = tables.q[trip.b, trip.h, rows, :part] @ np.swapaxes(
                k[:, trip.kv0 : trip.kv0 + want.shape[2], :part], 1, 2
            )
            short[:, :, : product.shape[2]] = product
            if ratio_of(got[there], short[there]):
                return f"only the first {part} of {width} columns are multiplied"
    return ""


def _weights_cause(wrong: Array) -> str:
    """Wrong weights whose columns belong to some lanes of a quad only."""
    lanes = {int(c % 8) // 2 for c in np.flatnonzero(wrong.any(axis=(0, 1)))}
    if 0 < len(lanes) < 4:
        return "the lanes that share a row do not subtract the same maximum"
    return ""


_HANDLERS: dict[type[Op], Callable[[_Judge, Any, CtaState], None]] = {
    Mma: _Judge.product,
    Mask: _Judge.late_scores,
    Score: _Judge.late_scores,
    RowReduce: _Judge.scores,
    Map: _Judge.weights,
    For: _Judge.walked,
}

"""Sentences about what a kernel needs of its caller: lengths, heads, alignment, architecture, and its contract."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.expr import Const, Var, free_vars
from ..ir.nodes import Copy, Map, Mma, RowReduce
from ..lower import Header
from ..transfer.structure import walk_ops
from .facts import spans_of
from .known import Known
from .model import Sentence
from .trial import has_own_sk

# What of a program decides the oldest architecture: the first that applies.
_ARCHS = (
    ("wgmma", "sm_90a"),
    ("tma", "sm_90"),
    ("mma.m16n8k16", "sm_80"),
    ("cp.async", "sm_80"),
    ("wmma", "sm_70"),
)


def need_sentences(known: Known, header: Header | None = None) -> Iterator[Sentence]:
    """What must hold for the sentences before to hold."""
    yield from _lengths(known)
    yield from _heads(known)
    yield from _alignment(known)
    yield from _sign(known)
    yield from _arch(known)
    yield from _contract(known)
    if header is not None and (header.bindings or header.level):
        given = ", ".join(f"{name} = {value}" for name, value in header.bindings.items())
        level = f"adapted to {header.spec}, verified to level {header.level}" if header.level else "adapted"
        text = f"Its header says: {level}" + (f"; call it with {given}." if given else ".")
        yield Sentence("needs", text, "contract", lead=False)


def _lengths(known: Known) -> Iterator[Sentence]:
    k = known.kernel
    if not has_own_sk(k):
        name = next((p.name for p in k.params if p.role == "Sq"), "")
        one = f" ({name})" if name else ""
        yield Sentence("needs", f"There are as many keys as queries: it takes one length{one}.", "read")
    width = f"D = {k.D}" + (f" and Dv = {k.Dv}" if k.Dv != k.D else "")
    yield Sentence("needs", f"It was read with {width}.", "read", lead=False)


def _heads(known: Known) -> Iterator[Sentence]:
    head_map = known.kernel.grid.hk
    if head_map == Var("h"):
        yield Sentence("needs", "H = Hkv.", "read", lead=False)
    elif "Hkv" in free_vars(head_map):
        yield Sentence("needs", "H is a multiple of Hkv.", "read", lead=False)


def _alignment(known: Known) -> Iterator[Sentence]:
    copies = [op for op in walk_ops(known.kernel.body) if isinstance(op, Copy) and op.signal is None]
    wide: dict[int, list[Copy]] = {}
    for op in copies:
        if op.vector_bytes > 4:
            wide.setdefault(op.vector_bytes, []).append(op)
    for size, ops in sorted(wide.items()):
        names = ", ".join(dict.fromkeys(op.tensor.upper() for op in ops))
        yield Sentence(
            "needs", f"Rows of {names} start at multiples of {size} bytes.", "read", spans_of(*ops), lead=False
        )


def _sign(known: Known) -> Iterator[Sentence]:
    """A row maximum of scores that are not scaled yet bounds the exponent only for a scale that is not negative."""
    k, f = known.kernel, known.function
    made = {op.dst for op in walk_ops(k.body) if isinstance(op, Map)}
    maxima = [
        op for op in walk_ops(k.body) if isinstance(op, RowReduce) and op.role == "row_max" and op.src not in made
    ]
    if f is not None and f.normaliser == "softmax" and maxima and k.exp_unit != Const(1.0) and free_vars(k.exp_unit):
        text = "The scale is not negative: the row maximum is taken of scores before they are scaled."
        yield Sentence("needs", text, "read", spans_of(*maxima), lead=False)


def _arch(known: Known) -> Iterator[Sentence]:
    ops = list(walk_ops(known.kernel.body))
    have = {op.atom for op in ops if isinstance(op, Mma)}
    have |= {"cp.async" for op in ops if isinstance(op, Copy) and op.is_async and op.signal is None}
    have |= {"tma" for op in ops if isinstance(op, Copy) and op.signal is not None}
    for what, arch in _ARCHS:
        if what in have:
            words = {"tma": "TMA"}.get(what, what)
            later = "" if arch.endswith("a") else " or later"
            yield Sentence("needs", f"It runs on {arch}{later}, for its {words}.", "read", lead=False)
            return


def _contract(known: Known) -> Iterator[Sentence]:
    c = known.contract
    if c is None:
        return
    if c.alignment_bytes > 1:
        text = f"Q, K, V and their rows are aligned to {c.alignment_bytes} bytes."
        yield Sentence("needs", text, "contract", lead=False)

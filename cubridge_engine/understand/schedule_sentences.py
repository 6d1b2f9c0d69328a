"""Sentences about how a kernel goes about it: who computes what, how tiles arrive, what is waited for."""

from __future__ import annotations

from collections.abc import Iterator

from ..diagnostics import Span
from .known import Known
from .model import Fact, Sentence


def schedule_sentences(known: Known) -> Iterator[Sentence]:
    """In the order of reading."""
    if not known.facts:
        return
    yield _tiles(known)
    yield from _arrival(known)
    yield from _waits(known)


def _tiles(known: Known) -> Sentence:
    k = known.kernel
    order, qk, pv = (known.fact(key) for key in ("order", "product:qk", "product:pv"))
    walk = f", {order.value}" if order is not None else ""
    products = _products(qk, pv)
    each = "A CTA" if known.fact("persistent") is None else "For each of its work items, a CTA"
    text = f"{each} of {k.threads} threads owns {k.Br} query rows of one head and walks K and V in tiles of {k.Bc} keys"
    return Sentence("tiles", f"{text}{walk}{products}.", "read", _spans(known.fact("tiles"), order))


def _products(qk: Fact | None, pv: Fact | None) -> str:
    names = [fact.value.split(",")[0] for fact in (qk, pv) if fact is not None]
    if len(names) < 2:
        return ""
    return f"; both products are {names[0]}" if names[0] == names[1] else f"; Q K^T is {names[0]}, P V {names[1]}"


def _arrival(known: Known) -> Iterator[Sentence]:
    ways = {t: fact for t in "qkv" if (fact := known.fact(f"copy:{t}")) is not None}
    grouped: dict[str, list[str]] = {}
    for tensor, fact in ways.items():
        details = [fact.value]
        ring = known.fact(f"shared:{tensor}")
        if ring is not None and "stages" in ring.value:
            details.append(f"through {ring.value.split(' of ')[0]}")
        ahead = known.fact(f"ahead:{tensor}")
        if ahead is not None and ahead.value != "in its own trip":
            details.append(ahead.value)
        grouped.setdefault(", ".join(details), []).append(tensor.upper())
    for how, names in grouped.items():
        verb = "arrives" if len(names) == 1 else "arrive"
        who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        yield Sentence("copies", f"{who} {verb} by {how}.", "read", _spans(*(ways[n.lower()] for n in names)))


def _waits(known: Known) -> Iterator[Sentence]:
    barriers, waits, signals = (known.fact(key) for key in ("barriers", "waits", "signals"))
    parts: list[str] = []
    if waits is not None:
        parts.append(f"waits {waits.value}")
    if signals is not None:
        parts.append(f"waits for {signals.value} mbarrier{'s' if signals.value != '1' else ''}")
    if barriers is not None:
        parts.append(f"passes {barriers.value} CTA barrier{'s' if barriers.value != '1' else ''}")
    if parts:
        yield Sentence(
            "copies", f"For each KV tile it {' and '.join(parts)}.", "read", _spans(barriers, waits, signals)
        )


def _spans(*facts: Fact | None) -> tuple[Span, ...]:
    return tuple(dict.fromkeys(span for fact in facts if fact is not None for span in fact.spans))

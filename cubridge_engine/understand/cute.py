"""What the calls of a tensor library show of a kernel, as rows and as words on what is not known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ..diagnostics import Span
from ..lift.cute import CuteReading, CuteStep
from .model import Fact, Sentence

_SHOWN = 3  # places of a header in a row


def cute_facts(found: CuteReading) -> tuple[Fact, ...]:
    """A row for each step: what its lines hold, and where in a header it is done."""
    return tuple(
        Fact(f"cute:{step.name}", step.words, _value(step), "read", tuple(chain[0] for chain in step.places))
        for step in found.steps
    )


def _value(step: CuteStep) -> str:
    far = [s for chain in step.places for s in chain[-1:] if s.path != chain[0].path]
    where = list(dict.fromkeys(_place(span) for span in far))
    if not where:
        return step.holds
    more = f" and {len(where) - _SHOWN} more" if len(where) > _SHOWN else ""
    return f"{step.holds}, done at {', '.join(where[:_SHOWN])}{more}"


def _place(span: Span) -> str:
    return f"{PurePath(span.path).name}:{span.line + 1}"


def cute_unknown(found: CuteReading) -> Iterator[Sentence]:
    """What stood in the way of labels."""
    for name, span in found.unknown:
        text = f"What {name} does to the tensors that it is given is not known; no label is based on them after it."
        yield Sentence("unknown", text, "read", (span,))
    if found.why and found.function:
        spans = () if found.span is None else (found.span,)
        yield Sentence("unknown", f"The calls of {found.function} give no labels: {found.why}.", "read", spans)
    if found.steps:
        text = "Its formula is not stated: labels by the calls of a tensor library are no program that can be executed."
        yield Sentence("unknown", text, "read")
        text = "Which instance is meant is not known: a branch on a template argument is labelled where it is compiled."
        yield Sentence("unknown", text, "read")

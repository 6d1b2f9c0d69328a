"""One kernel explained: sentences from what was read, from executing it, and from its contract, each with its lines.

A sentence is said only where what it rests on is known; `unknown` collects what is not, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..compile import Contract
from ..diagnostics import Diagnostic, Span
from ..ir.expr import free_vars
from ..ir.nodes import NOWHERE, Kernel, Opaque
from ..lift import Lifted
from ..lower import Header
from ..transfer.structure import walk_ops
from .cute import cute_facts, cute_unknown
from .differences import semantic_difference
from .facts import element_type, facts_of
from .function_sentences import function_sentences
from .known import Known, know
from .mathematics import equations_of
from .model import Explanation, Sentence
from .needs import need_sentences
from .schedule_sentences import schedule_sentences
from .trial import ALL, OUT_OF_BOUNDS
from .trial_sentences import tails, trial_sentences
from .words import mask_name

# Codes of lifting that say that something was not understood, or was assumed.
_NOT_UNDERSTOOD = frozenset({"CB123", "CB126", "CB110", "CB111", "CB112", "CB128"})
_ASSUMED = frozenset({"CB124", "CB125"})


def explain(
    lifted: Lifted,
    contract: Contract | None = None,
    diagnostics: Sequence[Diagnostic] = (),
    header: Header | None = None,
) -> Explanation:
    """Explain what was read. `diagnostics` are those of parsing (headers that were not found), `header` what the
    ``// cubridge:`` lines of an adapted kernel say. Never raises for what a file holds.
    """
    unknown = tuple(_unknown(lifted, diagnostics))
    kernel = lifted.kernel
    if kernel is None or not lifted.coverage.complete:
        return _partly(lifted, unknown, contract)
    known = know(kernel, contract)
    if known.function is None:
        reason = Sentence("unknown", f"What it computes is not stated: {known.why}.", "read", _span(kernel))
        unknown = (reason, *unknown)
    elif not known.behaviour.agrees(*ALL):
        unknown = (*_not_confirmed(known), *unknown)
    sentences = (
        *function_sentences(known),
        *schedule_sentences(known),
        *trial_sentences(known),
        *need_sentences(known, header),
    )
    equations = () if known.function is None else equations_of(known.function)
    return Explanation(kernel.name, title(known), equations, sentences, known.facts, unknown)


def title(known: Known) -> str:
    """``fwd: GQA attention forward; mask causal; float16, tiles 64x64, mma.sync m16n8k16``."""
    k, f = known.kernel, known.function
    if f is None:
        words = "reads like attention, its formula is not known"
    else:
        heads = "GQA " if "Hkv" in free_vars(f.head_map) else ""
        kind = "attention" if f.normaliser == "softmax" else "attention without softmax"
        reads = "reads like " if known.contradicted else ""
        words = f"{reads}{heads}{kind} forward; mask {mask_name(f)}"
    product = next((fact.value.split(",")[0] for fact in known.facts if fact.key == "product:qk"), "")
    parts = [element_type(k), f"tiles {k.Br}x{k.Bc}", product]
    return f"{k.name}: {words}; {', '.join(part for part in parts if part)}"


def _partly(lifted: Lifted, unknown: tuple[Sentence, ...], contract: Contract | None) -> Explanation:
    """A kernel of which not every step was found: the steps, and no statement about its function."""
    kernel = lifted.kernel
    name = kernel.name if kernel is not None else lifted.choices[0] if len(lifted.choices) == 1 else "no kernel"
    marks = lifted.coverage.landmarks
    found = [m for m in marks if m.found]
    missing = [m for m in marks if not m.found]
    sentences: list[Sentence] = []
    if found:
        words = ", ".join(m.words for m in found)
        spans = tuple(m.span for m in found if m.span is not None)
        sentences.append(Sentence("function", f"Of attention, these steps were found: {words}.", "read", spans))
    reasons = [
        Sentence("unknown", f"{m.words} was not found" + (f": {m.why}" if m.why else "") + ".", "read") for m in missing
    ]
    facts = facts_of(kernel, contract) if kernel is not None else ()
    facts = (*facts, *cute_facts(lifted.cute))
    reasons += cute_unknown(lifted.cute)
    name = lifted.cute.function if kernel is None and lifted.cute.steps else name
    count = f"{len(found)} of {len(marks)} steps of attention" if marks else "no attention"
    how = "labelled by its library's calls" if lifted.coverage.labelled else "understood"
    return Explanation(name, f"{name}: {count} {how}", (), tuple(sentences), facts, (*reasons, *unknown))


def _unknown(lifted: Lifted, diagnostics: Sequence[Diagnostic]) -> Iterator[Sentence]:
    """Each region that was not understood, and each assumption that reading had to make."""
    seen: set[tuple[str, Span | None]] = set()  # an opaque operation has a diagnostic of its own beside it
    kernel = lifted.kernel
    opaque = [op for op in walk_ops(kernel.body) if isinstance(op, Opaque)] if kernel is not None else []
    for op in opaque:
        span = op.origin.shown
        seen.add((f"not understood: {op.why}", span))
        yield Sentence("unknown", f"Not understood: {op.why}.", "read", () if span is None else (span,))
    for d in (*lifted.diagnostics, *diagnostics):
        key = (d.message, d.span)
        if key in seen or d.code not in (_NOT_UNDERSTOOD | _ASSUMED):
            continue
        seen.add(key)
        spans = () if d.span is None else (d.span,)
        yield Sentence("assumed" if d.code in _ASSUMED else "unknown", f"{d.message}.", "read", spans)


def _not_confirmed(known: Known) -> Iterator[Sentence]:
    """Why executing the program did not confirm its formula everywhere."""
    seen, function = known.behaviour, known.function
    if seen.stopped:
        yield Sentence("unknown", f"The formula was read, not executed: {seen.stopped}.", "read", _span(known.kernel))
        return
    if function is not None:
        # The mask as stated, against where keys really count by the tiles that are visited and tested.
        for d in semantic_difference(function, replace(function, attended=function.mask), strict=True):
            if d.witness is not None:
                text = f"Its mask and the tiles that it visits or tests disagree, first at {d.witness.place}"
                spans = () if d.span is None else (d.span,)
                yield Sentence(
                    "unknown", f"{text}: {d.witness.found}, by its mask {d.witness.expected}.", "read", spans
                )
    # Lengths that it does not take are a sentence of their own; what goes wrong there needs no other.
    told = known.evidence == "executed" and any(s.topic == "tails" for s in tails(known))
    wrong = None if told else next((r for r in seen.runs if r.first is not None), None)
    if wrong is not None and wrong.first is not None:
        w = wrong.first
        text = f"Executed, it gives something else than this formula: at {w.place}, {w.found} instead of {w.expected}."
        yield Sentence("unknown", text, "executed", _span(known.kernel))
    for finding in dict.fromkeys(d for r in seen.runs for d in r.findings if not (told and d.code == OUT_OF_BOUNDS)):
        spans = () if finding.span is None else (finding.span,)
        yield Sentence("unknown", f"Executing it finds: {finding.message} ({finding.code}).", "executed", spans)


def _span(kernel: Kernel) -> tuple[Span, ...]:
    span = getattr(kernel, "origin", NOWHERE).span
    return () if span is None else (span,)

"""`explain`: one kernel in words and as mathematics. Runs in a worker process; needs no torch.

The result is kept by content (`before.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..diagnostics import Diagnostic, Span, make
from ..lift import Lifted, Seen, lift
from ..lower import parse_header
from ..results import Explained
from ..source import SourceFile
from ..understand.explain import explain
from ..understand.model import Explanation, Fact, Sentence
from ..verify.stages import Progress, Stages
from .before import STAGES, keep, look_up
from .common import diagnostic_dicts, exit_code
from .files import Options, contract_of, file_ref, lift_at, parse_kernel_file, read_file


def explain_kernel(
    kernel_path: str,
    options: Options | None = None,
    progress: Progress = lambda *_: None,
    *,
    watch: bool = False,
) -> Explained:
    """Explain a kernel file. `watch`: compile it, and run it in the simulator, too. Never raises for what it holds."""
    options = options or Options()
    kept = look_up(kernel_path, options.kernel_name, options.head_dim, watch)
    if kept is not None:
        return kept
    stages = Stages((*STAGES, *(["watch"] if watch else [])), progress)
    data, problems = read_file(kernel_path)
    if data is None:
        return _result(kernel_path, None, [*problems], stages, {})
    with stages.run("parse"):
        source = parse_kernel_file(kernel_path, data)
    diagnostics = list(source.diagnostics)
    other = unknown_name(source, options.kernel_name)
    if other is not None:
        return _result(kernel_path, data, [*diagnostics, other], stages, {})
    with stages.run("lift") as stage:
        lifted = lifted_for_reading(source, options)
        diagnostics.extend(d for d in lifted.diagnostics if d not in diagnostics)
        if not lifted.coverage.complete:
            stage.fail(lifted.coverage.sentence() or "no attention kernel was understood")
    with stages.run("explain") as stage:
        contract, problems = contract_of(kernel_path, lifted.kernel)
        header = parse_header(data.decode("utf-8", "replace"))
        explained = explain(lifted, contract, (*source.diagnostics, *source.missing), header)
        if not explained.equations:
            stage.fail("its function is not known")
    understood = bool(explained.equations)
    seen: dict[str, Any] = {}
    ran = not watch
    if watch:
        from ..understand.observed import with_watched  # rooms that reading does without
        from ..watch.merge import merged
        from .watched import run_watched

        watched = run_watched(kernel_path, data, lifted, contract, options, stages)
        whole = lifted.kernel if lifted.coverage.complete else None
        ran = watched.ran
        lifted = merged(lifted, watched)
        explained, wrong = with_watched(explained, watched, whole, lifted)
        diagnostics += [d.diagnostic() for d in wrong]
        agrees = False if wrong else True if any(s.topic == "agreement" for s in explained.sentences) else None
        if watched.function is not None:
            seen |= {"function": watched.function.name, "agrees": agrees}
        understood = understood or watched.function is not None
    table = _table(explained, lifted, kernel_path) | {"understood": understood, "watched": watch}
    table |= seen | {"coverage": lifted.coverage.sentence(), "steps": [_step(one, kernel_path) for one in lifted.seen]}
    result = _result(kernel_path, data, [*diagnostics, *problems], stages, table)
    headers = [(header.source.path, header.source.data) for header in source.headers]
    if ran:  # what stood in the way of a run (no compiler, a header) may be gone the next time
        keep(result, data, headers, options.kernel_name, options.head_dim, watch)
    return result


def unknown_name(source: SourceFile, name: str | None) -> Diagnostic | None:
    """CB025 where the file has no kernel of the name that was asked for."""
    names = [f.name for f in source.kernels()]
    if name is None or name in names:
        return None
    return make("CB025", source.span_of(0, 0), want=name, have=", ".join(names) or "none")


def lifted_for_reading(source: SourceFile, options: Options) -> Lifted:
    """The kernel lifted, without the places that only edits need where no other head dimension is asked for."""
    if options.head_dim is None:
        return lift(source, kernel=options.kernel_name, anchors=False)
    return lift_at(source, options.kernel_name, options.head_dim)


def lines_of(spans: Iterable[Span], path: str) -> tuple[tuple[int, int], ...]:
    """First and last lines of the places that lie in the file itself."""
    whole = os.path.realpath(path)
    return tuple(dict.fromkeys((s.line, s.end_line) for s in spans if os.path.realpath(s.path) == whole))


def _table(e: Explanation, lifted: Lifted, path: str) -> dict[str, Any]:
    return {
        "kernel_name": lifted.kernel.name if lifted.kernel is not None else None,
        "choices": lifted.choices,
        "title": e.title,
        "paragraph": e.paragraph,
        "equations": [{"part": q.part, "left": q.left, "text": q.text, "line": q.line} for q in e.equations],
        "sentences": [_sentence(s, path) for s in e.sentences],
        "facts": [fact_dict(f, path) for f in e.facts],
        "unknown": [_sentence(s, path) for s in e.unknown],
    }


def _sentence(s: Sentence, path: str) -> dict[str, Any]:
    return {
        "topic": s.topic,
        "text": s.text,
        "evidence": s.evidence,
        "lines": lines_of(s.spans, path),
        "lead": s.lead,
    }


def _step(one: Seen, path: str) -> dict[str, Any]:
    lines = lines_of((one.span, *one.also), path)
    return {
        "name": one.name,
        "words": one.words,
        "holds": one.holds,
        "line": next(iter(lines_of((one.span,), path)), (None,))[0],
        "lines": lines,
        "confidence": one.confidence,
        "problem": one.problem,
        "read": one.read,
    }


def fact_dict(f: Fact, path: str) -> dict[str, Any]:
    """A row as JSON."""
    return {"key": f.key, "name": f.name, "value": f.value, "evidence": f.evidence, "lines": lines_of(f.spans, path)}


def _result(
    path: str, data: bytes | None, diagnostics: list[Diagnostic], stages: Stages, table: dict[str, Any]
) -> Explained:
    return Explained.model_validate(
        {
            "command": "explain",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": tuple(stages.done),
            "exit_code": max(exit_code(diagnostics), 0 if table.get("understood") else 1),
            "kernel": file_ref(path, data),
            **table,
        }
    )

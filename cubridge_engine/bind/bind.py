"""``bind``: how to call a kernel, found in the file around it, by its launcher, by its names, or asked for.

The ways are tried in the order of model.SOURCES. A call that was found is tried in the simulator; one whose output is
attention is taken, else the search goes on. What nobody knows is a question, as data.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from ..compile import Contract, contract_beside, parse_arch, read_contract
from ..compile.alone import Alone, AloneOptions, compiled_alone
from ..compile.search import build_of, usual_dirs
from ..diagnostics import Diagnostic, Severity, Span, make
from ..source import SourceFile, parse, with_includes
from ..source.settings import find_settings
from . import codes as codes
from .assemble import Assembled, Candidate, assemble, candidates_for
from .elsewhere import launch_elsewhere
from .hints import is_backward
from .instances import expression_of
from .launch import launches_of
from .model import Binding, BindOptions, Fact, Question
from .recorder import files_of
from .signature import Signature, signature_of
from .told import Told, told_in_answers, told_in_comments
from .trial import Trial, problem_for, rows_written, try_contract
from .ways import Way, by_launch, by_names, by_recording

HEADER_SECONDS = 2.0  # for reading the file's own headers
Progress = Callable[[str, float, str], None]


@dataclass(slots=True)
class _Search:
    """The state of one search."""

    source: SourceFile
    home: SourceFile  # the file that the kernel is in
    kernel: Signature
    options: BindOptions
    told: tuple[Told, ...]
    alone: AloneOptions
    deadline: float
    progress: Progress
    cancel: Callable[[], bool]
    compiled: dict[str, Alone] = field(default_factory=dict[str, Alone])
    notes: list[Diagnostic] = field(default_factory=list[Diagnostic])
    problems: list[Diagnostic] = field(default_factory=list[Diagnostic])

    @property
    def over(self) -> bool:
        """True when the time is up or the caller has had enough."""
        return time.monotonic() > self.deadline or self.cancel()

    def compile(self, expression: str, candidate: Candidate | None = None) -> Alone:
        """The PTX of one instance; that of the candidate's own way where it compiled the file."""
        if candidate is not None and candidate.ptx:
            lowered = {candidate.instance.expression: candidate.ptx_name}
            self.compiled[expression] = Alone(
                self.source.path, self.alone.arch, "nvcc", candidate.ptx, lowered, (), (), (), (), (), ()
            )
        if expression not in self.compiled:
            named = (expression,) if "<" in expression or self.kernel.templates else ()
            self.compiled[expression] = compiled_alone(
                self.source.path, self.source.data, replace(self.alone, expressions=named)
            )
        return self.compiled[expression]


def _quiet(stage: str, fraction: float, message: str) -> None:
    """Progress for a caller that shows none."""


def bind(
    path: str | Path,
    data: bytes | None = None,
    options: BindOptions | None = None,
    *,
    progress: Progress = _quiet,
    cancel: Callable[[], bool] = lambda: False,
) -> Binding:
    """Find out how to call a kernel of the file at `path` (its text is `data` where that is given).

    Never raises for what the user wrote: see ``Binding.questions`` and ``Binding.diagnostics`` (CB623 to CB632, and
    those of compiling). User code runs only with ``options.record``.
    """
    options = options or BindOptions()
    file = Path(path)
    try:
        data = file.read_bytes() if data is None else data
    except OSError as error:
        return _nothing(str(path), make("CB615", Span(str(path), *[0] * 6), path=str(path), reason=str(error.strerror)))
    settings = find_settings(file)
    chosen = options.kernel or options.answers.get("kernel", "") or _word(settings.table, "kernel")
    beside = _contract_beside(file, chosen) if not options.ignore_contract else None
    if beside is not None:
        return beside
    folders = (*options.include_dirs, *build_of(file, settings.table, settings.folder).include_dirs, *usual_dirs(file))
    source = with_includes(parse(str(path), data), search=[str(folder) for folder in folders], budget_s=HEADER_SECONDS)
    picked = _kernel(source, chosen)
    if isinstance(picked, Binding):
        return picked
    home, kernel = picked
    told = (told_in_answers(options.answers, kernel), told_in_comments(source, kernel))
    arch = parse_arch(options.arch)
    alone = AloneOptions(
        options.arch if arch is not None else "sm_80", (), options.include_dirs, options.defines, settings.table,
        settings.folder,
    )  # fmt: skip
    search = _Search(source, home, kernel, options, told, alone, time.monotonic() + options.seconds, progress, cancel)
    search.problems += [*settings.diagnostics, *told[0].diagnostics, *told[1].diagnostics]
    return _search(search, _instantiation(settings.table, kernel.name))


def _kernel(source: SourceFile, chosen: str) -> tuple[SourceFile, Signature] | Binding:
    """The kernel and the file that it is in; a binding that asks for it, or says that there is none."""
    name = Path(source.path).name
    found = [(file, k) for file in files_of(source) for k in file.kernels()]
    names = list(dict.fromkeys(k.name for _, k in found))
    if chosen and chosen not in names:
        if any(re.search(rb"\b" + re.escape(chosen.encode()) + rb"\b", file.data) for file in files_of(source)):
            # A macro declares it: its launcher may still tell how it is called.
            return source, Signature(chosen, chosen, (), (), source.span_of(0, 0))
        return _nothing(source.path, make("CB624", None, path=name, name=chosen, available=", ".join(names) or "none"))
    if not found:
        return _nothing(source.path, make("CB623", Span(source.path, *[0] * 6), path=name))
    if not chosen and len(names) > 1:
        likely = list(dict.fromkeys(k.name for file, k in found if _is_likely(signature_of(file, k))))
        likely = [one for one in likely if not is_backward(one)] or likely
        if len(likely) != 1:
            text = f"{name} has several kernels: which one is the attention?"
            return Binding(source.path, "", None, (), (Question("kernel", "", text, tuple(likely or names)),), ())
        chosen = likely[0]
    file, function = next((file, k) for file, k in found if not chosen or k.name == chosen)
    return file, signature_of(file, function)


def _word(table: Mapping[str, object], key: str) -> str:
    value = table.get(key, "")
    return value if isinstance(value, str) else ""


def _instantiation(table: Mapping[str, object], kernel: str) -> tuple[str, ...]:
    """Template arguments that cubridge.toml gives a kernel: ``[instantiation]`` ``kernel = ["__half", 64]``."""
    rows = table.get("instantiation", {})
    given = cast("Mapping[str, object]", rows).get(kernel, ()) if isinstance(rows, dict) else ()
    return tuple(str(v).lower() if isinstance(v, bool) else str(v) for v in given) if isinstance(given, list) else ()


def _is_likely(kernel: Signature) -> bool:
    """Three tensors in and one out, or a struct that may hold them."""
    pointers = sum("*" in a.kind for a in kernel.arguments)
    return pointers >= 4 or (len(kernel.arguments) == 1 and kernel.arguments[0].kind == "struct")


def _nothing(path: str, *diagnostics: Diagnostic) -> Binding:
    return Binding(path, "", None, (), (), diagnostics)


def _contract_beside(file: Path, kernel: str) -> Binding | None:
    beside = contract_beside(file)
    if beside is None:
        return None
    contract, problems = read_contract(beside)
    if contract is None:
        return Binding(str(file), "", None, (), (), problems)
    if kernel and kernel != contract.name:
        return None
    where = beside.name
    rows = [("kernel", contract.name), ("grid", ", ".join(contract.grid))]
    rows += [("block", ", ".join(map(str, contract.block))), ("shared", contract.dynamic_shared_bytes)]
    rows += [("instance", f"{i.expression} ({i.dtype}, D = {i.head_dim})") for i in contract.instances]
    rows += [(f"parameter {p.name}", p.role) for p in contract.parameters]
    facts = tuple(Fact(what, value, "contract", where) for what, value in rows)
    return Binding(str(file), contract.name, contract, facts, (), problems)


# ---- the search


@dataclass(slots=True)
class _Best:
    """The best that was found so far, for when nothing is right."""

    untrue: tuple[Assembled, Trial] | None = None
    untried: tuple[Assembled, str] | None = None
    incomplete: Assembled | None = None


def _search(search: _Search, instantiation: tuple[str, ...]) -> Binding:
    best = _Best()
    for candidate in _candidates(search, instantiation):
        if search.over and (best.untrue or best.untried or best.incomplete):
            break
        made = assemble(search.home, search.kernel, candidate, search.told)
        if made.contract is None:
            if best.incomplete is None or len(made.open) < len(best.incomplete.open):
                best.incomplete = made
            continue
        if not search.options.trial:
            return _found(search, made, None)
        trial, reason = _tried(search, made)
        guessed = candidate.source == "name"
        clean = trial is not None and not any(f.severity >= Severity.ERROR for f in trial.findings)
        if trial is not None and trial.ok and (clean or not guessed):
            return _found(search, _refined(search, made, trial), trial)
        if trial is not None and (best.untrue is None or trial.error < best.untrue[1].error):
            best.untrue = (made, trial)
        if trial is None and best.untried is None:
            best.untried = (made, reason)
    return _fallback(search, best)


def _candidates(search: _Search, instantiation: tuple[str, ...]) -> Iterator[Candidate]:
    said = next((t.launch["instance"] for t in search.told if "instance" in t.launch), "")
    expression = said or (expression_of(search.kernel, instantiation) if instantiation else "")
    dim = next((int(t.launch["dim"]) for t in search.told if "dim" in t.launch), 0)
    way = Way(search.source, search.home, search.kernel, expression, dim)
    search.progress("bind", 0.1, "reading launches in the file")
    yield from by_launch(way)
    if search.options.record:
        search.progress("bind", 0.3, "compiling and calling the host launcher")
        left = max(search.deadline - time.monotonic(), 5.0)
        yield from by_recording(way, search.alone, search.options.answers, search.notes, left)
    search.progress("bind", 0.6, "trying what names suggest")
    if not search.kernel.arguments:
        return  # a macro declares it: there are no names
    first = way.first_expression()
    compiled = search.compile(first) if first else None
    yield from by_names(way, compiled, search.told, lambda candidate: _probed(search, candidate))


def _tried(search: _Search, made: Assembled) -> tuple[Trial | None, str]:
    """A trial of an assembled contract; without one, why."""
    contract, candidate = made.contract, made.candidate
    assert contract is not None, "only what is complete is tried"
    compiled = search.compile(candidate.instance.expression, candidate)
    if compiled.ptx is None:
        errors = [d for d in compiled.diagnostics if d.severity >= Severity.ERROR]
        return None, f"it does not compile alone: {errors[0].message if errors else 'no message'}"
    name = _name_in(compiled, candidate, contract)
    if name is None:
        return None, f"{candidate.instance.expression} is not in the compiled file"
    size = problem_for(contract, candidate.instance, contract.gqa)
    if size is None:
        return None, "no small problem meets its conditions"
    search.progress("bind", 0.7, f"trying {candidate.where}")
    trial = try_contract(contract, candidate.instance, compiled.ptx, name, size, cancel=lambda: search.over)
    if trial.refused:
        return None, trial.refused[0].message
    if search.over and not trial.ok:
        return None, "the time was up"
    return trial, ""


def _probed(search: _Search, candidate: Candidate) -> int:
    """Rows of O that a launch with one CTA on an axis writes; 0 where it cannot be told."""
    made = assemble(search.home, search.kernel, candidate, search.told)
    compiled = search.compile(candidate.instance.expression, candidate)
    if made.contract is None or compiled.ptx is None or search.over:
        return 0
    name = _name_in(compiled, candidate, made.contract)
    if name is None:
        return 0
    return rows_written(made.contract, candidate.instance, compiled.ptx, name, lambda: search.over)


def _name_in(compiled: Alone, candidate: Candidate, contract: Contract) -> str | None:
    expression = candidate.instance.expression
    plain = expression.split("::")[-1]
    for key in (expression, plain):
        if key in compiled.lowered:
            return compiled.lowered[key]
    names = [n for n in compiled.kernels if n == candidate.ptx_name or contract.name in n]
    return names[0] if len(names) == 1 else None


def _refined(search: _Search, made: Assembled, trial: Trial) -> Assembled:
    """The contract with what the trial showed: mask, units of LSE, where the scale lives, conditions on the lengths."""
    contract = made.contract
    assert contract is not None, "it was tried"
    facts = [*made.facts, Fact("function", trial.text(), "trial", "output compared with a reference")]
    parameters = contract.parameters
    if trial.lse == "" and any(p.role == "lse" for p in contract.leaves):
        swap = {"role": "scratch", "elements": "B * H * Sq"}
        parameters = tuple(replace(p, **swap) if p.role == "lse" else p for p in parameters)  # type: ignore[arg-type]
    if trial.scale == "passed * ln 2":
        parameters = tuple(replace(p, role="scale_log2") if p.role == "scale" else p for p in parameters)
    contract = replace(contract, parameters=parameters, masks=(trial.mask,), lse=trial.lse or "none")
    contract = replace(contract, scale=_scale_words(contract, trial), summary=trial.text().partition(", max")[0])
    contract = _flagged(search, made, contract, facts)
    contract = _ragged(search, made, contract, facts)
    return replace(made, contract=contract, facts=tuple(facts))


def _scale_words(contract: Contract, trial: Trial) -> str:
    roles = {p.role for p in contract.leaves}
    if "scale_log2" in roles:
        return "scale_log2 = scale * log2(e)"
    return "on the scores" if "scale" in roles else f"{trial.scale}, fixed in the kernel or by its caller"


def _flagged(search: _Search, made: Assembled, contract: Contract, facts: list[Fact]) -> Contract:
    """What a causal flag turns on, by a second trial."""
    if not any(p.role == "flag:causal" for p in contract.leaves):
        return contract
    trial = _again(search, made, contract, {}, causal=1)
    if trial is None or not trial.ok or trial.mask in contract.masks:
        return contract
    facts.append(Fact("function", f"with the flag: {trial.text()}", "trial", "output compared with a reference"))
    return replace(contract, masks=(*contract.masks, trial.mask))


def _ragged(search: _Search, made: Assembled, contract: Contract, facts: list[Fact]) -> Contract:
    """Lengths that are no multiple of the tile, tried: a kernel that reads past them must not be given such."""
    if any("%" in text for text in contract.requires):
        return contract
    trial = _again(search, made, contract, {"Sq": 83, "Sk": 83})
    if trial is None or (trial.ok and not any(f.severity >= Severity.ERROR for f in trial.findings)):
        return contract
    rows = [f"{name} % {tile} == 0" for name, tile in (("Sq", contract.br), ("Sk", contract.bc)) if tile > 1]
    extra = tuple(rows or ["Sq % 32 == 0"])
    facts += [Fact("requires", row, "trial", "lengths 83: out of bounds or wrong") for row in extra]
    return replace(contract, requires=(*contract.requires, *extra))


def _again(
    search: _Search, made: Assembled, contract: Contract, sizes: Mapping[str, int], causal: int = 0
) -> Trial | None:
    candidate = made.candidate
    compiled = search.compile(candidate.instance.expression, candidate)
    name = _name_in(compiled, candidate, contract)
    problem = problem_for(contract, candidate.instance, contract.gqa)
    if search.over or compiled.ptx is None or name is None or problem is None:
        return None
    problem |= sizes
    return try_contract(
        contract, candidate.instance, compiled.ptx, name, problem, causal=causal, cancel=lambda: search.over
    )


# ---- the answer


def _found(search: _Search, made: Assembled, trial: Trial | None) -> Binding:
    extra = [d for d in (trial.findings if trial is not None else ()) if d.severity >= Severity.ERROR]
    notes = [make("CB629", d.span, message=d.message) for d in extra[:1]]
    if trial is not None and not trial.ok:
        span = search.kernel.span
        notes.append(make("CB626", span, kernel=search.kernel.name, error=f"{trial.error:.3g}"))
    compiled = search.compiled.get(made.candidate.instance.expression)
    return Binding(
        search.source.path,
        search.kernel.name,
        made.contract,
        made.facts,
        (),
        (*search.problems, *search.notes, *notes, *_found_headers(compiled)),
        compiled,
        trial.text() if trial is not None else "",
    )


def _fallback(search: _Search, best: _Best) -> Binding:
    """Nothing computes attention: what is complete is shown with a warning, what is open is asked."""
    if best.untrue is not None and best.untrue[0].candidate.source != "name":
        return _found(search, *best.untrue)
    if best.untried is not None and best.untried[0].candidate.source != "name":
        made, reason = best.untried
        found = _found(search, made, None)
        warned = make("CB632", search.kernel.span, reason=reason)
        return replace(found, diagnostics=(*found.diagnostics, warned))
    return _asked(search, best)


def _asked(search: _Search, best: _Best) -> Binding:
    kernel = search.kernel
    facts = best.incomplete.facts if best.incomplete is not None else ()
    open_ = list(best.incomplete.open) if best.incomplete is not None else []
    questions: list[Question] = []
    by_name = {a.name: a for a in kernel.arguments}
    for item in open_:
        what, _, name = item.partition(" ")
        if what == "role" and name in by_name:
            argument = by_name[name]
            text = f"what is {argument.ctype} {name} of {kernel.name}?"
            questions.append(Question("role", name, text, candidates_for(name, argument.kind), argument.span))
        elif what in _LAUNCH_QUESTION:
            questions.append(Question(what, "", _LAUNCH_QUESTION[what].format(kernel=kernel.name), (), kernel.span))
    reason = ", ".join(open_) or "no launch that was tried computes attention"
    compiled = next(iter(search.compiled.values()), None)
    failed = [d for d in (compiled.diagnostics if compiled is not None else ()) if d.severity >= Severity.ERROR]
    if compiled is not None and compiled.ptx is None and failed:
        reason = f"{reason}; and it does not compile alone"
    if not questions:
        texts = {w: _LAUNCH_QUESTION[w].format(kernel=kernel.name) for w in ("grid", "block")}
        questions = [Question(w, "", text, (), kernel.span) for w, text in texts.items()]
    problem = make("CB625", kernel.span, kernel=kernel.name, open=reason)
    notes = (*search.notes, *_launched(search), *_found_headers(compiled))
    return Binding(
        search.source.path, kernel.name, None, facts, tuple(questions),
        (*search.problems, problem, *failed[:3], *notes), compiled,
    )  # fmt: skip


def _launched(search: _Search) -> tuple[Diagnostic, ...]:
    """Where else in the project the kernel is launched, if it is not in the file."""
    kernel = search.kernel
    if any(launches_of(file, kernel.name) for file in files_of(search.source)):
        return ()
    place = launch_elsewhere(Path(search.source.path), kernel.name)
    if place is None:
        return ()
    near = os.path.relpath(place[0])
    file, line = str(place[0]) if near.startswith("..") else near, place[1] + 1
    return (make("CB635", kernel.span, kernel=kernel.name, file=file, line=line),)


def _found_headers(compiled: Alone | None) -> tuple[Diagnostic, ...]:
    """One note of what compiling found by itself: headers, flags."""
    words = compiled.found if compiled is not None else ()
    start = Span(compiled.path, *[0] * 6) if compiled is not None else None
    return (make("CB634", start, found="; ".join(words)),) if words else ()


_LAUNCH_QUESTION = {
    "instance": "which instance of {kernel} is it (its template arguments, as {kernel}<...>)?",
    "grid": "how many CTAs is {kernel} launched with (three size expressions, such as cdiv(Sq, 64),H,B)?",
    "block": "how many threads has a CTA of {kernel} (such as 128)?",
    "shared": "how many bytes of dynamic shared memory has a CTA of {kernel}?",
}

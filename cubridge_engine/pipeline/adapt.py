"""`adapt`: a kernel and a spec in, an adapted and verified kernel out. Runs in a worker process."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from ..diagnostics import Diagnostic, Severity, Span, make
from ..ir.anchors import Anchors
from ..ir.nodes import Kernel
from ..lower import Hunk, Lowered, identifiers, lower, read_back, unified_diff, with_header
from ..results import Adaptation, DerivedResult, HunkResult, Report
from ..source import Flat, SourceFile, flatten, overlay
from ..spec.dropin import DropIn
from ..transfer import TransferResult, transfer
from ..verify.bindings import Given, bind_kernel
from ..verify.contracts import extended
from ..verify.levels import applicability
from ..verify.run import Verified, has_error, verify
from ..verify.stages import Progress, Stages
from ..verify.subject import Subject, VerifyOptions
from .common import Loaded, diagnostic_dicts, exit_code, load, without_scales
from .drop_ins import derived_results, make_drop_in
from .files import Options, file_ref, parse_kernel_file, stale
from .header import below_header, build_lines, inputs_lines, report_lines
from .inherited import inherited
from .offers import offer
from .several import (
    Several,
    by_line,
    changed_files,
    encoding_of,
    hunk_result,
    located,
    relative,
    shared_headers,
    stale_headers,
    taken_apart,
)
from .widths import lift_at, widths_of_kernel

STAGES = ("parse", "lift", "spec", "transfer", "lower", "read back", "ir", "compile", "simulate", "gpu")


class _Job:
    """One adaptation as it goes: what is known so far, and the result at any point. `flat`: the kernel's text with its
    headers, where these may change too; the file at `kernel_path` then reads as that text.
    """

    def __init__(
        self,
        kernel_path: str,
        spec_path: str,
        options: Options,
        checks: VerifyOptions,
        progress: Progress,
        flat: Flat | None = None,
    ):
        self.kernel_path, self.spec_path = kernel_path, spec_path
        self.options, self.checks = options, checks
        self.stages = Stages(STAGES, progress)
        self.diagnostics: list[Diagnostic] = []
        self.loaded: Loaded | None = None
        self.lowered: Lowered | None = None
        self.bindings: dict[str, float | int] = {}
        self.verified: Verified | None = None
        self.text: bytes | None = None
        self.drop_in: DropIn | None = None
        self.derived: tuple[DerivedResult, ...] = ()
        self.flat = flat
        self.several: Several | None = None

    def run(self) -> None:
        """All stages; returns early where one fails."""
        loaded = load(self.kernel_path, self.spec_path, self.options, self.checks.archs, self.stages, self.diagnostics)
        self.loaded = loaded
        if loaded is None or loaded.lifted is None or loaded.attention is None or loaded.failed:
            return
        begun = len(self.stages.done), len(self.diagnostics)
        for moves in _MOVES:
            del self.stages.done[begun[0] :], self.diagnostics[begun[1] :]
            self.lowered, self.text, self.several = None, None, None
            done = self._changed(loaded, moves)
            if done is not None:
                result, lowered, kernel = done
                if moves != _MOVES[0]:
                    self.diagnostics.append(make("CB037", loaded.lifted.kernel.origin.span, kernel=kernel.name))
                self._verify(loaded, result, lowered, kernel)
                return
            if not _range_is_why(self.diagnostics[begun[1] :]):
                return

    def _changed(self, loaded: Loaded, moves: tuple[bool, bool]) -> tuple[TransferResult, Lowered, Kernel] | None:
        """The adapted text, read back. `moves`: whether the KV loop may begin, and end, at another tile."""
        result = self._transfer(loaded, moves)
        if result is None:
            return None
        lowered = self._lower(loaded, result)
        if lowered is None:
            return None
        again = self._read_back(loaded, result, lowered)
        return None if again is None else (result, lowered, again)

    def _transfer(self, loaded: Loaded, moves: tuple[bool, bool]) -> TransferResult | None:
        assert loaded.attention is not None
        with self.stages.run("transfer") as stage:
            result = transfer(
                loaded.lifted.kernel,
                loaded.given,
                empty_rows=self.options.empty_rows,
                reserved=identifiers(loaded.source),
                tile_lists=_can_walk(loaded.lifted.anchors),
                pages=loaded.lifted.anchors.pages is not None,
                padded=loaded.padded,
                element_test=bool(loaded.lifted.anchors.mask),
                moves=moves,
                rules=self.options.rules,
            )
            self.diagnostics.extend(result.diagnostics)
            self.bindings = {**result.bindings, **self.options.bindings}
            if result.target is None:
                stage.fail("the spec was refused")
                return None
        return result

    def _lower(self, loaded: Loaded, result: TransferResult) -> Lowered | None:
        with self.stages.run("lower") as stage:
            lowered = lower(loaded.lifted, result, loaded.source, spec=self.spec_path)
            self.diagnostics.extend(lowered.diagnostics)
            if lowered.text is None or has_error(lowered.diagnostics):
                stage.fail("an edit has no safe place in the kernel's text")
                return None
            if self.flat is not None:
                self.several = taken_apart(self.flat, lowered.hunks, lowered.text)
                if self.several is None:
                    stage.fail("an edit is in no single file")
                    self.diagnostics.append(make("CB036", loaded.lifted.kernel.origin.span))
                    return None
            self.lowered = lowered
            self.text = lowered.text
        return lowered

    def _read_back(self, loaded: Loaded, result: TransferResult, lowered: Lowered) -> Kernel | None:
        """Lift the adapted text again; what it means must be what was asked for."""
        assert result.target is not None
        assert lowered.text is not None
        own = loaded.lifted.kernel

        def lift_text(text: bytes) -> tuple[Kernel | None, tuple[Diagnostic, ...]]:
            again = lift_at(parse_kernel_file(self.kernel_path, text), own.name, widths_of_kernel(own))
            return again.kernel, again.diagnostics

        with self.stages.run("read back") as stage:
            kernel, problems = read_back(lowered.text, result.target, self.bindings, lift_text, result.operands)
            self.diagnostics.extend(self._mapped(problems))
            if kernel is None or has_error(problems):
                stage.fail("the adapted text does not mean what was asked for")
                self.diagnostics.append(make("CB026", own.origin.span))
                return None
        return kernel

    def _verify(self, loaded: Loaded, result: TransferResult, lowered: Lowered, kernel: Kernel) -> None:
        assert loaded.attention is not None
        assert lowered.text is not None
        operands = {op.param: op.name for op in result.operands}
        given = Given(self.bindings, operands)
        bound = bind_kernel(kernel, loaded.attention, given)
        self.diagnostics.extend(self._mapped(bound.diagnostics))
        contract = extended(loaded.contract, kernel, operands) if loaded.contract is not None else None
        # The scale depends on the head dimension and is bound afresh from the spec there; switches are part of what
        # was adapted, and stay.
        switches = without_scales(self.bindings, kernel)
        others = loaded.at_head_dim(
            parse_kernel_file(self.kernel_path, lowered.text),
            lambda d: Given({**switches, **self.options.bindings}, operands),
            self.options,
        )
        self.drop_in, problems = make_drop_in(loaded, result.operands, self.bindings)
        self.diagnostics.extend(problems)
        self.derived = derived_results(loaded, result.operands, self.drop_in)
        subject = Subject(self.kernel_path, lowered.text, kernel, bound.binding, contract, others, self.drop_in)
        self.verified = verify(subject, loaded.attention, loaded.program, self.checks, self.stages)
        self.verified.diagnostics = self._mapped(self.verified.diagnostics)
        self.diagnostics.extend(self.verified.diagnostics)
        cases = self.verified.report.cases
        old = inherited(loaded.lifted.kernel, self.bindings, cases)
        self.diagnostics.extend(old)
        explained = {str(d.data["case"]) for d in old} >= {c.name for c in cases if c.level == "ir" and not c.passed}
        failed = any(s.name == "ir" and s.state == "failed" for s in self.stages.done)
        if self.verified.report.stages and failed and not (old and explained):
            self.diagnostics.append(make("CB026", loaded.lifted.kernel.origin.span))

    def _mapped(self, diagnostics: Any) -> list[Diagnostic]:
        """Diagnostics on the adapted text moved to the user's own lines."""
        if self.loaded is None or self.lowered is None:
            return list(diagnostics)
        return [moved(d, self.loaded.source, self.lowered.hunks) for d in diagnostics]


# Skipping tiles is a matter of speed: where it has no place in the text, the mask does what is needed.
_MOVES = ((True, True), (False, True), (False, False))


def _range_is_why(found: list[Diagnostic]) -> bool:
    """True where the text had no place to begin or end the loop over keys elsewhere."""
    errors = [d for d in found if d.severity is Severity.ERROR and d.code != "CB026"]
    return bool(errors) and all(
        d.data.get("rule") == "kv_range" or "prologue-matches-lo" in str(d.data.get("what")) for d in errors
    )


def _can_walk(anchors: Anchors) -> bool:
    """True when the text has what it takes to walk a list of tiles."""
    return anchors.kv_loop is not None and anchors.kv_loop.walk is not None


def moved(diagnostic: Diagnostic, source: SourceFile, hunks: tuple[Hunk, ...]) -> Diagnostic:
    """`diagnostic` with its span in the adapted text replaced by the place in the original that it grew from."""
    span = diagnostic.span
    if span is None or span.path != source.path:
        return diagnostic
    return replace(diagnostic, span=_original(span, source, hunks))


def _original(span: Span, source: SourceFile, hunks: tuple[Hunk, ...]) -> Span:
    start, end, shift = span.start, span.end, 0
    for hunk in sorted(hunks, key=lambda h: h.start):
        new = len(hunk.new.encode())
        begin = hunk.start + shift
        if span.start >= begin + new:
            shift += new - (hunk.end - hunk.start)
            continue
        if span.end > begin:
            # Inside new text: the place of the hunk, or the whole span if it only contains the hunk.
            inside = span.start >= begin
            start = hunk.start if inside else span.start - shift
            end = max(hunk.end, start)
            return source.span_of(start, end)
        break
    return source.span_of(start - shift, end - shift)


def adapt(
    kernel_path: str,
    spec_path: str,
    options: Options | None = None,
    checks: VerifyOptions | None = None,
    progress: Progress = lambda *_: None,
) -> Adaptation:
    """Adapt the kernel file to the spec file and verify the result. Never raises for what the files hold.

    Nothing is written. `text` and `hunks` of the result are for the bytes whose digest is `base_sha256`.
    """
    given = (kernel_path, spec_path, options or Options(), checks or VerifyOptions(), progress)
    job = _Job(*given)
    job.run()
    data = job.loaded.data if job.loaded is not None else None
    job = _in_headers_too(job, given)
    loaded = job.loaded
    if loaded is not None and loaded.attention is not None and job.text is None:
        job.diagnostics.extend(offer(loaded.attention, kernel_path, spec_path, job.diagnostics))
    if data is not None:
        job.diagnostics.extend(stale(kernel_path, data))
    if job.several is not None:
        job.diagnostics += [*shared_headers(job.several), *stale_headers(job.several)]
    return _result(job, data)


def _in_headers_too(job: _Job, given: tuple[str, str, Options, VerifyOptions, Progress]) -> _Job:
    """`job`, or where it found no place for an edit in the kernel's file, the same with its headers open to edits."""
    loaded = job.loaded
    if job.text is not None or loaded is None or (loaded.lifted is not None and loaded.attention is None):
        return job
    flat = flatten(loaded.source)
    if flat is None:
        return job
    again = _Job(*given, flat)
    with overlay({given[0]: flat.data}):
        again.run()
    again.diagnostics = [located(d, flat) for d in again.diagnostics]
    return again if _further(again) >= _further(job) else job


def _further(job: _Job) -> int:
    """How far a job came, as a number to compare."""
    return 2 if job.text is not None else 1 if job.loaded is not None and job.loaded.lifted is not None else 0


def _result(job: _Job, data: bytes | None) -> Adaptation:
    report = job.verified.report if job.verified is not None else None
    report = report.model_copy(update={"stages": tuple(job.stages.done)}) if report is not None else None
    failed = has_error(job.diagnostics)
    level = report.level if report is not None else _early_level(job)
    usable = applicability(level, failed, {d.code for d in job.diagnostics})
    if report is not None:
        report = report.model_copy(update={"applicability": usable})
    kernel = file_ref(job.kernel_path, data)
    spec = file_ref(job.spec_path, job.loaded.spec_data if job.loaded else None)
    several = job.several
    own = several.texts[several.main] if several is not None else job.text
    if report is not None and several is not None:
        report = by_line(report, several.after)
    adapted = _adapted(job, own, report, data) if own is not None and data is not None else None
    if report is not None and adapted is not None and own is not None:
        report = below_header(report, adapted.count(b"\n") - own.count(b"\n"))
    encoding = encoding_of(data or b"")
    files = changed_files(several) if several is not None else ()
    diff = unified_diff(kernel.name, data, adapted) if data is not None and adapted is not None else ""
    return Adaptation.model_validate(
        {
            "command": "adapt",
            "diagnostics": diagnostic_dicts(job.diagnostics),
            "stages": tuple(job.stages.done),
            "exit_code": exit_code(job.diagnostics),
            "level": level,
            "applicability": usable,
            "hunks": _hunks(job),
            "files": files,
            "report": report,
            "text": adapted.decode(encoding) if adapted is not None else None,
            "encoding": encoding,
            "diff": diff + "".join(f.diff for f in files),
            "drop_in": job.drop_in.text if job.drop_in is not None else None,
            "derived": job.derived,
            "bindings": dict(job.bindings),
            "kernel": kernel,
            "spec": spec,
            "kernel_name": job.loaded.lifted.kernel.name if job.loaded and job.loaded.lifted is not None else None,
            "base_sha256": hashlib.sha256(data or b"").hexdigest(),
        }
    )


def _early_level(job: _Job) -> str:
    return "lifted" if job.loaded is not None and job.loaded.lifted is not None else "none"


def _hunks(job: _Job) -> tuple[HunkResult, ...]:
    """The hunks of the kernel's own file."""
    if job.several is not None:
        file = job.several.before.files[job.several.main]
        return tuple(hunk_result(h, file) for h in job.several.hunks.get(job.several.main, ()))
    return tuple(hunk_result(h, job.loaded.source) for h in job.lowered.hunks) if job.lowered and job.loaded else ()


def _adapted(job: _Job, text: bytes, report: Report | None, data: bytes) -> bytes:
    """The adapted bytes with the header before them, in the file's own line ending."""
    assert job.lowered is not None
    built = build_lines(job.drop_in, job.options.drop_in) if job.drop_in is not None else []
    called = inputs_lines(job.loaded.lifted.kernel, job.loaded.attention) if job.loaded and job.loaded.attention else []
    headers = job.several.headers if job.several is not None else []
    with_it = [f"// cubridge: report changed with it: {', '.join(relative(h, job.kernel_path) for h in headers)}"]
    lines = (*job.lowered.header_lines, *called, *built, *report_lines(report), *(with_it if headers else ()))
    return with_header(text, lines, "\r\n" if b"\r\n" in data else "\n")

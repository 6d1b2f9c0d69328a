"""`adapt`: a kernel and a spec in, an adapted and verified kernel out. Runs in a worker process."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from ..diagnostics import Diagnostic, Span, make
from ..ir.anchors import Anchors
from ..ir.nodes import Kernel
from ..lower import Hunk, Lowered, identifiers, lower, read_back, unified_diff, with_header
from ..results import Adaptation, DerivedResult, HunkResult, Report
from ..source import SourceFile
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
from .widths import lift_at, widths_of_kernel

STAGES = ("parse", "lift", "spec", "transfer", "lower", "read back", "ir", "compile", "simulate", "gpu")


class _Job:
    """One adaptation as it goes: what is known so far, and the result at any point."""

    def __init__(self, kernel_path: str, spec_path: str, options: Options, checks: VerifyOptions, progress: Progress):
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

    def run(self) -> None:
        """All stages; returns early where one fails."""
        loaded = load(self.kernel_path, self.spec_path, self.options, self.checks.archs, self.stages, self.diagnostics)
        self.loaded = loaded
        if loaded is None or loaded.lifted is None or loaded.attention is None or loaded.failed:
            return
        result = self._transfer(loaded)
        if result is None:
            return
        lowered = self._lower(loaded, result)
        if lowered is None:
            return
        again = self._read_back(loaded, result, lowered)
        if again is None:
            return
        self._verify(loaded, result, lowered, again)

    def _transfer(self, loaded: Loaded) -> TransferResult | None:
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
    job = _Job(kernel_path, spec_path, options or Options(), checks or VerifyOptions(), progress)
    job.run()
    loaded = job.loaded
    if loaded is not None and loaded.attention is not None and job.text is None:
        job.diagnostics.extend(offer(loaded.attention, kernel_path, spec_path, job.diagnostics))
    data = loaded.data if loaded is not None else None
    if data is not None:
        job.diagnostics.extend(stale(kernel_path, data))
    return _result(job, data)


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
    adapted = _adapted(job, report, data) if job.text is not None and data is not None else None
    if report is not None and adapted is not None and job.text is not None:
        report = below_header(report, adapted.count(b"\n") - job.text.count(b"\n"))
    encoding = encoding_of(data or b"")
    return Adaptation.model_validate(
        {
            "command": "adapt",
            "diagnostics": diagnostic_dicts(job.diagnostics),
            "stages": tuple(job.stages.done),
            "exit_code": exit_code(job.diagnostics),
            "level": level,
            "applicability": usable,
            "hunks": tuple(_hunk(h, job.loaded.source) for h in job.lowered.hunks)
            if job.lowered and job.loaded
            else (),
            "report": report,
            "text": adapted.decode(encoding) if adapted is not None else None,
            "encoding": encoding,
            "diff": unified_diff(kernel.name, data, adapted) if data is not None and adapted is not None else "",
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


def _adapted(job: _Job, report: Report | None, data: bytes) -> bytes:
    """The adapted bytes with the header before them, in the file's own line ending."""
    assert job.lowered is not None
    assert job.text is not None
    built = build_lines(job.drop_in, job.options.drop_in) if job.drop_in is not None else []
    called = inputs_lines(job.loaded.lifted.kernel, job.loaded.attention) if job.loaded and job.loaded.attention else []
    lines = (*job.lowered.header_lines, *called, *built, *report_lines(report))
    return with_header(job.text, lines, "\r\n" if b"\r\n" in data else "\n")


def encoding_of(data: bytes) -> str:
    """How bytes become the text of a result without loss: UTF-8, or Latin-1 where the file is not UTF-8."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _hunk(hunk: Hunk, source: SourceFile) -> HunkResult:
    span = source.span_of(hunk.start, hunk.end)
    spec_line = hunk.spec_span.line if hunk.spec_span is not None else None
    return HunkResult(
        start=hunk.start, end=hunk.end, line=span.line, old=hunk.old, new=hunk.new, why=hunk.why, spec_line=spec_line
    )

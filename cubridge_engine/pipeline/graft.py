"""`adapt` for a kernel that reading does not understand: watched, changed where it was seen to hold its scores, and
verified in the simulator. Runs in a worker process, on the user's request (``--watch``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bind import BindOptions, bind
from ..compile import Compiled, Contract, contract_beside, read_contract
from ..compile.search import Build
from ..diagnostics import Diagnostic, Severity, make
from ..graft import Edited, FileEdit, Grafted, Refused, Understood, check_spec, contract_edit, edit, gate, understand
from ..graft.edit import types_of
from ..graft.inherited import Original
from ..ir.expr import Call, Const, Var
from ..lower import unified_diff, with_header
from ..lower.header import header_lines
from ..results import Adaptation, ChangedFile, HunkResult, Report
from ..results_base import Stage
from ..source import parse
from ..spec import read_spec
from ..spec.attention import Attention
from ..transfer.holes import reads_positions, visits_empty_tile
from ..transfer.model import Operand
from ..transfer.ranges import ROWS, Interval, key_range, uniform
from ..verify.stages import Progress, Stages
from ..verify.subject import VerifyOptions
from .common import diagnostic_dicts, exit_code
from .files import Options, file_ref, read_file, stale
from .header import report_lines

STAGES = ("spec", "watch", "places", "edit", "compile", "simulate", "gpu")
# Whether the last query is aligned with the last key -> what a causal kernel attends to.
_CAUSAL = {
    False: Call("le", (Var("j"), Var("i"))),
    True: Call("le", (Var("j"), Var("i") + Var("Sk") - Var("Sq"))),
}


class GraftJob:
    """One adaptation by watching, and what is known at any point of it: ``run`` it, then ask ``result_of``."""

    def __init__(self, kernel_path: str, spec_path: str, options: Options, checks: VerifyOptions, progress: Progress):
        self.kernel_path, self.spec_path = kernel_path, spec_path
        self.options, self.checks = options, checks
        self.stages = Stages(STAGES, progress)
        self.diagnostics: list[Diagnostic] = []
        self.data: bytes | None = None
        self.spec_data: bytes | None = None
        self.contract: Contract | None = None
        self.attention: Attention | None = None
        self.understood: Understood | None = None
        self.edited: Edited | None = None
        self.build = Build()  # settings of its project that are not found beside the kernel
        self.contract_file: FileEdit | None = None  # the contract beside the kernel, where that changes too
        self.report: Report | None = None

    def run(self) -> None:
        """All stages; stops where one refuses."""
        self.data, problems = read_file(self.kernel_path)
        self.diagnostics += problems
        self.spec_data, problems = read_file(self.spec_path)
        self.diagnostics += problems
        if self.data is None or self.spec_data is None:
            return
        with self.stages.run("spec") as stage:
            spec = read_spec(self.spec_path, **self.options.reading(), head_dim=self.options.head_dim)
            self.diagnostics += spec.diagnostics
            if spec.attention is None:
                stage.fail("the spec was not understood")
                return
        try:
            self.work(spec.attention, spec.program)
        except Refused as refused:
            self.diagnostics += [d for d in refused.diagnostics if d not in self.diagnostics]

    def work(self, attention: Attention, program: Any) -> None:
        """What is done with a spec that was understood. Raises Refused."""
        check_spec(attention)  # before minutes of watching
        contract = self.contract_for(attention)
        arch = (self.checks.archs or contract.archs)[0]
        self.contract, self.attention = contract, attention
        understood = understand(
            contract, Path(self.kernel_path), arch, self.stages, attention.sink is not None, self.build
        )
        self.understood = understood
        self.diagnostics.append(understood.note())
        with self.stages.run("edit") as stage:
            try:
                edited = _edited(understood, attention)
            except Refused as refused:
                stage.fail(refused.diagnostics[0].message)
                raise
        self.edited = edited
        if visits_in_vain(understood, attention):
            self.diagnostics.append(make("CB442", understood.note().span))
        beside = contract_beside(Path(self.kernel_path))
        self.contract_file = contract_edit(beside, edited.contract) if beside is not None else None
        before = list(self.stages.done)
        found = self._verify(understood, edited, attention, program)
        if _has_nan(found) and attention.mask is not None:
            found = self._with_finite_fill(understood, attention, program, before, found)
        self.diagnostics += found

    def _with_finite_fill(
        self, understood: Understood, attention: Attention, program: Any, before: list[Stage], found: list[Diagnostic]
    ) -> list[Diagnostic]:
        """Once more with a finite number for what is masked; kept where that is right, else all is as it was."""
        first, report, done = self.edited, self.report, self.stages.done
        self.edited = _edited(understood, attention, finite=True)
        self.stages.done = before
        again = self._verify(understood, self.edited, attention, program)
        if self.report is not None and self.report.applicability != "sketch":
            return [*again, make("CB440", understood.note().span)]
        self.edited, self.report, self.stages.done = first, report, done
        return found

    def contract_for(self, attention: Attention) -> Contract:
        """How the kernel is called. Raises Refused."""
        return graft_contract(self.kernel_path, self.data or b"", attention, self.options)

    def _verify(self, understood: Understood, edited: Edited, attention: Attention, program: Any) -> list[Diagnostic]:
        """The gate; what it found that is not known yet."""
        grafted, mirrors = self.grafted(understood, edited)
        span = understood.note().span
        self.report, found = gate(grafted, attention, program, self.checks, self.stages, span)
        return [d for one in found if (d := mapped(one, mirrors)) not in self.diagnostics]

    def grafted(self, understood: Understood, edited: Edited) -> tuple[Grafted, dict[str, str]]:
        """What the gate is asked about, and the folders that stand for the user's once it was compiled."""
        builder = replace(understood.builder, contract=edited.contract)
        mirrors: dict[str, str] = {}

        def compile_it(arch: str) -> Compiled:
            built = replace(builder, arch=arch or builder.arch).compile(
                {f.path: f.after for f in edited.files}, want=("ptx", "cubin")
            )
            mirrors.update(built.mirrors)
            return built.compiled

        text = next((f.after for f in edited.files if f.path == builder.path), self.data or b"")
        grafted = Grafted(
            self.kernel_path, text, compile_it, edited.contract, edited.scale, understood.base.causal,
            dict(edited.operands), Call("mul", (Var("s"), Const(edited.scale))),
            Original(understood.built.compiled, understood.builder.contract, self.data or b""),
        )  # fmt: skip
        return grafted, mirrors


def graft_contract(kernel_path: str, data: bytes, attention: Attention, options: Options) -> Contract:
    """How the kernel is called, for the widths of the spec. Raises Refused."""
    path = Path(kernel_path)
    beside = contract_beside(path)
    if beside is not None:
        contract, problems = read_contract(beside)
    else:
        bound = bind(kernel_path, data, BindOptions(kernel=options.kernel_name or ""))
        contract, problems = bound.contract, bound.diagnostics
    if contract is None or not contract.instances:
        why = "how it is called is not known: `cubridge contract` finds out, and asks what it cannot find"
        raise Refused(make("CB430", None, why=why), *problems)
    width = attention.specialised.get("D")
    fitting = tuple(i for i in contract.instances if width in (None, i.head_dim))
    if not fitting:
        have = ", ".join(str(d) for d in contract.head_dims)
        raise Refused(make("CB430", None, why=f"the spec has D = {width}, the kernel is made for D = {have}"))
    first = fitting[0].widths
    chosen = tuple(i for i in fitting if i.widths == first)
    return replace(contract, source=os.path.realpath(path), instances=chosen)


def _edited(understood: Understood, attention: Attention, finite: bool = False) -> Edited:
    """The hunks for a spec. Raises Refused."""
    contract = understood.builder.contract
    width = contract.instances[0].head_dim
    return edit(understood.sites, attention, contract, understood.texts, width, understood.row, finite)


def visits_in_vain(understood: Understood, attention: Attention) -> bool:
    """Whether tiles that the kernel goes through are empty under the mask of a spec, as far as positions tell."""
    mask, contract = attention.mask, understood.builder.contract
    if mask is None or reads_positions(mask):
        return False
    types = types_of(attention)
    interval: Interval = (None, None)
    if understood.base.mask != "full" or understood.base.causal:
        interval = uniform(key_range(_CAUSAL[understood.base.mask != "causal"], types, ROWS))
    return visits_empty_tile(mask, interval, attention, (contract.br, contract.bc), types)


def _has_nan(found: list[Diagnostic]) -> bool:
    return any(d.code == "CB720" and "got nan" in d.message for d in found)


def mapped(diagnostic: Diagnostic, mirrors: Mapping[str, str]) -> Diagnostic:
    """A finding in a mirrored file, named as the user's."""
    span = diagnostic.span
    for mirror, folder in mirrors.items():
        if span is not None and span.path.startswith(mirror + os.sep):
            return replace(diagnostic, span=replace(span, path=folder + span.path[len(mirror) :]))
    return diagnostic


def graft(
    kernel_path: str,
    spec_path: str,
    options: Options | None = None,
    checks: VerifyOptions | None = None,
    progress: Progress = lambda *_: None,
) -> Adaptation:
    """Adapt a kernel by watching it. Never raises for what the files hold; nothing is written."""
    job = GraftJob(kernel_path, spec_path, options or Options(), checks or VerifyOptions(), progress)
    job.run()
    if job.data is not None:
        job.diagnostics.extend(stale(kernel_path, job.data))
    return result_of(job)


def result_of(job: GraftJob) -> Adaptation:
    """What is known of a job, in the form of the contract."""
    failed = any(d.severity is Severity.ERROR for d in job.diagnostics)
    report = job.report
    if report is not None and failed:
        report = report.model_copy(update={"applicability": "sketch"})
    if report is not None:
        report = report.model_copy(update={"stages": tuple(job.stages.done)})
    data = job.data
    files = job.edited.files if job.edited is not None else ()
    main = os.path.realpath(job.kernel_path)
    own = next((f for f in files if str(f.path) == main), None)
    others = [f for f in files if f is not own]
    others += [job.contract_file] if job.contract_file is not None else []
    adapted = None
    if job.edited is not None and data is not None:
        newline = "\r\n" if b"\r\n" in data else "\n"
        adapted = with_header(own.after if own is not None else data, _header(job, report), newline)
    name = Path(job.kernel_path).name
    diffs = [unified_diff(name, data, adapted)] if data is not None and adapted is not None else []
    diffs += [unified_diff(_relative(f.path, main), f.before, f.after) for f in others]
    return Adaptation.model_validate(
        {
            "command": "adapt",
            "diagnostics": diagnostic_dicts(job.diagnostics),
            "stages": tuple(job.stages.done),
            "exit_code": exit_code(job.diagnostics),
            "level": report.level if report is not None else "none",
            "applicability": report.applicability if report is not None else "sketch",
            "evidence": "observed",
            "hunks": _hunks(own),
            "files": tuple(_changed(f, main) for f in others),
            "report": report,
            "text": adapted.decode("utf-8", "replace") if adapted is not None else None,
            "diff": "".join(diffs),
            "bindings": {"scale": job.edited.scale} if job.edited is not None else {},
            "kernel": file_ref(job.kernel_path, data),
            "spec": file_ref(job.spec_path, job.spec_data),
            "kernel_name": job.contract.name if job.contract is not None else None,
            "base_sha256": hashlib.sha256(data or b"").hexdigest(),
        }
    )


def _relative(path: Path, main: str) -> str:
    return os.path.relpath(path, os.path.dirname(main))


def _header(job: GraftJob, report: Report | None) -> tuple[str, ...]:
    """The comment at the top of the kernel's file: what it was adapted to, how it is called, what says so."""
    assert job.edited is not None
    spec = Path(job.spec_path).name
    lines = header_lines(spec, "", {"scale": repr(job.edited.scale)}, _operands(job))
    changed = [_relative(f.path, os.path.realpath(job.kernel_path)) for f in job.edited.files]
    observed = f"// cubridge: report observed, not read: changed by watching in {', '.join(changed)}"
    own = sum(d.code == "CB441" for d in job.diagnostics)
    but = (f"// cubridge: report but for {own} findings that the original has too",) if own else ()
    return (*lines, *report_lines(report), *but, observed)


def _operands(job: GraftJob) -> list[Operand]:
    """The extra tensors, which lie as they are: contiguous."""
    assert job.edited is not None
    assert job.attention is not None
    items = {item.name: item for item in job.attention.operands}
    return [
        Operand(name, param, items[name].dtype, items[name].axes, (), (), items[name].span)
        for param, name in job.edited.operands.items()
    ]


def _hunks(edit_of: FileEdit | None) -> tuple[HunkResult, ...]:
    if edit_of is None:
        return ()
    source = parse(str(edit_of.path), edit_of.before)
    out: list[HunkResult] = []
    for hunk in edit_of.hunks:
        line = hunk.spec_span.line if hunk.spec_span is not None else None
        at = source.span_of(hunk.start, hunk.end).line
        out.append(
            HunkResult(
                start=hunk.start, end=hunk.end, line=at, old=hunk.old, new=hunk.new, why=hunk.why, spec_line=line
            )
        )
    return tuple(out)


def _changed(file: FileEdit, main: str) -> ChangedFile:
    return ChangedFile(
        path=str(file.path),
        name=_relative(file.path, main),
        base_sha256=hashlib.sha256(file.before).hexdigest(),
        hunks=_hunks(file),
        text=file.after.decode("utf-8", "replace"),
        diff=unified_diff(_relative(file.path, main), file.before, file.after),
    )

"""`verify` for a kernel that reading does not understand, such as one that was adapted by watching: compiled and run in
the simulator as its contract says, over the whole grid of the spec. Runs on the user's request (``--watch``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..compile import Compiled, Contract
from ..diagnostics import Severity, Span, make
from ..graft import Builder, Grafted, Refused, gate
from ..graft.edit import scale_of
from ..lower import parse_header
from ..results import Verification
from ..spec.attention import Attention
from ..verify.stages import Progress, Stages
from ..verify.subject import VerifyOptions
from .check import header_values
from .common import diagnostic_dicts, exit_code
from .files import Options, file_ref, stale
from .graft import GraftJob, graft_contract, mapped

STAGES = ("spec", "compile", "simulate", "gpu")


class _Job(GraftJob):
    """A kernel as it is: nothing is looked for in its text, and nothing of it is changed."""

    def __init__(self, kernel_path: str, spec_path: str, options: Options, checks: VerifyOptions, progress: Progress):
        super().__init__(kernel_path, spec_path, options, checks, progress)
        self.stages = Stages(STAGES, progress)
        self.bindings: Mapping[str, float | int] = {}

    def work(self, attention: Attention, program: Any) -> None:
        """The gate alone. Raises Refused."""
        path = os.path.realpath(self.kernel_path)
        span = Span(self.kernel_path, 0, 0, 0, 0, 0, 0)
        contract = graft_contract(self.kernel_path, self.data or b"", attention, self.options)
        self.contract, self.attention = contract, attention
        operands = _operands(contract, attention, span)
        arch = (self.checks.archs or contract.archs)[0]
        builder = Builder(contract, Path(path), arch)
        mirrors: dict[str, str] = {}

        def compile_it(arch: str) -> Compiled:
            built = replace(builder, arch=arch or builder.arch).compile({}, want=("ptx", "cubin"))
            mirrors.update(built.mirrors)
            return built.compiled

        head_dim = contract.instances[0].head_dim
        header = parse_header((self.data or b"").decode("utf-8", "replace"))
        given = {**header_values(header, head_dim), **self.options.bindings}
        scale = float(given.get("scale", scale_of(attention, head_dim)))
        causal = bool(given.get("causal", 0))
        self.bindings = {"scale": scale, **({"causal": int(causal)} if "causal" in given else {})}
        grafted = Grafted(self.kernel_path, self.data or b"", compile_it, contract, scale, causal, operands, None)
        self.report, found = gate(grafted, attention, program, self.checks, self.stages, span)
        self.diagnostics += [d for one in found if (d := mapped(one, mirrors)) not in self.diagnostics]
        self.diagnostics.append(make("CB439", span))


def _operands(contract: Contract, attention: Attention, span: Span) -> dict[str, str]:
    """The spec's tensors by the parameters that take them. Raises Refused."""
    have = {
        leaf.role.removeprefix("operand:"): leaf.name for leaf in contract.leaves if leaf.role.startswith("operand:")
    }
    want = {item.name for item in attention.operands}
    for name in sorted(have.keys() ^ want):
        there, lacking = ("the spec", "contract") if name in want else ("the contract", "spec")
        raise Refused(make("CB430", span, why=f"{there} has the tensor {name}, and the {lacking} has not"))
    return {param: name for name, param in have.items()}


def verify_watched(
    kernel_path: str,
    spec_path: str,
    options: Options | None = None,
    checks: VerifyOptions | None = None,
    progress: Progress = lambda *_: None,
) -> Verification:
    """Verify a kernel without reading it. Never raises for what the files hold."""
    job = _Job(kernel_path, spec_path, options or Options(), checks or VerifyOptions(), progress)
    job.run()
    if job.data is not None:
        job.diagnostics.extend(stale(kernel_path, job.data))
    failed = any(d.severity is Severity.ERROR for d in job.diagnostics)
    report = job.report
    usable = report.applicability if report is not None and not failed else "sketch"
    if report is not None:
        report = report.model_copy(update={"stages": tuple(job.stages.done), "applicability": usable})
    return Verification.model_validate(
        {
            "command": "verify",
            "diagnostics": diagnostic_dicts(job.diagnostics),
            "stages": tuple(job.stages.done),
            "exit_code": exit_code(job.diagnostics),
            "level": report.level if report is not None else "none",
            "applicability": usable,
            "report": report,
            "bindings": dict(job.bindings),
            "kernel": file_ref(kernel_path, job.data),
            "spec": file_ref(spec_path, job.spec_data),
            "kernel_name": job.contract.name if job.contract is not None else None,
        }
    )

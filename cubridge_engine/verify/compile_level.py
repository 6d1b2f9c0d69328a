"""Level ``compiled``: NVRTC or nvcc and ptxas accept every instantiation, on every architecture asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..compile import Compiled, Contract, Instance, compile_contract, compile_source, shared_limit
from ..diagnostics import Diagnostic, Severity
from ..ir.nodes import Kernel
from ..results import CompiledResult

DEFAULT_ARCHS = ("sm_80", "sm_90")
NO_COMPILER = "CB600"
LINES = ("-lineinfo",)  # changes no instruction; the simulator needs it to name the user's lines


@dataclass(slots=True)
class CompileOutcome:
    """Figures per instantiation and architecture, findings, and why the level was not tried, if it was not."""

    results: list[CompiledResult] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """True when something was compiled and nothing went wrong."""
        return bool(self.compiled) and all(one.ok for one in self.compiled.values())


def run_compile(
    text: bytes,
    path: str,
    kernel: Kernel,
    contract: Contract | None,
    archs: Sequence[str],
    tick: Callable[[int, int, str], None],
    head_dims: Sequence[int] = (),
) -> CompileOutcome:
    """Compile the instantiations of the contract (those of `head_dims`, if given), or the kernel as lifted, for each
    architecture.
    """
    outcome = CompileOutcome()
    instances = chosen_instances(contract, head_dims)
    for done, arch in enumerate(archs):
        tick(done, len(archs), arch)
        if contract is not None:
            compiled = compile_contract(contract, text, arch=arch, instances=instances, path=path, options=LINES)
        else:
            compiled = compile_source(
                text, path=path, arch=arch, name_expressions=name_expressions(kernel), options=LINES
            )
        outcome.diagnostics.extend(d for d in compiled.diagnostics if d not in outcome.diagnostics)
        if any(d.code == NO_COMPILER for d in compiled.diagnostics):
            outcome.skipped = "no CUDA compiler was found"
            return outcome
        outcome.compiled[arch] = compiled
        outcome.results.extend(_figures(compiled, contract, instances, arch))
    return outcome


def chosen_instances(contract: Contract | None, head_dims: Sequence[int]) -> tuple[Instance, ...]:
    """The contract's instances for `head_dims`; all of them when none of these is in the contract."""
    if contract is None:
        return ()
    picked = tuple(i for i in contract.instances if not head_dims or i.head_dim in head_dims)
    return picked or contract.instances


def name_expressions(kernel: Kernel) -> tuple[str, ...]:
    """The C++ name of the instantiation that was lifted: ``name<__half, 64>``; nothing for a kernel that is no
    template.
    """
    values = [_spelled(value) for value in kernel.instantiation.values()]
    return (f"{kernel.name}<{', '.join(values)}>",) if values else ()


_SPELLINGS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "True": "true", "False": "false"}


def _spelled(value: int | str) -> str:
    return _SPELLINGS.get(str(value), str(value))


def _figures(
    compiled: Compiled, contract: Contract | None, instances: Sequence[Instance], arch: str
) -> list[CompiledResult]:
    dynamic = {i.expression: contract.dynamic_shared(i) for i in instances} if contract is not None else {}
    return [
        CompiledResult(
            instantiation=k.expression,
            arch=arch,
            registers=k.registers,
            spill_bytes=k.spill_loads + k.spill_stores,
            shared_bytes=k.shared_bytes + dynamic.get(k.expression, 0),
            shared_limit=shared_limit(arch),
            notes=compiled.notes,
        )
        for k in compiled.kernels
    ]


def has_errors(diagnostics: Sequence[Diagnostic]) -> bool:
    """True when one of them is an error."""
    return any(d.severity is Severity.ERROR for d in diagnostics)

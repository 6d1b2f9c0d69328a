"""What a compilation gives: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Diagnostic, Severity


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """What ptxas reports of one kernel: bytes per thread (spills, stack) and per CTA (`shared_bytes`, static only)."""

    name: str  # the lowered (mangled) name
    expression: str  # the name expression it was asked by, or its lowered name
    registers: int
    spill_loads: int
    spill_stores: int
    shared_bytes: int
    stack: int


@dataclass(frozen=True, slots=True)
class Raw:
    """What a backend returns, before its log is read. This is what the cache keeps."""

    ok: bool
    log: str
    ptx: str | None = None
    cubin: bytes | None = None
    lowered: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of ``compile_source``. When `ok` is False, `diagnostics` says why and ptx and cubin are None.

    `lowered` maps each name expression to the kernel's name in the module; kernels outside templates map to themselves.
    """

    arch: str
    backend: str  # 'nvrtc', 'nvcc' or '' when there is none
    compiler: str  # name and version
    ptx: str | None
    cubin: bytes | None
    lowered: dict[str, str] = field(hash=False)
    kernels: tuple[KernelFigures, ...]
    notes: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    cached: bool = False

    @property
    def ok(self) -> bool:
        """True when code was generated and no finding is an error."""
        generated = self.ptx is not None or self.cubin is not None
        return generated and all(d.severity < Severity.ERROR for d in self.diagnostics)

    def figures(self, expression: str) -> KernelFigures | None:
        """The figures of a kernel by name expression or lowered name."""
        return next((k for k in self.kernels if expression in (k.expression, k.name)), None)

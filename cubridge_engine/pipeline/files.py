"""Reading the two files of a job, parsing and lifting the kernel at the head dimension that the spec has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compile import Contract, shared_limit
from ..compile.contract import DTYPE_BYTES, evaluate_size
from ..diagnostics import Diagnostic, make
from ..ir.nodes import Kernel
from ..lift import lift
from ..results import FileRef
from ..source import SourceFile, parse, read_bytes
from ..verify.contracts import find_contract
from . import codes as codes


@dataclass(frozen=True, slots=True)
class Options:
    """Which kernel of the file, which entry and outputs of the spec, how it is called. `head_dim` None: the spec's."""

    entry: str = "attention"
    kernel_name: str | None = None
    head_dim: int | None = None
    bindings: Mapping[str, float | int] = field(default_factory=dict[str, "float | int"])
    empty_rows: str = "keep"
    time_limit: float = 20.0
    outputs: tuple[int, ...] | None = None
    drop_in: str = ""  # name of the drop-in's file, for the header of the adapted one

    def reading(self) -> dict[str, Any]:
        """What reading the spec is told."""
        return {"entry": self.entry, "time_limit": self.time_limit, "outputs": self.outputs}


def read_file(path: str) -> tuple[bytes | None, tuple[Diagnostic, ...]]:
    """The bytes of a file, or CB001."""
    try:
        return read_bytes(path), ()
    except OSError as error:
        return None, (make("CB001", path=path, why=error.strerror or str(error)),)


def file_ref(path: str, data: bytes | None) -> FileRef:
    """Name and digest of a file as it was read; the digest of nothing when it was not."""
    return FileRef(path=path, name=Path(path).name, sha256=hashlib.sha256(data or b"").hexdigest())


def stale(path: str, data: bytes) -> tuple[Diagnostic, ...]:
    """CB020 when the file no longer holds `data`."""
    now, _ = read_file(path)
    return () if now == data else (make("CB020", path=path),)


def parse_kernel_file(path: str, data: bytes) -> SourceFile:
    """Parse; never raises."""
    return parse(path, data)


def lift_at(source: SourceFile, kernel_name: str | None, head_dim: int | None) -> Any:
    """Lift, at `head_dim` where the kernel is a template over it. Returns the lift room's ``Lifted``."""
    lifted = lift(source, kernel=kernel_name)
    kernel = lifted.kernel
    if kernel is None or head_dim is None or head_dim == kernel.D:
        return lifted
    own = [name for name, value in kernel.instantiation.items() if value == kernel.D]
    if len(own) != 1:
        return lifted
    again = lift(source, kernel=kernel_name, instantiation={**kernel.instantiation, own[0]: head_dim})
    return again if again.kernel is not None and head_dim == again.kernel.D else lifted


def check_head_dim(kernel: Kernel, contract: Contract | None, want: int, arch: str) -> tuple[Diagnostic, ...]:
    """CB021 or CB022, with the bytes, when the kernel has no instantiation for head dimension `want`."""
    if contract is not None and want in contract.head_dims and want == kernel.D:
        return ()
    if contract is None:
        have = str(kernel.D)
        needed = tile_bytes(kernel, want)
        fits = want == kernel.D
    else:
        have = ", ".join(str(d) for d in contract.head_dims)
        sizes = {"D": want, "element_bytes": DTYPE_BYTES[contract.dtypes[0]]}
        needed = evaluate_size(contract.dynamic_shared_bytes, sizes)
        fits = False
    if fits:
        return ()
    limit = shared_limit(arch)
    span = kernel.origin.span
    if limit is not None and needed > limit:
        return (make("CB021", span, want=want, kernel=kernel.name, bytes=needed, arch=arch, limit=limit, have=have),)
    return (make("CB022", span, want=want, kernel=kernel.name, have=have, bytes=needed),)


def tile_bytes(kernel: Kernel, head_dim: int) -> int:
    """Bytes of the shared tiles if their width were `head_dim` where it is D now."""
    from ..ir.nodes import Alloc

    width = {"float32": 4}
    total = 0
    for op in kernel.body:
        if isinstance(op, Alloc) and op.space == "shared":
            columns = head_dim if op.cols == kernel.D else op.cols
            total += op.slots * op.rows * columns * width.get(op.dtype, 2)
    return total


def contract_of(path: str, kernel: Kernel | None) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """The contract of a kernel file."""
    return find_contract(Path(path), kernel) if kernel is not None else (None, ())

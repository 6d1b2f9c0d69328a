"""Reading the two files of a job, parsing and lifting the kernel at the head dimension that the spec has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compile import Contract
from ..diagnostics import Diagnostic, make
from ..ir.nodes import Kernel
from ..results import FileRef
from ..source import SourceFile, parse, read_bytes, with_includes
from ..verify.contracts import find_contract
from . import codes as codes
from .widths import lift_at as lift_at


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
    rules: tuple[str, ...] | None = None  # the only rules of transfer to apply; None: all of them

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
    """Parse, with the headers that it includes by quotes (as an editor holds them); never raises."""
    return with_includes(parse(path, data), read=lambda header: read_bytes(str(header)))


def contract_of(path: str, kernel: Kernel | None) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """The contract of a kernel file."""
    return find_contract(Path(path), kernel) if kernel is not None else (None, ())

"""The foreign kernels: one TOML each, a contract.toml with two more tables, ``foreign`` and ``key``.

``foreign``: package (of packages.PINS), source (a path in it) or text (a translation unit of ours that names an
instance of a kernel of its headers), home (files of the package whose innermost lines the labels are judged at, where
the kernel's own file has one line for all), family, arch, include, define, true_findings (code -> why it is true).
``key``: role -> starts of the lines that hold it, those with a ``!`` must be found (``file.h: start`` for a line of
another file). A kernel without a contract is bound by itself: those that are held out all are, and those that were held
out once and have been looked at since (family ``without contract``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cubridge_engine.compile import Contract
from cubridge_engine.compile.contract_file import parse_contract

from .packages import root_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Foreign:
    """One kernel. `contract` is None where it is to be bound."""

    name: str
    family: str
    held_out: bool
    kernel: str
    arch: str
    table: Mapping[str, Any]
    contract: Contract | None
    key: Mapping[str, tuple[str, ...]]

    def path(self) -> Path:
        """The file to look at, fetched when needed; a text of ours is written beside the package. Raises Missing."""
        root = root_of(self.table["package"])
        text = self.table.get("text")
        if text is None:
            return root / self.table["source"]
        path = root / f"cubridge_{self.name}.cu"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return path

    def include_dirs(self) -> tuple[Path, ...]:
        """Further include folders, as the package's build gives them."""
        return tuple(root_of(self.table["package"]) / folder for folder in self.table.get("include", ()))

    def contract_at(self, path: Path) -> Contract:
        """The contract, of the file at `path`."""
        assert self.contract is not None, "it is to be bound"
        return replace(self.contract, source=str(path))


def _read(file: Path) -> Foreign:
    table = tomllib.loads(file.read_text())
    own = table["foreign"]
    contract = None
    if "parameters" in table:
        contract, problems = parse_contract(file.read_text(), str(file))
        assert contract is not None, [d.message for d in problems]
    key = {role: tuple(starts) for role, starts in table.get("key", {}).items()}
    return Foreign(
        file.stem, own["family"], own.get("held_out", False), own.get("kernel", table.get("name", "")),
        own.get("arch", "sm_80"), own, contract, key,
    )  # fmt: skip


@cache
def kernels() -> dict[str, Foreign]:
    """All of them by name, the tuned ones first."""
    found = [_read(file) for file in sorted(HERE.glob("kernels/*.toml"))]
    return {one.name: one for one in sorted(found, key=lambda one: one.held_out)}

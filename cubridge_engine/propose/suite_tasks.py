"""Tasks of `cubridge eval`: those of a suite file, made ready in a folder of their own."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

DEFAULT = Path(__file__).parent / "suite" / "suite.toml"
# Which tasks of KernelBench are attention; read from its package where that is installed.
KERNELBENCH = "kernelbench"
KERNELBENCH_TASKS = (
    "level1/97_ScaledDotProductAttention.py",
    "level3/31_VisionAttention.py",
    "level3/43_MinGPTCausalAttention.py",
    "level3/44_MiniGPTBlock.py",
    "level3/50_ReLUSelfAttention.py",
)
BENCH_KERNEL = "flash_fwd_scalar"


class BadSuite(ValueError):
    """The suite cannot be read; says why in one clause."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel and a spec, as files. `entry`: the spec's function or class; `rules`: where rules are known to end."""

    name: str
    kernel: str
    spec: str
    entry: str
    rules: str


def tasks_of(suite: str, folder: Path) -> tuple[Task, ...]:
    """The tasks of a suite file, or of ``default`` (with KernelBench's, if its package is there), made in `folder`.

    Raises BadSuite.
    """
    path = DEFAULT if suite == "default" else Path(suite)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSuite(f"'{path}' cannot be read: {error.strerror or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSuite(f"'{path}' is no TOML: {error}") from None
    rows = table.get("task") or []
    changes = table.get("changes") or {}
    if not isinstance(rows, list) or not rows:
        raise BadSuite(f"'{path}' has no [[task]]")
    made = [_made(row, changes, path.parent, folder / str(n)) for n, row in enumerate(rows)]
    return (*made, *(_kernelbench() if suite == "default" else ()))


def _made(row: Mapping[str, Any], changes: Mapping[str, Any], base: Path, folder: Path) -> Task:
    name = str(row.get("name", "a task without a name"))
    try:
        kernel, spec = base / row["kernel"], base / row["spec"]
        text = kernel.read_text(encoding="utf-8")
        for change in row.get("change", []):
            old, new = (changes[change][key].lstrip("\n") for key in ("old", "new"))
            if text.count(old) != 1:
                raise BadSuite(f"task '{name}': the change '{change}' has no one place in {kernel.name}")
            text = text.replace(old, new)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernel.cu").write_text(text, encoding="utf-8")
        if (contract := kernel.with_name("contract.toml")).is_file():
            shutil.copy(contract, folder / "contract.toml")
        shutil.copy(spec, folder / spec.name)
    except KeyError as missing:
        raise BadSuite(f"task '{name}': {missing} is missing") from None
    except OSError as error:
        raise BadSuite(f"task '{name}': {error}") from None
    entry = str(row.get("entry", "attention"))
    return Task(name, str(folder / "kernel.cu"), str(folder / spec.name), entry, str(row.get("rules", "")))


def _kernelbench() -> tuple[Task, ...]:
    """KernelBench's attention tasks on a bundled kernel; none where its package is not installed."""
    found = importlib.util.find_spec(KERNELBENCH)
    roots = [Path(p) for p in (found.submodule_search_locations or ())] if found is not None else []
    from ..compile import bundled_contracts

    kernel = next((p.with_name("kernel.cu") for p in bundled_contracts() if p.parent.name == BENCH_KERNEL), None)
    if kernel is None:
        return ()
    files = [(name, path) for root in roots for name in KERNELBENCH_TASKS for path in sorted(root.rglob(name))]
    return tuple(Task(f"KernelBench {name}", str(kernel), str(path), "Model", "") for name, path in files)

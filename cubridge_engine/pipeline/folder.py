"""An adaptation as a folder of its own: every file that changes, and what these include."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..compile import contract_beside
from ..source import parse, with_includes


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written where: the kernel's own file, the texts that change (the kernel's first), and copies of what they
    need. `outside` are headers that are needed and lie elsewhere.
    """

    kernel: Path
    texts: dict[Path, bytes]
    copies: dict[Path, bytes]
    outside: tuple[str, ...] = ()


def plan_folder(output: Path, kernel: Path, text: bytes, others: dict[str, bytes]) -> Plan:
    """The files below `output`, by their names from the nearest folder that holds the kernel and all that changes.

    `text`: the kernel as it is to be; `others`: by path, further files as they are to be.
    """
    main = os.path.realpath(kernel)
    changed = {os.path.realpath(path): data for path, data in others.items()}
    root = os.path.commonpath([os.path.dirname(path) for path in (main, *changed)])
    target = {path: output / os.path.relpath(path, root) for path in (main, *changed)}
    texts = {target[main]: text} | {target[path]: data for path, data in changed.items()}
    copies: dict[Path, bytes] = {}
    outside: list[str] = []
    for path, data in _needed(kernel, text).items():
        if path in changed:
            continue
        if os.path.commonpath([root, path]) == root:
            copies[output / os.path.relpath(path, root)] = data
        else:
            outside.append(os.path.relpath(path, os.path.dirname(main)))
    return Plan(target[main], texts, copies, tuple(outside))


def _needed(kernel: Path, text: bytes) -> dict[str, bytes]:
    """The headers that the kernel includes by quotes, and the contract beside it, as they are."""
    source = with_includes(parse(str(kernel), text))
    needed = {os.path.realpath(header.source.path): header.source.data for header in source.headers}
    contract = contract_beside(kernel)
    return needed | ({os.path.realpath(contract): contract.read_bytes()} if contract is not None else {})

"""The contract.toml of a kernel that got new parameters: its change, made at once with that of the kernel."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ..compile import Contract, Field, Parameter, parse_contract
from ..compile.contract_text import contract_text
from ..lower import Hunk
from ..lower.hunks import apply_hunks, merge
from .model import FileEdit

_WHY = "contract"


def contract_edit(path: Path, after: Contract) -> FileEdit | None:
    """The change of the contract at `path` to the parameters of `after`; None where there is none to make.

    A few lines where the file is written as usual and reads back as wanted, else the whole text.
    """
    before = path.read_bytes()
    text = before.decode("utf-8")
    now, _ = parse_contract(text, str(path))
    if now is None or now.parameters == after.parameters:
        return None
    hunks = merge(_hunks(text, now, after))
    changed = apply_hunks(before, hunks)
    read, _ = parse_contract(changed.decode("utf-8"), str(path))
    if read is None or read.parameters != after.parameters:
        whole = contract_text(replace(now, parameters=after.parameters))
        hunks = (Hunk(0, len(before), text, whole, _WHY, 0, None),)
        changed = whole.encode()
    return FileEdit(path, before, changed, hunks)


def _hunks(text: str, now: Contract, after: Contract) -> list[Hunk]:
    out: list[Hunk] = []
    for old, new in zip(now.parameters, after.parameters, strict=False):
        if old != new:
            out += _struct(text, old, new)
    added = after.parameters[len(now.parameters) :]
    launch = re.search(r"^\[launch\]", text, re.M)
    if added and launch is not None:
        tables = "".join(f'[[parameters]]\nname = "{p.name}"\nrole = "{p.role}"\ntype = "{p.type}"\n\n' for p in added)
        out.append(_at(text, launch.start(), launch.start(), tables))
    return out


def _struct(text: str, old: Parameter, new: Parameter) -> list[Hunk]:
    """The size of a struct, and its new fields behind the last one."""
    named = re.search(rf'name\s*=\s*"{old.name}"', text)
    if named is None:
        return []
    size = re.compile(rf"\bbytes\s*=\s*({old.size})\b").search(text, named.end())
    last = re.compile(rf'name\s*=\s*"{_last(old).parameter.name}"[^}}]*\}}').search(text, named.end())
    if size is None or last is None:
        return []
    start = text.rfind("\n", 0, last.start()) + 1
    indent = re.match(r"[ \t]*", text[start:])
    fields = "".join(
        f",\n{indent[0] if indent else ''}{{ offset = {f.offset}, "
        f'name = "{f.parameter.name}", role = "{f.parameter.role}", type = "{f.parameter.type}" }}'
        for f in new.fields
        if f not in old.fields
    )
    return [_at(text, size.start(1), size.end(1), str(new.size)), _at(text, last.end(), last.end(), fields)]


def _last(parameter: Parameter) -> Field:
    return max(parameter.fields, key=lambda f: f.offset)


def _at(text: str, start: int, end: int, new: str) -> Hunk:
    """A hunk between two offsets of the text; hunks count bytes."""
    first, last = len(text[:start].encode()), len(text[:end].encode())
    return Hunk(first, last, text[start:end], new, _WHY, text.count("\n", 0, start), None)

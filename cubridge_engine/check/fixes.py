"""A fix is offered only when it works: the changed text is read again, the finding is gone, nothing new is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..compile import Contract, compile_contract
from ..diagnostics import Span
from ..lift import lift
from ..source import SourceFile, parse, with_includes
from .model import CheckConfig, Edit, Finding, Fix
from .run import check


def apply_fix(data: bytes, fix: Fix) -> bytes:
    """`data` with the edits of `fix`. Raises ValueError where they overlap or lie outside."""
    result, end = data, len(data)
    for edit in sorted(fix.edits, key=lambda e: (e.span.start, e.span.end), reverse=True):
        if not 0 <= edit.span.start <= edit.span.end <= end:
            raise ValueError("the edits of a fix overlap, or lie outside the file")
        result = result[: edit.span.start] + edit.text.encode() + result[edit.span.end :]
        end = edit.span.start
    return result


def fix_to_json(fix: Fix) -> dict[str, Any]:
    """A fix as plain data."""
    return {"title": fix.title, "edits": [{"span": asdict(e.span), "text": e.text} for e in fix.edits]}


def fix_from_json(value: Mapping[str, Any]) -> Fix:
    """The fix that `fix_to_json` wrote. Raises KeyError or TypeError for anything else."""
    return Fix(value["title"], tuple(Edit(Span(**e["span"]), e["text"]) for e in value["edits"]))


def verified(
    source: SourceFile,
    found: Finding,
    contract: Contract | None = None,
    config: CheckConfig | None = None,
    kernel: str | None = None,
    instantiation: Mapping[str, int | str] | None = None,
) -> bool:
    """True when the fix of `found` may be offered: the text it gives reads at least as far as before, has the finding
    no more, and no other that was not there. `kernel` is the one that the finding is about.
    """
    if found.fix is None or any(e.span.path != source.path for e in found.fix.edits):
        return False
    before = lift(source, kernel=kernel, instantiation=instantiation)
    known = Counter(f.code for f in check(source, before, contract, config).findings)
    try:
        text = apply_fix(source.data, found.fix)
    except ValueError:
        return False
    changed = with_includes(parse(source.path, text, previous=source))
    after = lift(changed, kernel=kernel, instantiation=instantiation, remember=False)
    left = Counter(f.code for f in check(changed, after, contract, config).findings)
    further = after.coverage.score >= before.coverage.score or before.kernel is None
    broken = len(changed.diagnostics) > len(source.diagnostics)
    # What watching shows, reading does not see: its fixes were executed before they came here.
    gone = found.method == "watching" or left[found.code] < known[found.code]
    return gone and further and not broken and all(n <= known[code] for code, n in left.items() if code != found.code)


def compiles(source: SourceFile, found: Finding, contract: Contract | None) -> bool:
    """True when the text that the fix gives compiles, where its contract says how and the text before it did."""
    if found.fix is None or contract is None or not contract.instances:
        return True
    arch = next(iter(contract.archs), "sm_80")
    texts = (source.data, apply_fix(source.data, found.fix))
    before, after = (
        compile_contract(contract, t, arch=arch, instances=contract.instances[:1], path=source.path, want=("ptx",))
        for t in texts
    )
    return before.ptx is None or after.ptx is not None

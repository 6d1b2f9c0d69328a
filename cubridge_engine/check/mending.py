"""What watching found, with the change that takes it away: tried by execution on the grid before it is offered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..diagnostics import Diagnostic, Related, Span, make
from . import repairs
from .fixes import apply_fix
from .launched import Launched
from .model import Finding, Fix
from .subject import Subject
from .trials import Failing, Repair, Watch, repair

_BARRIERS = {"CB516": "__syncthreads", "CB527": "__syncwarp"}
_OUTSIDE = ("CB513", "CB515")  # an index that is wrong may show as these
_WAIT = re.compile(r"wait\w*\s*<?\D*\d")
MOST_BARRIERS = 6
MOST_WAITS = 4


@dataclass(frozen=True, slots=True)
class Mender:
    """Looks for changes. `watch` says of a text whether it is right on the whole grid; `check_in` is called between
    two trials, and may raise where the job was cancelled.
    """

    launched: Launched
    read: Subject | None
    watch: Watch
    check_in: Callable[[], None]

    def wrong_numbers(self, found: Finding, failing: Failing, cases: int) -> Finding:
        """CB880 keeps its line and gets its fix; CB881 becomes CB883, at the line that the change is for."""
        said = found.diagnostic
        named = found.code == "CB880"
        mended = repair(failing, self.launched, self.watch, said.message, self.check_in, only_hinted=named)
        if mended is None:
            return found
        if named:
            there = said.span is not None and said.span.line == mended.span.line
            more = () if there else (Related(mended.span, f"a change here is enough: {mended.why}"),)
            changed = replace(said, related=(*said.related, *more, *_places(mended, "it changes this line")))
            return replace(found, diagnostic=changed, fix=mended.fix)
        change = mended.fix.title[0].lower() + mended.fix.title[1:]
        shown = said.message.split(";")[0]
        made = make(
            "CB883",
            mended.span,
            related=_places(mended, "this is changed"),
            shown=shown,
            count=cases,
            why=mended.why,
            change=change,
        )
        return Finding(made, found.kind, "certain", "watching", mended.fix)

    def access(self, found: Finding, failing: Failing | None) -> Finding:
        """A finding of the simulator, with the barrier, the wait or the index that takes it away."""
        said = found.diagnostic
        for fix, words in self._ordering(said):
            self.check_in()
            if self.watch(apply_fix(self.launched.data, fix)):
                at = min((e.span for e in fix.edits), key=lambda s: s.start)
                return replace(found, diagnostic=replace(said, related=(*said.related, Related(at, words))), fix=fix)
        if said.code not in _OUTSIDE or failing is None:
            return found
        mended = repair(failing, self.launched, self.watch, said.message, self.check_in, only_hinted=True)
        if mended is None:
            return found
        more = Related(mended.span, f"a change here is enough: {mended.why}")
        return replace(found, diagnostic=replace(said, related=(*said.related, more)), fix=mended.fix)

    def _ordering(self, said: Diagnostic) -> Iterator[tuple[Fix, str]]:
        """Barriers between two accesses, and waits that leave fewer copies in flight."""
        other = next((r.span for r in said.related if r.message.startswith("the other access")), None)
        if self.read is None or said.span is None:
            return
        call = _BARRIERS.get(said.code)
        if call is not None and other is not None and other.path == said.span.path:
            for first, second in ((other, said.span), (said.span, other)):
                fix = repairs.barrier_between(self.read, first, second, call)
                if fix is not None:
                    yield fix, f"a {call}() barrier here orders the two"
            for fix in repairs.barriers_before(self.read, said.span, MOST_BARRIERS, call):
                yield fix, f"a {call}() barrier here orders the two"
        if said.code in ("CB516", "CB517"):
            for wait in list(self._waits())[:MOST_WAITS]:
                fix = repairs.smaller_wait(self.read, wait)
                if fix is not None:
                    yield fix, "this wait leaves the copy in flight: one group fewer is enough"

    def _waits(self) -> Iterator[Span]:
        function = self.read.function if self.read is not None else None
        if self.read is None or function is None:
            return
        stack = [function.body]
        while stack:
            node = stack.pop()
            stack.extend(node.named_children)
            if node.type == "expression_statement" and _WAIT.search(self.read.source.text(node)):
                yield self.read.source.span(node)


def _places(mended: Repair, words: str) -> tuple[Related, ...]:
    return tuple(Related(span, words) for span in mended.others)

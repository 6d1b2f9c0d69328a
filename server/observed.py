"""What watching a kernel showed, beside what was read: steps of attention with the lines that hold them.

It is kept by the text that was watched, so that an undo brings it back; of another text it says nothing. It comes from
``cubridge.explain`` with ``watch``, or, when a file is opened, from the engine's own store of such results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cubridge_engine.diagnostics import diagnostic_from_json

from . import convert, diagnostics, engine, job, toml_notes
from .findings import Finding

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document
    from .engine import KernelView

MOST = 16  # texts of which it is kept
DISAGREES = "CB132"
ROOT = "observed"
# Step -> its label, and the phase that its mark and node have.
LABELS: Mapping[str, tuple[str, str]] = {
    "kv_loop": ("KV tiles", "setup"),
    "qk": ("S = Q·Kᵀ", "scores"),
    "score": ("S is capped or biased", "scores"),
    "mask": ("S is masked", "mask"),
    "row_max": ("m = max(m, rowmax S)", "softmax"),
    "correction": ("α = exp(m_old - m)", "softmax"),
    "exp": ("P = exp(S - m)", "softmax"),
    "row_sum": ("l = l·α + rowsum P", "softmax"),
    "rescale": ("O = O·α", "output"),
    "pv": ("O += P·V", "output"),
    "normalise": ("O = O / l", "store"),
    "store": ("O → global", "store"),
    "lse": ("LSE", "store"),
}
READ = {
    "agrees": "as it was read",
    "beside": "reading names a line nearby for it",
    "conflicts": "reading has another step here",
    "": "not known from reading",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that was observed: `line` is where its value is complete, `lines` all that hold it, 0-based."""

    name: str
    words: str
    holds: str
    line: int | None
    lines: tuple[tuple[int, int], ...]
    confidence: str
    problem: str
    read: str

    @property
    def label(self) -> str:
        """For a hint behind its line."""
        return f"{LABELS.get(self.name, (self.words, ''))[0]} (observed)"

    @property
    def card(self) -> str:
        """Markdown for a hover."""
        sure = "" if self.confidence == "certain" else f", {self.confidence}"
        return (
            f"**Observed{sure}**: {self.words}; the line holds {self.holds}, {READ.get(self.read, '')}  \n"
            f"_seen when it ran in the simulator: {self.problem}_"
        )

    def on(self, line: int) -> bool:
        """Whether the 0-based line holds it."""
        return any(first <= line <= last for first, last in self.lines)


@dataclass(frozen=True, slots=True)
class Observation:
    """One kernel of one text: `function` '' where its output is no known one; `agrees` as in the JSON contract."""

    kernel_name: str
    function: str
    coverage: str
    agrees: bool | None
    steps: tuple[Seen, ...]

    def at(self, line: int) -> list[Seen]:
        """Steps that the 0-based line holds."""
        return [one for one in self.steps if one.on(line)]

    def unread(self) -> list[Seen]:
        """Steps with a line that reading did not find."""
        return [one for one in self.steps if not one.read and one.line is not None]

    @property
    def level(self) -> str:
        """For the lens: that it was watched, and what came of it."""
        if self.agrees is not None:
            return "watched: agrees" if self.agrees else "watched: disagrees"
        return f"watched: {self.function}" if self.function else "watched: no function that is known"


@dataclass(slots=True)
class Observations:
    """By path and digest of the text, the newest last."""

    _kept: dict[tuple[str, str], Observation] = field(default_factory=dict[tuple[str, str], Observation])

    def put(self, path: str, sha: str, found: Observation) -> None:
        """Keep what was watched of a text."""
        self._kept.pop((path, sha), None)
        self._kept[path, sha] = found
        while len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]

    def of(self, document: Document) -> Observation | None:
        """What was watched of the present text."""
        return self._kept.get((document.path, convert.sha256(document.data))) if self._kept else None

    def of_view(self, document: Document, view: KernelView) -> Observation | None:
        """The same, of one kernel of the text."""
        found = self.of(document)
        return found if found is not None and found.kernel_name in (view.name, "") else None


def observation_of(result: Mapping[str, Any]) -> Observation | None:
    """What a result of `explain` says; None where the kernel was not watched."""
    if not result.get("watched") or not (result.get("steps") or result.get("function")):
        return None
    steps = tuple(
        Seen(
            s["name"], s["words"], s["holds"], s["line"], tuple((int(a), int(b)) for a, b in s["lines"]),
            s["confidence"], s["problem"], s["read"],
        )
        for s in result["steps"]
    )  # fmt: skip
    name = result.get("kernel_name") or ""
    return Observation(name, result.get("function", ""), result.get("coverage", ""), result.get("agrees"), steps)


def keep(ls: CubridgeServer, outcome: job.Outcome) -> None:
    """Show what an explanation observed; where it disagrees with reading, that is a finding."""
    if outcome.state != "done" or not outcome.base or not outcome.result.get("watched"):
        return
    sha = convert.sha256(outcome.base)
    _put(ls, outcome.kernel, sha, outcome.result, outcome.beside)


def _put(
    ls: CubridgeServer, path: str, sha: str, result: Mapping[str, Any], beside: tuple[tuple[str, str], ...]
) -> None:
    found = observation_of(result)
    if found is not None:
        ls.observed.put(path, sha, found)
    told = tuple(diagnostic_from_json(d) for d in result.get("diagnostics", ()) if d.get("code") == DISAGREES)
    found_out = Finding("explain", path, path, sha, sha, "", not told, told, beside=beside)
    diagnostics.publish(ls, ls.findings.put(found_out))
    ls.refresh_lenses()
    if ls.client.hint_refresh and ls.settings.inlay_hints:
        ls.workspace_inlay_hint_refresh(None)


async def opened(ls: CubridgeServer, uri: str) -> None:
    """A kernel was opened: what an earlier run observed of this very text is shown again. Nothing is run for it."""
    document = ls.documents.get(uri)
    if document is None or not uri.startswith("file:"):
        return
    sha = convert.sha256(document.data)
    result = await asyncio.to_thread(engine.kept_explanation, document.path)
    if result is not None and result["kernel"]["sha256"] == sha and ls.documents.get(uri) is document:
        _put(ls, document.path, sha, result, toml_notes.digests_beside(ls, document.path))

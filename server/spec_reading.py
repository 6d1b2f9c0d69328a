"""The command ``cubridge.readSpec``: run the spec in the worker to find out what it means; and what was found out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cubridge_engine.diagnostics import make

from . import convert, diagnostics, engine, job
from .findings import Finding
from .progress import job_progress

if TYPE_CHECKING:
    from .app import CubridgeServer

MAX_WORDS = 120


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the text with the digest `sha` means: `words` for a lens, '' when it was refused; `attention` as in
    docs/json-contract.md."""

    sha: str
    words: str
    attention: dict[str, Any]

    @property
    def dtype(self) -> str | None:
        """Element type of the example's Q."""
        return next((item["dtype"] for item in self.attention.get("inputs", ()) if item["role"] == "q"), None)

    @property
    def head_dim(self) -> int | None:
        """Head dimension of the example."""
        return (self.attention.get("specialised") or {}).get("D")


@dataclass(slots=True)
class Meanings:
    """The newest meaning of each spec, by path."""

    _kept: dict[str, Meaning] = field(default_factory=dict[str, Meaning])

    def put(self, path: str, meaning: Meaning) -> None:
        """Keep `meaning` in place of an older one."""
        self._kept[path] = meaning

    def of(self, path: str, sha: str) -> Meaning | None:
        """The meaning of exactly the text with this digest."""
        found = self._kept.get(path)
        return found if found is not None and found.sha == sha else None


async def read_spec(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.readSpec``: ``{state, message, spec, means, result}``."""
    uri = job.field_of(argument, "spec")
    if not isinstance(uri, str) or not convert.is_spec(uri):
        why = make("CB072", command="cubridge.readSpec", problem="`spec` is not the URI of a Python file")
        return _reply(job.refused(why), "", "")
    token = job.field_of(argument, "workDoneToken")
    outcome = await read(ls, convert.path_of(uri), token if isinstance(token, str) else None)
    job.tell(ls, outcome)
    meaning = ls.meanings.of(outcome.spec, convert.sha256(outcome.base))
    return _reply(outcome, uri, meaning.words if meaning else "")


def _reply(outcome: job.Outcome, uri: str, words: str) -> dict[str, Any]:
    return {
        "state": outcome.state,
        "message": outcome.message,
        "spec": uri,
        "means": words,
        "result": outcome.result or None,
    }


async def read(ls: CubridgeServer, path: str, token: str | None = None) -> job.Outcome:
    """Run the job; what it finds becomes diagnostics of the spec, and its meaning is kept."""
    if not ls.settings.trusted:
        return job.refused(make("CB071", job="read"))
    data = ls.documents.text(path).data
    if not data:
        return job.refused(make("CB075", name=convert.base_name(path), problem="it is missing, unreadable or empty"))
    with ls.running.current_task():
        try:
            async with job_progress(ls, f"Reading {convert.base_name(path)}", token) as progress:
                given = engine.JobInput("", path, {}, job.unsaved(ls, [path]))
                found = await job.work(ls, "read_spec", given, progress)
        except asyncio.CancelledError:
            return job.Outcome("cancelled", spec=path, base=data)
    if ls.documents.text(path).data != data:
        why = make("CB073", name=convert.base_name(path), job="reading it")
        return job.Outcome("stale", spec=path, base=data, diagnostics=(why,))
    attention: dict[str, Any] = found.result.get("attention") or {}
    sha = convert.sha256(data)
    if found.crashed:  # that says nothing about the spec: the message and the log do
        return job.Outcome("failed", spec=path, base=data, diagnostics=found.diagnostics)
    ls.meanings.put(path, Meaning(sha, words_of(attention), attention))
    changed = ls.findings.put(Finding("read", path, path, sha, sha, "", found.passed, found.diagnostics))
    diagnostics.publish(ls, changed)
    ls.refresh_lenses()
    return job.Outcome(
        "done" if found.passed else "refused", spec=path, base=data, result=found.result, diagnostics=found.diagnostics
    )


def words_of(attention: dict[str, Any]) -> str:
    """The engine's own line about a spec, short enough for a lens; '' when there is no attention."""
    if not attention:
        return ""
    words = str(attention["summary"])
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 1] + "…"

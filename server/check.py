"""The command ``cubridge.check``, and checks at each save: what reading and watching find in a kernel without a spec.

Checks at a save have a worker of their own: the user's jobs never wait for one, and a newer save ends an older check.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from . import convert, diagnostics, job, kernel_job
from .findings import Finding

if TYPE_CHECKING:
    from .app import CubridgeServer


async def check(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.check``. The findings become diagnostics; the reply carries them too."""
    outcome = await kernel_job.run(ls, "check", _with_expectation(ls, argument))
    keep(ls, outcome)
    job.tell(ls, outcome)
    words = sentence(outcome, watch=job.field_of(argument, "watch") is True)
    if outcome.state == "done" and not ls.client.diff_editor:
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Info, f"CuBridge: {words}."))
    return outcome.reply() | {"sentence": words}


def sentence(outcome: job.Outcome, *, watch: bool) -> str:
    """What a check found, in one sentence; '' where it did not come to its end. Where the kernel was to be watched and
    was not, that nothing was found means little: then the sentence says why."""
    if outcome.state != "done":
        return ""
    result = outcome.result
    count = len(result.get("findings", ()))
    found = "nothing was found" if count == 0 else f"{count} finding{'' if count == 1 else 's'}"
    if result.get("watched"):
        found += f" in {result['launches']} launches of {len(result['cases'])} cases"
    elif watch:
        told = {(item["code"], item["message"]) for item in result.get("findings", ())}
        others = [item for item in outcome.diagnostics if (item.code, item.message) not in told]
        why = [f"{item.code}: {item.message.rstrip('.')}" for item in others] + list(result.get("notes", ()))
        found += f" by reading; it was not run ({why[0].rstrip('.')})" if why else " by reading; it was not run"
    return f"{convert.base_name(outcome.kernel)}: {found}"


def keep(ls: CubridgeServer, outcome: job.Outcome) -> None:
    """Show what a check found until the kernel changes, or its contract or settings."""
    if outcome.state not in ("done", "refused") or not outcome.base:
        return
    sha = convert.sha256(outcome.base)
    # It is about the kernel alone, whatever it was compared with.
    path, told = outcome.kernel, outcome.diagnostics
    found = Finding("check", path, path, sha, sha, "", not told, told, beside=outcome.beside)
    diagnostics.publish(ls, ls.findings.put(found))


async def saved(ls: CubridgeServer, uri: str) -> None:
    """The kernel `uri` was saved: watch it, if the user wants that; a check of an older text ends."""
    if ls.settings.check_watch != "save" or not ls.settings.trusted:
        return
    running = ls.saves.pop(uri, None)
    if running is not None:
        running.cancel()
        await asyncio.wait([running])
    task = asyncio.ensure_future(_watch(ls, uri))
    ls.saves[uri] = task
    task.add_done_callback(lambda done: ls.saves.pop(uri, None) if ls.saves.get(uri) is done else None)


async def _watch(ls: CubridgeServer, uri: str) -> None:
    argument = _with_expectation(ls, {"kernel": uri, "watch": True})
    outcome = await kernel_job.run(ls, "check", argument, ls.watcher)
    keep(ls, outcome)
    if outcome.state == "failed":  # nobody waits for it: without a word, no finding would look like nothing wrong
        said = f"CuBridge: {convert.base_name(outcome.kernel)} was saved and could not be run: {outcome.message}"
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Warning, said))


def _with_expectation(ls: CubridgeServer, argument: Any) -> Any:
    """The argument, with what the settings expect of a kernel where it does not say so itself."""
    given = job.as_object(argument)
    if given is None or not ls.settings.check_expect or given.get("expect") or given.get("spec"):
        return argument
    return given | {"expect": ls.settings.check_expect}

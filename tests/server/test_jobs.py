"""Adapt and verify over a real connection and with the real worker: results, delivery, cancel, a killed worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from typing import Any

import psutil
import pytest
from lsprotocol import types as t
from pygls.exceptions import JsonRpcException

from .conftest import SENTENCE, SPECS, Session, Start, plain, until
from .test_reading import line_of, ready

ADAPTED_TO = "causal_bottom_right.py"  # the kernel's own mask: the cheapest adaptation there is
WINDOW = "gemma2_softcap_window.py"
QUICK = {"use_simulator": False}  # the level is not what these tests are about
SLOW_SPEC = """import pathlib
import time

pathlib.Path(__file__).with_suffix(".begun").touch()
time.sleep(600)


def attention(q, k, v):
    return q
"""

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


def workers(session: Session) -> list[psutil.Process]:
    """Worker processes below the session's server."""
    below = psutil.Process(session.server_pid).children(recursive=True)
    return [process for process in below if "cubridge_engine.jobs.worker" in " ".join(_argv(process))]


def _argv(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


async def busy(session: Session, command: str = "cubridge.adapt") -> asyncio.Future[Any]:
    """Start a job that never ends by itself; returns when the worker is in the spec, from where it answers nobody."""
    begun = session.folder / "slow.begun"
    begun.unlink(missing_ok=True)
    (session.folder / "slow.py").write_text(SLOW_SPEC)
    arguments: list[Any] = [{"kernel": session.uri, "spec": session.spec("slow.py")}]
    future = asyncio.ensure_future(
        session.client.workspace_execute_command_async(t.ExecuteCommandParams(command, arguments))
    )
    await until(begun.exists)
    assert not future.done()
    return future


async def test_adapt_gives_the_extension_text_edits_and_report(shared: Session) -> None:
    text = shared.open()
    shared.client.progress_reports["mine"] = []
    reply = await shared.command(
        "cubridge.adapt", spec=shared.spec(WINDOW), version=shared.version, workDoneToken="mine"
    )
    assert reply["state"] == "done", reply["message"]
    assert reply["delivered"] == "reply"
    result = reply["result"]
    assert result["level"] in ("ir", "compiled", "simulated", "gpu")
    assert result["schema_version"] == 1
    assert reply["edits"]
    lines = text.split("\n")
    for edit in sorted(reply["edits"], key=lambda item: item["range"]["start"]["line"], reverse=True):
        first, last = edit["range"]["start"]["line"], edit["range"]["end"]["line"]
        assert edit["range"]["start"]["character"] == 0
        lines[first:last] = edit["newText"].split("\n")[:-1]
    assert "\n".join(lines) == result["text"]
    stages = [getattr(report, "message", "") for report in shared.client.progress_reports["mine"]]
    said = [message for message in stages if message]
    assert len(said) >= 3
    assert said[:2] == ["start: starting the engine", "start: importing torch"]  # before anything slow begins
    assert shared.path.read_text() == text  # the file is the user's until Accept
    if result["level"] == "simulated":
        await _costs_are_shown_for_the_adapted_text_alone(shared, text, result["text"])


async def _costs_are_shown_for_the_adapted_text_alone(shared: Session, text: str, adapted: str) -> None:
    needle = "ldmatrix_x4(kf"

    async def hover(shown: str, needle: str) -> str:
        await shared.problems()  # waits for the reading of the present text
        return await shared.hover(line_of(shown, needle))

    assert "of instructions" not in await hover(text, needle), "the text that is open was not simulated"
    shared.change(adapted)  # as Accept does
    found = await hover(adapted, needle)
    cost = r"shared 64 KiB per CTA and KV tile, no bank conflict, [\d.]+ % of instructions, lanes 100 % active"
    assert re.search(cost, found), found
    assert "in the simulator" in found
    assert re.search(r"global .* per CTA, ", await hover(adapted, "lse[row] ="))
    shared.change(adapted + "\n// typed since")
    assert "of instructions" not in await hover(adapted, needle)


async def test_adapt_edits_in_place_only_with_confirmation(start: Start) -> None:
    async with start("modern") as session:
        text = session.open()
        asked: list[t.ApplyWorkspaceEditParams] = []

        @session.client.feature(t.WORKSPACE_APPLY_EDIT)
        def apply_edit(params: t.ApplyWorkspaceEditParams) -> t.ApplyWorkspaceEditResult:
            asked.append(params)
            return t.ApplyWorkspaceEditResult(applied=True)

        reply = await session.command("cubridge.adapt", spec=session.spec(WINDOW), options=QUICK)
        assert reply["state"] == "done", reply["message"]
        if reply["result"]["applicability"] == "sketch":
            assert reply["delivered"] == "file"  # nothing stands behind it: never an edit
            assert asked == []
            return
        assert reply["delivered"] == "edit"
        (change,) = asked[0].edit.document_changes or []
        assert isinstance(change, t.TextDocumentEdit)
        assert change.text_document.version == session.version
        notes = asked[0].edit.change_annotations or {}
        assert all(note.needs_confirmation for note in notes.values())
        assert all(isinstance(edit, t.AnnotatedTextEdit) for edit in change.edits)

        offered = [action for action in await session.actions(line_of(text, "for (int tile")) if action.data]
        assert len(offered) == 1
        assert offered[0].edit is None  # this client resolves: the edit is computed when it is asked for
        resolved = await session.client.code_action_resolve_async(offered[0])
        assert resolved.edit == asked[0].edit
        session.change(text + "\n// changed")
        assert not [action for action in await session.actions(line_of(text, "for (int tile")) if action.data]


async def test_verify_reports_a_difference_in_both_files_until_one_changes(shared: Session) -> None:
    text = shared.open()
    spec = shared.spec(WINDOW)
    reply = await shared.command("cubridge.verify", spec=spec)
    assert reply["state"] == "refused"
    found = [item for item in await shared.diagnostics() if str(item.code).startswith("CB7")]
    assert found
    related = [place for item in found for place in item.related_information or []]
    assert any(place.location.uri == spec for place in related)
    assert all(item.data and item.data["help"] for item in found if isinstance(item.data, dict))
    titles = [lens.command.title for lens in await shared.lenses() if lens.command]
    assert titles[SENTENCE].endswith(f"differs from {WINDOW}")
    shared.change(text + "\n")
    assert not [item for item in await shared.diagnostics() if str(item.code).startswith("CB7")]


async def test_an_unsupported_spec_is_explained_on_its_own_line(shared: Session) -> None:
    shared.open()
    bad = shared.folder / "broken.py"
    bad.write_text("import torch\n\nimport no_such_module\n\n\ndef attention(q, k, v):\n    return q\n")
    reply = await shared.command("cubridge.adapt", spec=bad.as_uri())
    assert reply["state"] == "refused"
    await until(lambda: bool(shared.client.diagnostics.get(bad.as_uri())))
    (item,) = shared.client.diagnostics[bad.as_uri()]
    assert str(item.code).startswith("CB2")
    assert item.range.start.line == 2
    bad.write_text("import torch\n")
    shared.client.workspace_did_change_watched_files(
        t.DidChangeWatchedFilesParams([t.FileEvent(bad.as_uri(), t.FileChangeType.Changed)])
    )
    await until(lambda: not shared.client.diagnostics[bad.as_uri()])


@pytest.mark.parametrize("way", ["request", "progress"])
async def test_cancel_kills_the_worker_at_once(start: Start, way: str) -> None:
    async with start("extension") as session:
        session.open()
        await ready(session)
        future = await busy(session)
        (worker,) = workers(session)
        began = time.perf_counter()
        if way == "request":
            (message,) = session.client.protocol._request_futures
            session.client.cancel_request(t.CancelParams(message))
        else:
            (token,) = session.client.progress_reports
            session.client.window_work_done_progress_cancel(t.WorkDoneProgressCancelParams(token))
        await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
        print(f"cancelled by {way} after {1000 * (time.perf_counter() - began):.0f} ms")
        if way == "progress":
            assert plain(await future)["state"] == "cancelled"
        else:
            with pytest.raises(JsonRpcException) as refused:
                await future
            assert refused.value.code == -32800  # RequestCancelled
        assert "```cuir" in await session.hover(line_of(session.path.read_text(), "for (int tile"))
        (reports,) = session.client.progress_reports.values()
        await until(lambda: reports[-1].kind == "end")


async def test_a_change_during_the_job_makes_its_result_stale(shared: Session) -> None:
    text = shared.open()
    shared.client.progress_reports["mine"] = []
    job = asyncio.ensure_future(shared.command("cubridge.adapt", spec=shared.spec(ADAPTED_TO), workDoneToken="mine"))
    await until(lambda: bool(shared.client.progress_reports["mine"]))
    shared.change(text + "\n// typed while the job ran\n")
    reply = await job
    assert reply["state"] == "stale"
    assert reply["message"].startswith("CB073: kernel.cu changed while adapt ran")
    assert reply["delivered"] == "nothing"
    old = await shared.command("cubridge.adapt", spec=shared.spec(ADAPTED_TO), version=1)
    assert old["state"] == "stale"


async def test_the_server_survives_a_killed_worker(start: Start) -> None:
    """The next job works; here for a client where no review is possible, which gets a new file and never an edit."""
    async with start("neovim") as session:
        text = session.open()
        await ready(session)
        future = await busy(session)
        (worker,) = workers(session)
        worker.kill()
        reply = plain(await future)
        assert reply["state"] == "failed"
        assert reply["message"].startswith("CB803")
        assert "its log is empty" in reply["message"]
        assert not session.client.diagnostics.get(session.uri), "the kernel did nothing wrong"
        assert not [lens for lens in await session.lenses() if lens.command and "differs" in lens.command.title]
        assert "```cuir" in await session.hover(line_of(text, "for (int tile"))

        again = await session.command("cubridge.adapt", spec=session.spec(ADAPTED_TO), options=QUICK)
        assert again["state"] == "done", again["message"]
        assert again["delivered"] == "file"
        written = session.folder / "kernel.causal_bottom_right.cu"
        assert written.read_text() == again["result"]["text"]
        assert session.client.shown_documents[0].uri == written.as_uri() == again["written"]
        assert session.path.read_text() == text


async def test_no_worker_outlives_the_server(start: Start) -> None:
    async with start("extension") as session:
        session.open()
        future = await busy(session)
        pids = [process.pid for process in workers(session)]
        assert pids
    future.cancel()  # never answered: the server is gone
    await until(lambda: not any(_alive(pid) for pid in pids))


def _alive(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_what_is_not_saved_is_adapted_as_the_editor_has_it(shared: Session) -> None:
    """Kernel and spec both: the files on disk would give another result, and stay as they are."""
    text = shared.open(shared.path.read_text().replace("const int lane", "const  int lane", 1) + "// not saved\n")
    spec = shared.folder / ADAPTED_TO
    saved = spec.read_text()
    spec.write_text("def attention(q, k, v):\n    return q +\n")
    item = t.TextDocumentItem(shared.spec(ADAPTED_TO), "python", 1, saved)
    shared.client.text_document_did_open(t.DidOpenTextDocumentParams(item))
    reply = await shared.command("cubridge.adapt", spec=shared.spec(ADAPTED_TO), options=QUICK)
    assert reply["state"] == "done", reply["message"]
    adapted = reply["result"]["text"]
    assert adapted.endswith("// not saved\n")
    assert "const  int lane" in adapted
    assert "const  int lane" not in shared.path.read_text()
    assert text.endswith("// not saved\n")
    identifier = t.TextDocumentIdentifier(shared.spec(ADAPTED_TO))
    shared.client.text_document_did_close(t.DidCloseTextDocumentParams(identifier))
    reply = await shared.command("cubridge.adapt", spec=shared.spec(ADAPTED_TO), options=QUICK)
    assert reply["state"] == "refused"  # closed: now the broken file on disk is the spec


async def test_a_kernel_that_is_no_file_yet_is_refused(shared: Session) -> None:
    shared.uri = "untitled:kernel.cu"
    shared.open("__global__ void k() {}\n")
    reply = await shared.command("cubridge.adapt", spec=shared.spec(ADAPTED_TO))
    assert reply["state"] == "refused"
    assert reply["message"].startswith("CB078: kernel.cu was never saved")


async def test_a_missing_spec_is_refused(shared: Session) -> None:
    shared.open()
    reply = await shared.command("cubridge.verify", spec=shared.spec("nowhere.py"))
    assert reply["state"] == "refused"
    assert reply["message"].startswith("CB075: nowhere.py cannot be read")
    for name in SPECS:
        os.unlink(shared.folder / name)
    reply = await shared.command("cubridge.verify")
    assert reply["message"].startswith("CB074")

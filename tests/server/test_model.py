"""Asking a model from an editor: not there until configured, agreed to before anything leaves, marked as proposed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from lsprotocol import types as t

from cubridge_engine.propose.suite_tasks import tasks_of
from server import capabilities, code_actions, settings
from tests.propose.conftest import MAXIMUM, RIGHT
from tests.propose.endpoint import KEY, Say, Scripted

from .conftest import Start

QUICK = {"use_gpu": False, "use_simulator": False, "archs": ["sm_80"]}


def with_task(folder: Path) -> None:
    """The kernel that rules cannot read, in place of the workspace's."""
    task = next(task for task in tasks_of("default", folder / "suite") if task.name == "maximum on integers")
    for name in ("kernel.cu", "contract.toml", "softcap.py"):
        (folder / name).write_text(Path(task.kernel).with_name(name).read_text())


def model(server: Scripted) -> dict[str, object]:
    """Settings of an editor."""
    return {"model.name": "scripted", "model.baseUrl": server.url, "model.rounds": 2}


@pytest.mark.slow
async def test_a_model_is_asked_where_the_rules_end_and_the_result_says_so(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBRIDGE_MODEL_API_KEY", KEY)
    with Scripted([Say(RIGHT)]) as server:
        async with start("extension", **model(server)) as session:
            with_task(tmp_path)
            session.open()
            spec = session.spec("softcap.py")
            line = next(n for n, text in enumerate(session.path.read_text().split("\n")) if "ordered_max(" in text)
            before = [action.title for action in await session.actions(line)]
            refused = await session.command("cubridge.adapt", spec=spec, options=QUICK)
            assert refused["state"] == "refused"
            after = {action.title: action for action in await session.actions(line)}
            offered = after["Ask the model 'scripted' to adapt this kernel to softcap.py"]
            assert not [title for title in before if "model" in title]
            assert offered.command is not None
            assert offered.command.command == "cubridge.askModel"

            silent = await session.command("cubridge.askModel", spec=spec, options=QUICK)
            assert silent["state"] == "refused"
            assert silent["message"].startswith("CB083")
            assert server.requests == []

            host = server.url.removeprefix("http://").removesuffix("/v1")
            reply = await session.command("cubridge.askModel", spec=spec, options=QUICK, consent=host)
            assert reply["state"] == "done", reply["message"]
            assert reply["result"]["proposed"]["host"] == host
            assert any(MAXIMUM.split("\n")[0] in edit["newText"] for edit in reply["edits"])
            apply = [action.title for action in await session.actions(line) if action.title.startswith("Apply")]
            assert apply == ["Apply the adaptation to softcap.py (level compiled, proposed by scripted)"]
        assert KEY in str(server.requests[0][1])


async def test_without_a_model_nothing_mentions_one(start: Start) -> None:
    async with start("extension") as session:
        session.open()
        actions = await session.actions(60)
        lenses = await session.lenses()
        shown = [action.title for action in actions] + [lens.command.title for lens in lenses if lens.command]
        assert shown
        assert not [title for title in shown if "model" in title.lower()]
        reply = await session.command("cubridge.askModel", spec=session.spec("causal_bottom_right.py"))
        assert reply["message"].startswith("CB042: no model is named")


def test_the_client_library_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, server.app, cubridge_engine.cli.main; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_of_a_model_come_flat_or_nested() -> None:
    flat = settings.merge(settings.Settings(), {"model.name": "m", "model.budgetSeconds": 5})
    nested = settings.merge(settings.Settings(), {"model": {"name": "m", "budgetSeconds": 5}})
    assert flat == nested
    assert (flat.model_name, flat.model_budget_seconds) == ("m", 5.0)
    assert settings.merge(settings.Settings(), {"model": {"name": 3}}).model_name == ""


def test_a_client_that_knows_the_tag_of_lsp_3_18_gets_it() -> None:
    tags = t.CodeActionTagOptions(value_set=[t.CodeActionTag.LlmGenerated])
    knows = t.ClientCapabilities(
        text_document=t.TextDocumentClientCapabilities(code_action=t.CodeActionClientCapabilities(tag_support=tags))
    )
    for client, expected in ((knows, [t.CodeActionTag.LlmGenerated]), (t.ClientCapabilities(), None)):
        ls = SimpleNamespace(client=capabilities.resolve(client))
        assert code_actions._tagged(ls, t.CodeAction("x")).tags == expected  # type: ignore[arg-type]

"""package.json, the extension's sources and the server say the same: commands, phases and colours, the walkthrough."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from server import app
from server.phases import PHASES, ROWS
from server.settings import Settings, snake

MANIFEST: dict[str, Any] = json.loads(Path("package.json").read_text())
CONTRIBUTES = MANIFEST["contributes"]
COMMANDS = {row["command"] for row in CONTRIBUTES["commands"]}
SOURCES = {path.name: path.read_text() for path in Path("extension/src").rglob("*.ts")}


def test_every_command_is_registered_and_only_those() -> None:
    registered = set(re.findall(r'^    "(cubridge\.\w+)":', SOURCES["extension.ts"], re.MULTILINE))
    assert registered == COMMANDS
    assert not COMMANDS & set(app.COMMANDS)  # two of one name would hide the server's from the editor


def test_every_phase_has_a_colour_and_a_step() -> None:
    colours = {row["id"].removeprefix("cubridge.phase.") for row in CONTRIBUTES["colors"]}
    listed = re.search(r"const PHASES = \[(.*?)\]", SOURCES["phaseMarks.ts"], re.DOTALL)
    assert listed is not None
    assert colours == set(PHASES) == set(re.findall(r'"(\w+)"', listed[1]))
    assert {row.phase for row in ROWS.values()} == set(PHASES)


def test_the_walkthrough_leads_to_what_exists() -> None:
    (walkthrough,) = CONTRIBUTES["walkthroughs"]
    assert 4 <= len(walkthrough["steps"]) <= 5
    for step in walkthrough["steps"]:
        assert Path(step["media"]["markdown"]).is_file()
        linked = re.findall(r"\(command:([\w.]+)\)", step["description"])
        completed = [event.removeprefix("onCommand:") for event in step["completionEvents"] if "onCommand" in event]
        assert linked
        assert set(linked) | set(completed) <= COMMANDS
    assert "!extension/walkthrough/*" in Path(".vscodeignore").read_text().splitlines()


def test_the_pictures_of_the_walkthrough_are_there_and_packed() -> None:
    shown: list[Path] = []
    for page in Path("extension/walkthrough").glob("*.md"):
        found = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
        assert all(len(words) > 20 for words, _ in found), "what a picture shows, for who does not see it"
        shown += [(page.parent / target).resolve() for _, target in found]
    assert len(shown) >= 3
    assert all(path.is_file() and path.parent == Path("docs/pictures").resolve() for path in shown)
    assert "!docs/pictures/*.png" in Path(".vscodeignore").read_text().splitlines()


def test_titles_of_the_palette_are_of_one_form() -> None:
    """A verb first, capitals as in titles, and an ellipsis exactly where more is asked before anything happens."""
    asking = {"adaptKernel", "verifyKernel", "exportReport", "saveAdaptation", "startFromExpert"}
    asking |= {"askModelForKernel", "setModelKey", "showCodePage", "compareKernels"}
    verbs = {"Adapt", "Verify", "Show", "Compare", "Export", "Accept", "Discard", "Save", "Open"}
    verbs |= {"Say", "Start", "Toggle", "Restart", "Check", "Ask", "Set", "Explain"}
    small = {"a", "an", "and", "as", "from", "of", "to"}
    for row in CONTRIBUTES["commands"]:
        words = row["title"].rstrip("…").split()
        assert row["category"] == "CuBridge"
        assert words[0] in verbs, row
        assert all(word in small or word[0].isupper() for word in words), row
        assert row["title"].endswith("…") == (row["command"].removeprefix("cubridge.") in asking), row


def test_the_settings_of_the_server_are_sent_by_the_extension() -> None:
    sent = "".join(re.findall(r"const (?:SETTINGS|CHECK|MODEL) = \[(.*?)\]", SOURCES["client.ts"], re.DOTALL))
    offered = {name.removeprefix("cubridge.") for name in CONTRIBUTES["configuration"]["properties"]}
    assert set(re.findall(r'"([\w.]+)"', sent)) == offered - {"interpreter", "trace.server", "phaseMarks"}


def test_settings_of_a_model_are_those_of_the_server_and_restricted_without_trust() -> None:
    """A workspace that nobody trusts must not choose where prompts go. No setting holds a key."""
    offered = {name for name in CONTRIBUTES["configuration"]["properties"] if name.startswith("cubridge.model.")}
    restricted = set(MANIFEST["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"])
    assert offered <= restricted
    known = {field.name for field in fields(Settings)}
    assert {snake(name.removeprefix("cubridge.")) for name in offered} == {n for n in known if n.startswith("model_")}
    assert not [name for name in offered if re.search("key|secret|token$", name, re.IGNORECASE)]

"""package.json, the extension's sources and the server say the same: commands, phases and colours, the walkthrough."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from server import app
from server.phases import PHASES, ROWS

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


def test_the_settings_of_the_server_are_sent_by_the_extension() -> None:
    sent = re.search(r"const SETTINGS = \[(.*?)\]", SOURCES["client.ts"], re.DOTALL)
    assert sent is not None
    offered = {name.removeprefix("cubridge.") for name in CONTRIBUTES["configuration"]["properties"]}
    assert set(re.findall(r'"(\w+)"', sent[1])) == offered - {"interpreter", "trace.server", "phaseMarks"}

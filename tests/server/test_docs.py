"""docs/lsp-extensions.md says what the server does: commands, settings, states."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from server import app, settings

PAGE = Path("docs/lsp-extensions.md").read_text()


def test_commands_are_those_of_the_server() -> None:
    assert set(re.findall(r"^### `(cubridge\.\w+)`", PAGE, re.MULTILINE)) == set(app.COMMANDS)


def test_settings_and_defaults_are_those_of_the_server() -> None:
    section = PAGE.split("## Settings")[1].split("## ")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", section, re.MULTILINE))
    fields = {field.name: field.default for field in dataclasses.fields(settings.Settings)}
    assert {settings.snake(name) for name in rows} == set(fields)
    for name, text in rows.items():
        default = fields[settings.snake(name)]
        shown = (
            {True: "true", False: "false"}.get(default, f'"{default}"') if isinstance(default, bool | str) else default
        )
        assert text == str(shown if not isinstance(shown, float) else int(shown)), name


def test_every_state_of_a_job_is_documented() -> None:
    source = Path("server/job.py").read_text()
    states = set(re.search(r"`state`: ([\w |]+)\.", source)[1].split(" | "))  # type: ignore[index]
    assert states == {"done", "refused", "stale", "cancelled", "failed"}
    row = next(line for line in PAGE.splitlines() if line.startswith("| `state`"))
    assert states <= set(re.findall(r"`(\w+)`", row))

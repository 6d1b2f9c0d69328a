"""The pages in docs/explain.md are what the commands print. CUBRIDGE_UPDATE_GOLDEN=1 writes them instead."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cubridge_engine.pipeline.diff import diff_kernels
from cubridge_engine.pipeline.explain import explain_kernel
from cubridge_engine.understand.page import diff_page, text_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explain.md"
_BLOCK = re.compile(
    r"^```text\n\$ cubridge (?P<command>explain|diff) (?P<files>[^\n]+)\n(?P<body>.*?)^```$", re.M | re.S
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CUBRIDGE_CACHE", "off")


def printed(command: str, files: str) -> str:
    if command == "explain":
        return text_page(explain_kernel(files))
    a, b = files.split()
    return diff_page(diff_kernels(a, b))


COMMANDS = [(m["command"], m["files"]) for m in _BLOCK.finditer(PAGE.read_text())]


def test_there_are_pages() -> None:
    assert sum(command == "explain" for command, _ in COMMANDS) == 3


@pytest.mark.parametrize(("command", "files"), COMMANDS, ids=lambda text: text.replace("/", "."))
def test_a_page_is_what_the_command_prints(command: str, files: str) -> None:
    found = printed(command, files)
    text = PAGE.read_text()
    block = next(m for m in _BLOCK.finditer(text) if (m["command"], m["files"]) == (command, files))
    if os.environ.get("CUBRIDGE_UPDATE_GOLDEN"):
        start, end = block.span("body")
        PAGE.write_text(text[:start] + found + text[end:])
        return
    assert block["body"] == found

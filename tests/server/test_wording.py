"""Ways out are flags on the command line and settings, lenses and panels in an editor: one table, both faces."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest

import cubridge_engine
from cubridge_engine.cli.main import build_parser
from cubridge_engine.diagnostics import CATALOGUE, Diagnostic, Related, Severity, Span, render_text
from server import codes, wording
from server.settings import Settings, snake

FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*|[`']cubridge [a-z]+|\bcubridge adapt -")


# What only the command line does: its own usage, `cubridge export`, `cubridge bench`, the baseline of `cubridge check`.
ITS_OWN = ("cubridge_engine.cli.codes", "cubridge_engine.export.codes")
NOT_IN_EDITORS = frozenset({"CB650", "CB651", "CB893"})


def engine_sentences(editor: bool = True) -> dict[str, tuple[str, str]]:
    """Message and help of every code; with `editor` of those that can reach one."""
    for module in pkgutil.walk_packages(cubridge_engine.__path__, "cubridge_engine."):
        if module.name.endswith(".codes"):
            importlib.import_module(module.name)
    inspect = importlib.import_module("inspect")
    source = "".join(inspect.getsource(importlib.import_module(name)) for name in ITS_OWN)
    return {
        code: (row.message, row.help)
        for code, row in CATALOGUE.items()
        if code not in codes.ROWS and not (editor and (code in NOT_IN_EDITORS or f'"{code}"' in source))
    }


def test_no_flag_reaches_an_editor() -> None:
    shown = {code: " ".join(map(wording.in_editor, texts)) for code, texts in engine_sentences().items()}
    assert len(shown) > 100
    assert {code: text for code, text in shown.items() if FLAG.search(text)} == {}
    assert {code: row for code, row in codes.ROWS.items() if FLAG.search(row.message + row.help)} == {}


def test_every_row_of_the_table_is_about_a_sentence_of_the_engine() -> None:
    sentences = " ".join(text for texts in engine_sentences().values() for text in texts)
    assert [pattern for pattern, _ in wording.FLAGS if not re.search(pattern, sentences)] == []


def test_the_flags_of_the_engine_are_those_of_the_command_line() -> None:
    parser = build_parser()
    commands: Any = next(action for action in parser._actions if action.choices)
    known = {flag for one in commands.choices.values() for action in one._actions for flag in action.option_strings}
    told = {
        flag
        for texts in engine_sentences(editor=False).values()
        for text in texts
        for flag in re.findall(r"--[a-z]\w[\w-]*", text)
    }
    assert told
    assert told <= known


@pytest.mark.parametrize(
    ("code", "fields", "words"),
    [
        ("CB709", {"rows": 3}, "setting `cubridge.emptyRows`: exact"),
        ("CB713", {"name": "causal"}, "Add a line '// cubridge: set causal=VALUE' at the top of the kernel."),
        ("CB505", {"name": "causal"}, "'// cubridge: set causal=VALUE' at the top"),
        ("CB028", {"why": "?"}, "in the fields of the mask panel"),
    ],
)
def test_both_faces_of_one_finding(code: str, fields: dict[str, object], words: str) -> None:
    row = engine_sentences()[code]
    place = Span("k.cu", 0, 1, 0, 0, 0, 1)
    found = Diagnostic(
        code,
        row[0].format(**fields),
        Severity.ERROR,
        place,
        row[1].format(**fields),
        (Related(place, "run `cubridge lift` on it"),),
    )
    assert "--" in render_text([found])  # the command line's own words
    edited = wording.of_editor(found)
    assert words in edited.help
    assert not FLAG.search(edited.help)
    assert edited.related[0].message == "run the command Show CuIR on it"
    assert (edited.code, edited.span) == (found.code, found.span)


def test_a_setting_that_is_named_exists() -> None:
    named = set(re.findall(r"setting `cubridge\.(\w+)`", " ".join(words for _, words in wording.FLAGS)))
    assert named
    assert all(hasattr(Settings(), snake(name)) for name in named)

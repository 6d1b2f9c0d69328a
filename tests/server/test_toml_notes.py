"""A contract.toml says itself what is wrong with it: on the line of the field, while it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as t

from server.toml_notes import line_of

from .conftest import Session, Start, until

pytestmark = [pytest.mark.timeout(600)]
CONTRACT = Path("expert_kernels/flash_fwd_sm80/contract.toml")
TEXT = """\
schema = 1
name = "k"
parameters = [
  { name = "Q", role = "q", type = "T*" },
  { name = "K", role = "k", type = "T*" },
]
[launch]
grid = ["1", "H", "B"]
[[instances]]
expression = "a"
[[instances]]
dtype = "float16"
""".splitlines()


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("schema", "schema = 1"),
        ("parameters[1].role", '  { name = "K"'),
        ("parameters[0]", '  { name = "Q"'),
        ("parameters", "parameters = ["),
        ("launch.grid", "grid = ["),
        ("launch.block", "[launch]"),  # it is missing: where it would be
        ("instances[1].dtype", "dtype ="),
        ("instances[0].dtype", "[[instances]]"),  # that of the second instance is another field
        ("semantics", "schema = 1"),  # nowhere: the file as a whole
    ],
)
def test_a_field_is_found_as_far_down_as_it_is_there(field: str, line: str) -> None:
    assert TEXT[line_of(field, TEXT)].startswith(line)


def notes_on(session: Session, path: Path) -> list[tuple[str, int]]:
    found = session.client.diagnostics.get(path.as_uri(), [])
    return [(str(item.code), item.range.start.line) for item in found]


async def test_it_is_told_with_the_kernel_and_while_it_is_typed(start: Start, tmp_path: Path) -> None:
    path, text = tmp_path / "contract.toml", CONTRACT.read_text()
    wrong = text.replace('role = "lse"', 'role = "lsee"')
    line = next(n for n, row in enumerate(wrong.split("\n")) if "lsee" in row)
    path.write_text(wrong)
    async with start("extension") as session:
        session.open()
        await session.lenses()

        async def told() -> bool:
            return notes_on(session, path) == [("CB621", line)]

        await until(told)
        item = t.TextDocumentItem(path.as_uri(), "toml", 1, text)
        session.client.text_document_did_open(t.DidOpenTextDocumentParams(item))

        async def good() -> bool:
            return notes_on(session, path) == []

        await until(good)
        session.client.text_document_did_change(
            t.DidChangeTextDocumentParams(
                t.VersionedTextDocumentIdentifier(2, path.as_uri()),
                [t.TextDocumentContentChangeWholeDocument("// no TOML\n" + text)],
            )
        )

        async def no_toml() -> bool:
            return notes_on(session, path) == [("CB620", 0)]

        await until(no_toml)
        # Closed without saving: what is on disk counts again.
        session.client.text_document_did_close(t.DidCloseTextDocumentParams(t.TextDocumentIdentifier(path.as_uri())))
        await until(told)

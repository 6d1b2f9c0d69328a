"""docs/findings is the table of rules, written out."""

from __future__ import annotations

from cubridge_engine.check.__main__ import FOLDER
from cubridge_engine.check.pages import index, page_of, pages


def test_the_pages_are_those_of_the_table():
    names = {path.stem for path in FOLDER.glob("CB*.md")}
    assert names == {code for code, _ in pages()}, "run python -m cubridge_engine.check"
    for name in names:
        assert (FOLDER / f"{name}.md").read_text() == page_of(name), "run python -m cubridge_engine.check"
    assert (FOLDER / "README.md").read_text() == index()


def test_a_page_says_why_and_how():
    page = page_of("CB850")
    assert page is not None
    assert page.startswith("# CB850: ")
    assert "-    cp_async_wait<0>();\n+    cp_async_wait<1>();" in page
    assert "## How to mend it" in page
    assert page_of("CB123") is None

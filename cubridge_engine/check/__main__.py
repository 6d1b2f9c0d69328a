"""``python -m cubridge_engine.check``: write docs/findings from the table of rules."""

from __future__ import annotations

from pathlib import Path

from .pages import index, page_of, pages

FOLDER = Path(__file__).parents[2] / "docs" / "findings"


def write() -> None:
    """Write all pages, and take away those of codes that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = {code for code, _ in pages()}
    for path in FOLDER.glob("CB*.md"):
        if path.stem not in names:
            path.unlink()
    for code in names:
        (FOLDER / f"{code}.md").write_text(page_of(code) or "")
    (FOLDER / "README.md").write_text(index())


if __name__ == "__main__":
    write()

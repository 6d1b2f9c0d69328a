"""The prompts: Markdown files in `prompts/` that one can read and edit, with named places to fill."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

PROMPTS = Path(__file__).parent / "prompts"
MAX_PART = 24_000  # characters of one part of a prompt


def filled(name: str, parts: Mapping[str, str]) -> str:
    """The prompt `name` with its places filled; a part that is too long is cut, and says so."""
    text = (PROMPTS / f"{name}.md").read_text(encoding="utf-8")
    return Template(text).substitute({key: cut(value) for key, value in parts.items()}).strip()


def cut(text: str, most: int = MAX_PART) -> str:
    """`text`, or its beginning."""
    return text if len(text) <= most else f"{text[:most]}\n... (cut here)"

"""Lenses over a spec: what it means, and what can be done with it.

What a spec means is known only by running it, and a server runs nothing by itself. So the meaning is there after the
user asked for it, or after each save where the setting `readSpecs` says so; it is that of exactly the text in view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert, specs

if TYPE_CHECKING:
    from .app import CubridgeServer


async def lenses(ls: CubridgeServer, uri: str) -> list[t.CodeLens] | None:
    """Lenses of a Python file; none when it holds no spec."""
    if not convert.is_spec(uri):
        return None
    path = convert.path_of(uri)
    text = ls.documents.text(path)
    line = specs.line_of(text.data.decode("utf-8", "replace"))
    if line is None:
        return []
    place = convert.line_range(line, text, ls.encoding)
    argument = {"spec": uri}
    commands = (
        t.Command(title=title(ls, path), command="cubridge.readSpec", arguments=[argument]),
        t.Command(title="Adapt a kernel…", command="cubridge.adapt", arguments=[argument]),
        t.Command(title="Start from an expert kernel…", command="cubridge.copyExpert", arguments=[argument]),
    )
    return [t.CodeLens(range=place, command=command) for command in commands]


def title(ls: CubridgeServer, path: str) -> str:
    """``means: causal window 4096, softcap 50, GQA 8``, or how to find out."""
    sha = convert.sha256(ls.documents.text(path).data)
    meaning = ls.meanings.of(path, sha)
    if meaning is None:
        return "What does this spec mean?"
    return f"means: {meaning.words}" if meaning.words else "not understood: see Problems"

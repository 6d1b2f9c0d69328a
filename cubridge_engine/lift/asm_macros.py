"""Macros among the operands of inline assembly: ``: ACC16(c, 0), ACC16(c, 4) : "l"(a)`` for 32 registers.

The grammar has no such thing, so the statement's text is expanded and parsed again. String literals are left alone.
"""

from __future__ import annotations

import re

from .machine import MAX_DEPTH, Machine, substitute_words
from .macro_definitions import macro_arguments
from .syntax import Syn, parse_fragment

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|.', re.S)
_LONGEST = 8000  # bytes of a statement


def expanded(m: Machine, syn: Syn) -> tuple[Syn, int] | None:
    """An asm with macros among its operands that begins with `syn`, as it is after expansion, and where it ends in the
    file. None where `syn` does not begin one.
    """
    if not syn.text.lstrip().startswith(("asm", "__asm")) or all(k.type != "ERROR" for k in syn.walk()):
        return None
    tokens = _TOKEN.findall(m.source.data[syn.start : syn.start + _LONGEST].decode("utf-8", "replace"))
    end = tokens.index(";") if ";" in tokens else 0
    text = "".join(tokens[:end])
    stop = syn.start + len(text.encode()) + 1
    for _ in range(MAX_DEPTH):
        once = _once(m, text)
        if once == text:
            break
        text = once
    body = parse_fragment(f"{text};", (syn.start, stop))
    return (body, stop) if body is not None and end else None


def _once(m: Machine, text: str) -> str:
    """The text with the calls of function-like macros replaced, outermost first."""
    tokens = _TOKEN.findall(text)
    result: list[str] = []
    at = 0
    while at < len(tokens):
        macro = m.source.macros.get(tokens[at])
        if macro is not None and macro.params is None and macro.body.startswith('"'):
            result.append(macro.body)  # a piece of the text
            at += 1
            continue
        call = macro_arguments(tokens, at + 1) if macro is not None and macro.params is not None else None
        if macro is None or macro.params is None or call is None or len(call[0]) != len(macro.params):
            result.append(tokens[at])
            at += 1
            continue
        names = (name.strip() for name in macro.params)
        result.append(substitute_words(macro.body, dict(zip(names, call[0], strict=True))))
        at = call[1]
    return "".join(result)

"""The value of a preprocessor condition, or None when it cannot be known."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F']+|0[bB][01']+|\d[\d']*)[uUlL]*|([A-Za-z_]\w*)|(\|\||&&|<<|>>|[<>=!]=|.))")
_LIMIT = 256  # tokens after expansion; longer conditions are unknown, which also bounds the recursion

_Binary = Callable[[int, int], int]
_BINARY: dict[str, tuple[int, _Binary]] = {
    "*": (10, operator.mul),
    "/": (10, lambda a, b: int(a / b)),
    "%": (10, lambda a, b: a - b * int(a / b)),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "<<": (8, lambda a, b: a << b if 0 <= b < 64 else 0),
    ">>": (8, lambda a, b: a >> b if 0 <= b < 64 else 0),
    "<": (7, operator.lt),
    "<=": (7, operator.le),
    ">": (7, operator.gt),
    ">=": (7, operator.ge),
    "==": (6, operator.eq),
    "!=": (6, operator.ne),
    "&": (5, operator.and_),
    "^": (4, operator.xor),
    "|": (3, operator.or_),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "!": lambda a: int(not a),
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}


class _Unreadable(Exception):
    """The condition has a shape or a size that is not evaluated."""


def evaluate(text: str, macros: Mapping[str, str | None]) -> int | None:
    """The integer value of `text` under `macros` (name -> body; None for function-like). Undefined names are 0.

    Unknown parts (calls, ``__has_include``) make the result None unless the other side of ``&&`` or ``||`` decides.
    """
    try:
        reader = _Reader(_expand(text, macros, frozenset()))
        value = reader.binary(0)
        return value if reader.at_end() else None
    except (_Unreadable, ValueError, OverflowError, MemoryError):
        return None


def _tokens(text: str) -> list[str]:
    return [m.group(1) or m.group(2) or m.group(3) for m in _TOKEN.finditer(text.strip())]


def _expand(text: str, macros: Mapping[str, str | None], hidden: frozenset[str]) -> list[str]:
    """Tokens of `text` with ``defined`` answered and object-like macros replaced, none within itself."""
    out: list[str] = []
    tokens = _tokens(text)
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token == "defined":
            wrapped = tokens[at : at + 1] == ["("]
            name = tokens[at + wrapped : at + wrapped + 1]
            if not name:
                raise _Unreadable
            out.append("1" if name[0] in macros else "0")
            at += 3 if wrapped else 1
        elif (body := macros.get(token)) is not None and token not in hidden:
            out += ["(", *_expand(body, macros, hidden | {token}), ")"] if body else ["0"]
        else:
            out.append(token)
        if len(out) > _LIMIT or len(hidden) > 32:
            raise _Unreadable
    return out


class _Reader:
    """Precedence climbing over tokens, with None as the value of what is unknown."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def at_end(self) -> bool:
        return self.at >= len(self.tokens)

    def peek(self) -> str:
        return "" if self.at_end() else self.tokens[self.at]

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise _Unreadable

    def binary(self, level: int) -> int | None:
        left = self.unary()
        while (row := _BINARY.get(self.peek())) is not None and row[0] > level:
            name = self.take()
            left = _apply(name, left, self.binary(row[0]))
        if level == 0 and self.peek() == "?":
            self.take()
            yes = self.binary(0)
            self.expect(":")
            no = self.binary(0)
            return None if left is None else yes if left else no
        return left

    def unary(self) -> int | None:
        token = self.take()
        if token in _UNARY:
            value = self.unary()
            return None if value is None else _UNARY[token](value)
        if token == "(":
            value = self.binary(0)
            self.expect(")")
            return value
        if token[:1].isdigit():
            digits = token.replace("'", "").lower()
            octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
            return int(digits, 8 if octal else 0)
        if re.match(r"[A-Za-z_]", token):
            return self.call() if self.peek() == "(" else 1 if token == "true" else 0
        raise _Unreadable

    def call(self) -> None:
        """Skip the arguments of a call; its value is unknown."""
        depth = 0
        while not self.at_end():
            depth += {"(": 1, ")": -1}.get(self.take(), 0)
            if depth == 0:
                return
        raise _Unreadable


def _apply(name: str, left: int | None, right: int | None) -> int | None:
    if name in ("&&", "||"):
        decides = 0 if name == "&&" else 1
        if any(side is not None and int(bool(side)) == decides for side in (left, right)):
            return decides
    if left is None or right is None:
        return None
    if name in ("/", "%") and right == 0:
        raise _Unreadable
    return int(_BINARY[name][1](left, right))

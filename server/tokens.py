"""Tokens of a piece of CUDA: two texts with the same ones mean the same, wherever their blanks and comments are."""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

# A directive is one token as it is written: it ends with its line, and what is in it may be read as text.
_PARTS = re.compile(
    rb"""(?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    |^[ \t]*\#(?:\\\r?\n|[^\n])*
    |"(?:\\.|[^"\\\n])*"?
    |'(?:\\.|[^'\\\n])*'?
    |\w+
    |[^\s\w]""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_MARK = b"cubridge"  # comments with our own marks are read
_RAW_STRING = b'R"'  # has quotes and blanks of its own: then the text counts as it is


@dataclass(frozen=True, slots=True)
class Tokens:
    """`digest` is equal for equal tokens; `starts` and `ends` are their byte offsets in the piece."""

    digest: bytes
    starts: array[int]
    ends: array[int]

    def moved(self, to: Tokens, start: int, end: int) -> tuple[int, int] | None:
        """The range from `start` to `end` of this text in a text with the same tokens; None when an end of the range is
        at no token."""
        first = bisect_right(self.starts, start) - 1
        last = bisect_left(self.ends, end)
        if first < 0 or start >= self.ends[first] or last >= len(self.ends) or end <= self.starts[last]:
            return None
        return to.starts[first] + start - self.starts[first], to.ends[last] - (self.ends[last] - end)


@lru_cache(maxsize=128)
def tokens_of(text: bytes) -> Tokens:
    """The tokens of a piece."""
    starts, ends, whole = array("I"), array("I"), hashlib.sha256()
    if _RAW_STRING in text:
        return Tokens(hashlib.sha256(text).digest(), array("I", range(len(text))), array("I", range(1, len(text) + 1)))
    for match in _PARTS.finditer(text):
        part = match[0]
        if match["comment"] is not None and _MARK not in part:
            continue
        starts.append(match.start())
        ends.append(match.end())
        whole.update(len(part).to_bytes(4, "little") + part)
    return Tokens(whole.digest(), starts, ends)

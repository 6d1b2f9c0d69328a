"""The first wrong step of a kernel, as data: what is wrong, where, for which elements, and why if that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..diagnostics import Span
from ..ir.nodes import NOWHERE, Origin

# The steps of one attention tile, in the order in which a kernel takes them, and how a sentence names each.
STEPS: dict[str, str] = {
    "q": "the Q tile",
    "k": "the K tile",
    "v": "the V tile",
    "s": "S = Q K^T",
    "score": "the score",
    "mask": "the mask",
    "m": "the running maximum",
    "p": "P = exp(S - m)",
    "correction": "the correction exp(m - m_new)",
    "l": "the row sum l",
    "rescale": "the rescaled O",
    "pv": "the product P V",
    "range": "the range of KV tiles",
    "o": "O",
    "lse": "LSE",
}


@dataclass(frozen=True, slots=True)
class Element:
    """One wrong element: batch, head, query row, and the key (of a score) or the column (of a tile of width D)."""

    b: int
    h: int
    i: int | None
    j: int | None
    d: int | None
    got: float
    want: float

    def place(self) -> str:
        """``b=0 h=1 i=70 j=64``."""
        parts = (("b", self.b), ("h", self.h), ("i", self.i), ("j", self.j), ("d", self.d))
        return " ".join(f"{name}={value}" for name, value in parts if value is not None)


@dataclass(frozen=True, slots=True)
class WrongStep:
    """The first step whose value is not the expected one; every step before it was right, for every element.

    `tile` is the Q tile, `kv` the first key of the KV tile (None outside the loop). `pattern` says which elements of
    the tile are wrong; `cause` is a sentence, empty where no hypothesis explains the numbers.
    """

    step: str  # a key of STEPS
    element: Element
    tile: int
    kv: int | None
    pattern: str
    cause: str = ""
    origin: Origin = NOWHERE
    also: Span | None = None  # where the correction is computed, for steps that multiply by it

    @property
    def span(self) -> Span | None:
        """The responsible line of the kernel: the call site, where a device function does it."""
        return self.origin.span

    def sentence(self) -> str:
        """What is wrong, in one sentence."""
        within = self.kv is not None and self.step != "range"
        at = f"Q tile {self.tile}" + (f", the KV tile of key {self.kv}" if within else "")
        numbers = f"{_short(self.element.got)} instead of {_short(self.element.want)} at {self.element.place()}"
        why = f": {self.cause}" if self.cause else ""
        return f"the first wrong step is {STEPS[self.step]} ({at}; {self.pattern}; {numbers}){why}"


def _short(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)

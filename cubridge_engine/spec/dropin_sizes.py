"""The numbers of a traced graph as formulas of the function's free lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .core import Core, Values
from .cut_graph import aligned
from .lengths import FreeLength, Point, multilinear, points
from .trace import Graph
from .unify import NotUnified


@dataclass(frozen=True)
class Variants:
    """The function traced at the model's lengths, each longer by one, and each pair of them."""

    lengths: Values
    names: tuple[str, ...]
    nodes: Mapping[Point, Mapping[Any, Any]]  # node of the model's graph -> the corresponding one
    graphs: Mapping[Point, Graph]

    def formula(self, at: Mapping[Point, int]) -> str:
        """A number that is `at` at the variants, as text over the names of the lengths.

        Numbers are sums of lengths and products of two of them, each times a whole number, or a product of more.
        Raises NotUnified for what may be neither.
        """
        factors = [n for n in range(len(self.lengths)) if at[frozenset((n,))] != at[frozenset[int]()]]
        if len(factors) > 2 and _is_product(self.lengths, factors, at):
            constant = at[frozenset[int]()] // math.prod(self.lengths[n] for n in factors)
            text = " * ".join(self.names[n] for n in factors)
            return text if constant == 1 else f"{constant} * {text}"
        form = multilinear(self.lengths, at)
        pairs = {frozenset(pair) for pair, _ in form.pairs}
        if any({frozenset(p) for p in combinations(three, 2)} <= pairs for three in combinations(factors, 3)):
            raise NotUnified("a size is made of more than two lengths")
        terms = [(c, f"{self.names[i]} * {self.names[j]}") for (i, j), c in form.pairs]
        terms += [(c, self.names[i]) for i, c in form.single]
        return _sum(terms, form.constant)


def _is_product(lengths: Values, factors: Sequence[int], at: Mapping[Point, int]) -> bool:
    """True where the number is a constant times the product of these lengths, wherever it is known."""
    whole = math.prod(lengths[n] for n in factors)
    constant, rest = divmod(at[frozenset[int]()], whole)
    return not rest and all(
        value == constant * math.prod(lengths[n] + (n in point) for n in factors) for point, value in at.items()
    )


def _sum(terms: Sequence[tuple[int, str]], constant: int) -> str:
    text = ""
    for c, name in sorted(terms, key=lambda t: t[0] < 0):
        part = name if abs(c) == 1 else f"{abs(c)} * {name}"
        text += (f" - {part}" if c < 0 else f" + {part}") if text else (f"-{part}" if c < 0 else part)
    if not text:
        return str(constant)
    return text if not constant else f"{text} {'+' if constant > 0 else '-'} {abs(constant)}"


def variants_of(core: Core, taken: set[str]) -> Variants:
    """Trace what is missing. Raises NotUnified where the function runs other operators at other lengths."""
    whole = core.whole
    graphs = {p: whole.graph(whole.near(p)) for p in points(len(whole.lengths))}
    model = graphs[frozenset()]
    nodes = {p: aligned(model, graph) for p, graph in graphs.items()}
    return Variants(whole.model, _names(core, taken), nodes, graphs)


def _names(core: Core, taken: set[str]) -> tuple[str, ...]:
    """B for what the batch depends on, S for the sequence, and so on; free of what the file uses otherwise."""
    names: list[str] = []
    for n, length in enumerate(core.whole.lengths):
        moved = {size for size in core.forms if core.slope(size, n)}
        wanted = "B" if moved == {"B"} else "S" if {"Sq", "Sk"} <= moved else next(iter(sorted(moved)), _axis(length))
        while wanted in taken or wanted in names:
            wanted += "_"
        names.append(wanted)
    return tuple(names)


def _axis(length: FreeLength) -> str:
    return f"n{length.first[0]}_{length.first[1]}"


__all__ = ["Point", "Variants", "variants_of"]

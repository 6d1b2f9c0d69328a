"""How a hunk is written: indices as C++, names that are free, loops over a fragment in the style around them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import ClassVar

from .model import Affine, RowSite, Site, Term
from .places import product_spelled
from .text import Text


def axis_lines(
    site: Site | RowSite, axes: Sequence[str], loops: Sequence[str], names: Names
) -> tuple[dict[str, str], list[str]]:
    """How each of the axes is spelled at a site, and the declarations that this takes."""
    spelled: dict[str, str] = {}
    lines: list[str] = []
    for axis in axes:
        value = affine_text(site.indices[axis], loops, site)
        spelled[axis] = value if re.fullmatch(r"[A-Za-z_]\w*", value) else names.make(axis)
        if spelled[axis] != value:
            lines.append(f"const int {spelled[axis]} = {value};")
    return spelled, lines


def block(lines: Sequence[str], extents: Sequence[str], loops: Sequence[str], indent: str, step: str, said: str) -> str:
    """The lines in loops over all elements, behind a comment."""
    out = [f"{indent}// cubridge: {said}, seen while the kernel ran (observed)"]
    for depth, (end, name) in enumerate(zip(extents, loops, strict=True)):
        out.append("#pragma unroll" if not indent else f"{indent}{step * depth}#pragma unroll")
        out.append(f"{indent}{step * depth}for (int {name} = 0; {name} < {end}; ++{name}) {{")
    deep = len(extents) or 1
    if not extents:
        out.append(f"{indent}{{")
    out += [f"{indent}{step * deep}{line}" for line in lines]
    out += [f"{indent}{step * depth}}}" for depth in reversed(range(deep))]
    return "\n" + "\n".join(out)


def step_of(body: str) -> str:
    """White space by which a function indents."""
    return "  " if re.search(r"\n  \S", body) else "    "


def line_rest(text: Text, at: int) -> int:
    """The end of the line where nothing but a comment follows, else `at`."""
    end = text.code.find("\n", at)
    end = len(text.code) if end < 0 else end
    if text.code[at:end].strip():
        return at
    return end - 1 if text.data[at:end].endswith(b"\r") else end


def affine_text(affine: Affine, loops: Sequence[str], site: Site | RowSite) -> str:
    """An index as C++."""
    parts = [_term(term, loops, site) for term in affine.terms]
    if affine.constant or not parts:
        parts.append(str(affine.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _term(term: Term, loops: Sequence[str], site: Site | RowSite) -> str:
    name = term.name.format(*loops)
    if term.mask:
        shifted = f"{name} >> {term.shift} & {term.mask}" if term.shift else f"{name} & {term.mask}"
        return f"({shifted})" + (f" * {term.factor}" if term.factor != 1 else "")
    if term.factor == 1:
        return name
    named = product_spelled(site.place.body, name, site.named.get(term.factor, ()))
    return f"{name} * {named or term.factor}"


class Names:
    """Names that do not occur in a function."""

    _CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "e": ("e", "elem", "score_index"),
        "i": ("row", "q_row", "row_index"),
        "j": ("key", "k_col", "key_index"),
        "b": ("batch", "batch_index"),
        "h": ("head", "head_index"),
        "keep": ("keep", "attended", "is_attended"),
        "r": ("r", "row_of_lane", "row_state"),
    }

    def __init__(self, body: str) -> None:
        self._taken = set(re.findall(r"[A-Za-z_]\w*", body))

    def make(self, base: str) -> str:
        """A free name for what `base` stands for."""
        wanted = self._CHOICES.get(base, (base,))
        numbered = (f"{wanted[-1]}_{n}" for n in itertools.count(1))
        name = next(n for n in itertools.chain(wanted, numbered) if n not in self._taken)
        self._taken.add(name)
        return name

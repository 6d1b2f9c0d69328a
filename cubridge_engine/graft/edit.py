"""The change at each site: every element becomes what the spec says of it, at the row and key that were observed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ..compile import Contract
from ..diagnostics import make
from ..ir.expr import Call, Const, Expr, Read, Var, free_vars, reads, substitute, walk
from ..ir.simplify import equivalent, simplify
from ..lower import Hunk
from ..lower.cuda_expr import NotInScope, Scope, float_literal, print_cuda
from ..lower.hunks import apply_hunks, merge
from ..spec.attention import Attention
from ..verify.derive import natural_scale
from .fit import units_of
from .look import span_of
from .model import Affine, FileEdit, Refused, Site, Term
from .operands import Passed, pass_operands, reader
from .places import product_spelled
from .text import Text

_TYPES = {"s": "float", **dict.fromkeys(("i", "j", "b", "h", "hk", "Sq", "Sk", "H", "Hkv", "B", "D"), "int")}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is put at the sites: the score in units of the site (None: it stays), the mask, the fill in those units."""

    score: Expr | None
    mask: Expr | None
    fill: float


@dataclass(frozen=True, slots=True)
class Edited:
    """The files that change, the contract of the changed kernel, the scale that it is called with, the operands."""

    files: tuple[FileEdit, ...]
    contract: Contract
    scale: float
    operands: Mapping[str, str]  # parameter -> name in the spec


def check_spec(attention: Attention) -> None:
    """Raises Refused for what a place in the scores cannot give."""
    parts = {
        "the sink": attention.sink is not None,
        f"the normaliser '{attention.normaliser}'": attention.normaliser != "softmax",
        "the divisor": attention.divisor is not None,
        "the paged cache": attention.paging is not None,
    }
    for what, there in parts.items():
        if there:
            spans = attention.spans
            span = spans.get("sink" if "sink" in what else "normaliser") or spans.get("function")
            raise Refused(make("CB434", span, what=what))


def edit(
    sites: Sequence[Site], attention: Attention, contract: Contract, texts: Mapping[Path, Text], head_dim: int
) -> Edited:
    """The hunks for a spec. Raises Refused."""
    check_spec(attention)
    scale = _scale_of(attention, head_dim)
    used = frozenset[str]().union(*(reads(e) for e in (attention.score, attention.mask) if e is not None))
    operands = [item for item in attention.operands if item.name in used]
    passed = pass_operands(operands, sites, contract, texts, attention)
    hunks: dict[Path, list[Hunk]] = {path: list(found) for path, found in passed.hunks.items()}
    for site in sites:
        text = texts[site.place.path]
        hunks.setdefault(site.place.path, []).append(_hunk(site, attention, scale, head_dim, text, texts, passed))
    files = []
    for path, found in hunks.items():
        before = texts[path].data
        newline = "\r\n" if b"\r\n" in before else "\n"
        done = merge([_with_newlines(h, newline) for h in found])
        files.append(FileEdit(path, before, apply_hunks(before, done), done))
    own = {item.name for item in operands}
    named = {p.name: p.role.removeprefix("operand:") for p in passed.contract.leaves if p.role.startswith("operand:")}
    return Edited(tuple(files), passed.contract, scale, {p: name for p, name in named.items() if name in own})


def _scale_of(attention: Attention, head_dim: int) -> float:
    """The slope of the score at 0, found by differences: 1/sqrt(D) where it is that, else as a float has it."""
    slope = natural_scale(attention, head_dim)
    usual = head_dim**-0.5
    return usual if math.isclose(slope, usual, rel_tol=1e-7) else float(f"{slope:.8g}")


def _with_newlines(hunk: Hunk, newline: str) -> Hunk:
    return replace(hunk, new=hunk.new.replace("\n", newline))


def wanted(site: Site, attention: Attention, scale: float, head_dim: int) -> Wanted:
    """Score and mask of a spec in the units of a site; the kernel goes on to multiply with what makes them natural."""
    factor = units_of(scale)[site.units]
    plain = equivalent(attention.score, Call("mul", (Var("s"), Const(scale))))
    score = substitute(attention.score, {Var("s"): Call("mul", (Var("s"), Const(1 / factor)))})
    score = None if plain else gathered(simplify(_scaled(score, factor / scale)))
    fill = attention.fill.value if isinstance(attention.fill, Const) else -math.inf
    return Wanted(score, attention.mask, float(fill) * factor / scale)


def _scaled(score: Expr, factor: float) -> Expr:
    """`score` times a factor, put into a product or a sum that is there."""
    if factor == 1.0:
        return score
    if isinstance(score, Call) and score.op in ("add", "sub"):
        return Call(score.op, tuple(_scaled(a, factor) for a in score.args))
    if isinstance(score, Call) and score.op == "mul":
        for n, arg in enumerate(score.args):
            if isinstance(arg, Const) and not isinstance(arg.value, bool):
                args = list(score.args)
                args[n] = Const(float(arg.value) * factor)
                return Call("mul", tuple(args))
    return Call("mul", (score, Const(factor)))


def gathered(expr: Expr) -> Expr:
    """`expr` with the constant factors of each product in one, behind it, as a float holds them."""
    if not isinstance(expr, Call):
        return expr
    factor, rest = 1.0, expr
    while isinstance(rest, Call) and rest.op in ("mul", "div"):
        a, b = rest.args
        if isinstance(b, Const) and not isinstance(b.value, bool) and b.value:
            factor, rest = factor * (b.value if rest.op == "mul" else 1 / b.value), a
        elif rest.op == "mul" and isinstance(a, Const) and not isinstance(a.value, bool):
            factor, rest = factor * a.value, b
        else:
            break
    inner = Call(rest.op, tuple(gathered(a) for a in rest.args)) if isinstance(rest, Call) else rest
    factor = float(f"{factor:.9g}")
    return inner if factor == 1.0 else Call("mul", (inner, Const(factor)))


def _hunk(
    site: Site, attention: Attention, scale: float, head_dim: int, text: Text, texts: Mapping[Path, Text],
    passed: Passed,
) -> Hunk:  # fmt: skip
    place = site.place
    goal = wanted(site, attention, scale, head_dim)
    names = _Names(place.body)
    loops = [names.make("e") for _ in place.fragment.extents]
    element = place.fragment.element.format(*loops)
    parts = [part for part in (goal.score, goal.mask) if part is not None]
    read = [e for part in parts for e in walk(part) if isinstance(e, Read)]
    needed = frozenset[str]().union(*(free_vars(e) for e in (*parts, *read)))
    guards = [axis for axis in ("i", "j") if any(axis in free_vars(e) for e in read)]
    lines: list[str] = []
    spelled = {**site.sizes, "D": str(head_dim), "s": element}
    for axis in (a for a in "bhij" if a in needed):
        value = affine_text(site.indices[axis], loops, site)
        spelled[axis] = value if re.fullmatch(r"[A-Za-z_]\w*", value) else names.make(axis)
        if spelled[axis] != value:
            lines.append(f"const int {spelled[axis]} = {value};")
    items = {item.name: item for item in attention.operands}
    scope = Scope(spelled, {**_TYPES, **{n: _kind(i.dtype) for n, i in items.items()}}, reader(items, passed.spelled))
    span = span_of(place, texts)
    try:
        body = _assignments(goal, element, scope, names.make("keep"))
        tests = [f"{spelled[a]} < {scope.spelled({'i': 'Sq', 'j': 'Sk'}[a])[0]}" for a in guards]
    except NotInScope as missing:
        raise Refused(make("CB436", span, name=missing.name)) from missing
    step = _step(place.body)
    if tests:  # no row or key beyond the last has a number in a tensor
        body = [f"if ({' && '.join(tests)}) {{", *(f"{step}{line}" for line in body), "}"]
    new = _block([*lines, *body], place.fragment.extents, loops, place.indent, step)
    end = _line_rest(text, place.at)
    why = " and ".join(w for w, there in (("score", goal.score is not None), ("mask", goal.mask is not None)) if there)
    spec = attention.spans.get("score" if goal.score is not None else "mask")
    return Hunk(end, end, "", new, why or "operand", place.line, spec)


def _kind(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if dtype.startswith("int") else "float"


def _assignments(goal: Wanted, element: str, scope: Scope, keep: str) -> list[str]:
    """The statements of one element. `keep` is a free name for what the mask says."""
    value = print_cuda(goal.score, scope, 11) if goal.score is not None else element
    if goal.mask is None:
        return [f"{element} = {value};"]
    fill = float_literal(goal.fill)
    test = f"const bool {keep} = {print_cuda(goal.mask, scope)};"
    return [test, f"{element} = {keep} ? {value} : {fill};"]


def _block(lines: Sequence[str], extents: Sequence[str], loops: Sequence[str], indent: str, step: str) -> str:
    out = [f"{indent}// cubridge: each score passes here once, seen while the kernel ran (observed)"]
    for depth, (end, name) in enumerate(zip(extents, loops, strict=True)):
        out.append("#pragma unroll" if not indent else f"{indent}{step * depth}#pragma unroll")
        out.append(f"{indent}{step * depth}for (int {name} = 0; {name} < {end}; ++{name}) {{")
    deep = len(extents) or 1
    if not extents:
        out.append(f"{indent}{{")
    out += [f"{indent}{step * deep}{line}" for line in lines]
    out += [f"{indent}{step * depth}}}" for depth in reversed(range(deep))]
    return "\n" + "\n".join(out)


def _step(body: str) -> str:
    return "  " if re.search(r"\n  \S", body) else "    "


def _line_rest(text: Text, at: int) -> int:
    """The end of the line where nothing but a comment follows, else `at`."""
    end = text.code.find("\n", at)
    end = len(text.code) if end < 0 else end
    if text.code[at:end].strip():
        return at
    return end - 1 if text.data[at:end].endswith(b"\r") else end


def affine_text(affine: Affine, loops: Sequence[str], site: Site) -> str:
    """An index as C++."""
    parts = [_term(term, loops, site) for term in affine.terms]
    if affine.constant or not parts:
        parts.append(str(affine.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _term(term: Term, loops: Sequence[str], site: Site) -> str:
    name = term.name.format(*loops)
    if term.mask:
        shifted = f"{name} >> {term.shift} & {term.mask}" if term.shift else f"{name} & {term.mask}"
        return f"({shifted})" + (f" * {term.factor}" if term.factor != 1 else "")
    if term.factor == 1:
        return name
    named = product_spelled(site.place.body, name, site.named.get(term.factor, ()))
    return f"{name} * {named or term.factor}"


class _Names:
    """Names that do not occur in a function."""

    _CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "e": ("e", "elem", "score_index"),
        "i": ("row", "q_row", "row_index"),
        "j": ("key", "k_col", "key_index"),
        "b": ("batch", "batch_index"),
        "h": ("head", "head_index"),
        "keep": ("keep", "attended", "is_attended"),
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

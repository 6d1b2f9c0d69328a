"""The change at each site: every element becomes what the spec says of it, at the row and key that were observed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from .model import FileEdit, Refused, RowSite, Site
from .operands import Passed, pass_operands, reader
from .text import Text
from .written import Names, axis_lines, block, line_rest, step_of

_TYPES = {"s": "float", **dict.fromkeys(("i", "j", "b", "h", "hk", "Sq", "Sk", "H", "Hkv", "B", "D"), "int")}


# Far below any score, finite in whatever units it is multiplied into, and exact there: as an operand of a fused
# multiply-add it cancels to 0.
_LOWEST = Const(-(2.0**100))
_NO_KEY = -(2.0**90)  # a maximum below it is that of a row without a key
_MUCH = 120  # log2 of a sum that is finite, and beside which sums of values vanish


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


def types_of(attention: Attention) -> dict[str, str]:
    """The kinds of everything that a spec's expressions name: ``float``, ``int``, ``bool``."""
    return {**_TYPES, **{item.name: _kind(item.dtype) for item in attention.operands}}


def check_spec(attention: Attention) -> None:
    """Raises Refused for what a place in the scores cannot give."""
    parts = {
        "the LSE of rows with a sink": attention.sink is not None and any(o.role == "lse" for o in attention.outputs),
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
    sites: Sequence[Site], attention: Attention, contract: Contract, texts: Mapping[Path, Text], head_dim: int,
    row: RowSite | None = None, finite: bool = False,
) -> Edited:  # fmt: skip
    """The hunks for a spec; `row` is needed for one with a sink. `finite`: masked scores are a number far below all
    others, not minus infinity. Raises Refused.
    """
    check_spec(attention)
    attention = _one_length(attention, contract)
    if finite and attention.fill == Const(-math.inf):
        attention = replace(attention, fill=_LOWEST)
    scale = scale_of(attention, head_dim)
    used = frozenset[str]().union(
        *(reads(e) for e in (attention.score, attention.mask, attention.sink) if e is not None)
    )
    operands = [item for item in attention.operands if item.name in used]
    places = [site.place for site in sites] + ([row.place] if row is not None and attention.sink is not None else [])
    passed = pass_operands(operands, places, contract, texts, attention)
    hunks: dict[Path, list[Hunk]] = {path: list(found) for path, found in passed.hunks.items()}
    for site in sites:
        text = texts[site.place.path]
        hunks.setdefault(site.place.path, []).append(_hunk(site, attention, scale, head_dim, text, texts, passed))
    if attention.sink is not None:
        assert row is not None, "a kernel is watched for the spec that it is changed for"
        hunks.setdefault(row.place.path, []).append(
            _sink_hunk(row, attention, scale, head_dim, texts, passed, any(p.role == "lse" for p in contract.leaves))
        )
    files = []
    for path, found in hunks.items():
        before = texts[path].data
        newline = "\r\n" if b"\r\n" in before else "\n"
        done = merge([_with_newlines(h, newline) for h in found])
        files.append(FileEdit(path, before, apply_hunks(before, done), done))
    own = {item.name for item in operands}
    named = {p.name: p.role.removeprefix("operand:") for p in passed.contract.leaves if p.role.startswith("operand:")}
    return Edited(tuple(files), passed.contract, scale, {p: name for p, name in named.items() if name in own})


def _one_length(attention: Attention, contract: Contract) -> Attention:
    """`attention` in terms of the queries' length alone, where the kernel is for as many keys."""
    if "Sq == Sk" not in contract.requires:
        return attention

    def one(expr: Expr | None) -> Expr | None:
        return None if expr is None else simplify(substitute(expr, {Var("Sk"): Var("Sq")}))

    score = one(attention.score)
    assert score is not None
    return replace(attention, score=score, mask=one(attention.mask), sink=one(attention.sink))


def scale_of(attention: Attention, head_dim: int) -> float:
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
    fill = float(fill) if attention.fill is _LOWEST else float(fill) * factor / scale
    return Wanted(score, attention.mask, fill)


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
    names = Names(place.body)
    loops = [names.make("e") for _ in place.fragment.extents]
    element = place.fragment.element.format(*loops)
    parts = [part for part in (goal.score, goal.mask) if part is not None]
    read = [e for part in parts for e in walk(part) if isinstance(e, Read)]
    needed = frozenset[str]().union(*(free_vars(e) for e in (*parts, *read)))
    guards = [axis for axis in ("i", "j") if any(axis in free_vars(e) for e in read)]
    spelled = {**site.sizes, "D": str(head_dim), "s": element}
    found, lines = axis_lines(site, [a for a in "bhij" if a in needed], loops, names)
    spelled |= found
    items = {item.name: item for item in attention.operands}
    scope = Scope(spelled, {**_TYPES, **{n: _kind(i.dtype) for n, i in items.items()}}, reader(items, passed.spelled))
    span = span_of(place, texts)
    try:
        body = _assignments(goal, element, scope, names.make("keep"))
        tests = [f"{spelled[a]} < {scope.spelled({'i': 'Sq', 'j': 'Sk'}[a])[0]}" for a in guards]
    except NotInScope as missing:
        raise Refused(make("CB436", span, name=missing.name)) from missing
    step = step_of(place.body)
    if tests:  # no row or key beyond the last has a number in a tensor
        body = [f"if ({' && '.join(tests)}) {{", *(f"{step}{line}" for line in body), "}"]
    said = "each score passes here once"
    new = block([*lines, *body], place.fragment.extents, loops, place.indent, step, said)
    end = line_rest(text, place.at)
    why = " and ".join(w for w, there in (("score", goal.score is not None), ("mask", goal.mask is not None)) if there)
    spec = attention.spans.get("score" if goal.score is not None else "mask")
    return Hunk(end, end, "", new, why or "operand", place.line, spec)


def _sink_hunk(
    row: RowSite, attention: Attention, scale: float, head_dim: int, texts: Mapping[Path, Text], passed: Passed,
    lse: bool,
) -> Hunk:  # fmt: skip
    """The sink's weight against the maximum of its row, added to the sum: in equal parts where lanes share that.

    `lse`: the kernel goes on to write maximum + log(sum). A row without a key then gets numbers that give the sink,
    and a sum beside which nothing that is in O counts.
    """
    assert attention.sink is not None
    place = row.place
    names = Names(place.body)
    loops = [names.make("r") for _ in place.fragment.extents]
    top, total = (f.element.format(*loops) for f in (place.fragment, row.total))
    read = [e for e in walk(attention.sink) if isinstance(e, Read)]
    needed = frozenset[str]().union(*(free_vars(e) for e in (attention.sink, *read)))
    found, lines = axis_lines(row, [a for a in "bhi" if a in needed], loops, names)
    items = {item.name: item for item in attention.operands}
    spelled = {**row.sizes, "D": str(head_dim), **found}
    types = {**_TYPES, "m": "float", **{n: _kind(i.dtype) for n, i in items.items()}}
    scope = Scope({**spelled, "m": top}, types, reader(items, passed.spelled))
    log2 = units_of(scale)["log2"] / units_of(scale)[row.units]  # of one unit of the maximum
    sink, per_unit = gathered(simplify(_scaled(attention.sink, math.log2(math.e)))), Const(float(f"{log2:.9g}"))
    weight = sink - Var("m") * per_unit
    share = f" * {float_literal(1 / row.lanes)}" if row.lanes > 1 else ""
    span, step = span_of(place, texts), step_of(place.body)
    try:
        bounds = [f"{spelled['i']} < {scope.spelled('Sq')[0]}" for _ in range("i" in needed)]
        least = f"{top} > {float_literal(_NO_KEY)}" if lse else f"{top} != -INFINITY"
        body = [f"if ({least}) {{", f"{step}{total} += exp2f({print_cuda(weight, scope)}){share};"]
        if lse:
            alone = Call("div", (sink - Const(_MUCH), per_unit))
            body += [
                "} else {  // no key: the sink has all of the weight, and LSE is the sink",
                f"{step}{top} = {print_cuda(alone, scope)};", f"{step}{total} = exp2f({_MUCH}.f){share};",
            ]  # fmt: skip
        body.append("}")
        lines += [f"if ({bounds[0]}) {{", *(f"{step}{line}" for line in body), "}"] if bounds else body
    except NotInScope as missing:
        raise Refused(make("CB436", span, name=missing.name)) from missing
    said = "the sink joins each row here once"
    new = block(lines, place.fragment.extents, loops, place.indent, step, said)
    end = line_rest(texts[place.path], place.at)
    return Hunk(end, end, "", new, "sink", place.line, attention.spans.get("sink"))


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

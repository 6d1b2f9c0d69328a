"""Scores of a program: the S tile followed from the product of Q and K to the row maximum, as expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..ir.expr import FALSE, NEG_INF, SK, TRUE, Call, Const, Expr, J, S, Var, conjoin, conjuncts, free_vars, substitute
from ..ir.nodes import For, If, Kernel, Let, Map, Mask, Mma, Op, RowReduce, Score
from ..ir.simplify import normal_form, simplify
from .sampling import bind_unknown, points, value_at
from .structure import NotAttention, outside_loop, score_tile_of, walk_ops

TAIL = Call("lt", (J, SK))
_TAIL_FORM = normal_form(TAIL)


def is_tail(expr: Expr) -> bool:
    """True for ``j < Sk`` in any spelling."""
    return normal_form(expr) == _TAIL_FORM


@dataclass(frozen=True, slots=True)
class ElementTest:
    """One Mask operation: on tiles where `guard` holds (None: all), elements where `keep` fails get the fill."""

    keep: Expr
    guard: Expr | None


@dataclass(frozen=True, slots=True)
class Element:
    """An element of S: value, mask and fill so far, the tests one by one, and what is odd about them."""

    tile: str
    value: Expr = S
    keep: Expr = TRUE
    fill: Expr = NEG_INF
    tests: tuple[ElementTest, ...] = ()
    issues: tuple[str, ...] = ()


def compose_scores(kernel: Kernel, loop: For) -> Element:
    """Follow the S tile from the product to the row maximum, or to the product with V where there is no softmax."""
    elem = Element(score_tile_of(loop))
    aside = _only_summed(loop)
    q_scale = _scale_on_q(kernel, loop)
    elem = replace(elem, value=simplify(S * q_scale) if q_scale is not None else S)
    lets: dict[Expr, Expr] = {}
    for op, guard in _guarded(loop.body, None):
        if isinstance(op, RowReduce) and op.role == "row_max" and op.src == elem.tile:
            return elem
        if isinstance(op, Mma) and op.role == "pv" and op.a == elem.tile:
            return elem
        if isinstance(op, Let) and op.name not in ("kv0", loop.iv):
            lets[Var(op.name)] = substitute(op.value, lets)
        if isinstance(op, Score | Mask) or (isinstance(op, Map) and op.dst not in aside):
            elem = _apply(elem, op, guard, lets)
    raise NotAttention("no row maximum of the scores was found")


def _only_summed(loop: For) -> set[str]:
    """Tiles that feed a row sum but not the product with V: |P| beside P."""
    ops = list(walk_ops(loop.body))
    return {op.src for op in ops if isinstance(op, RowReduce)} - {op.a for op in ops if isinstance(op, Mma)}


def _scale_on_q(kernel: Kernel, loop: For) -> Expr | None:
    """The factor on the Q tile, if the kernel scales Q instead of S."""
    q_tiles = {op.a for op in walk_ops(loop.body) if isinstance(op, Mma) and op.role == "qk"}
    for op in outside_loop(kernel.body):
        if isinstance(op, Map) and op.dst in q_tiles and op.role == "scale":
            return substitute(op.expr, {S: Const(1.0)})
    return None


# True of every tile that has an element to change: without keys there is none.
_ANY_KEY = frozenset({Call("gt", (SK, Const(0))), Call("lt", (Const(0), SK)), Call("ge", (SK, Const(1)))})


def _guarded(body: tuple[Op, ...], guard: Expr | None) -> Iterator[tuple[Op, Expr | None]]:
    """Operations with the condition of the Ifs around them."""
    for op in body:
        if isinstance(op, If) and op.cond in _ANY_KEY:
            yield from _guarded(op.body, guard)
        elif isinstance(op, If):
            inner = op.cond if guard is None else Call("and", (guard, op.cond))
            yield from _guarded(op.body, inner)
        else:
            yield op, guard


def _apply(elem: Element, op: Score | Mask | Map, guard: Expr | None, lets: Mapping[Expr, Expr]) -> Element:
    if isinstance(op, Map):
        if op.src != elem.tile or op.role not in ("scale", "other", "cast"):
            return elem
        value = substitute(substitute(op.expr, lets), {S: elem.value})
        return replace(elem, tile=op.dst, value=simplify(value))
    if op.tile != elem.tile:
        return elem
    pure_mask = _as_mask(op, lets) if isinstance(op, Score) else None
    if isinstance(op, Score) and pure_mask is not None:
        op = Mask(op.tile, pure_mask, NEG_INF, None)
    if isinstance(op, Score):
        issues = elem.issues
        value = elem.value
        keep = elem.keep
        if keep != TRUE:
            # The mask came first, so the fill goes through this expression as well.
            value, keep = Call("where", (keep, value, elem.fill)), TRUE
            issues = (*issues, "a score expression is applied after a mask")
        new = substitute(substitute(op.expr, lets), {S: value})
        if guard is not None:
            issues = (*issues, "a score expression is applied on some tiles only")
        return replace(elem, value=simplify(new), keep=keep, issues=issues)
    test_guard = op.guard if guard is None else guard if op.guard is None else Call("and", (guard, op.guard))
    test = ElementTest(substitute(op.keep, lets), None if test_guard is None else substitute(test_guard, lets))
    fill = substitute(op.fill, lets)
    if elem.tests and fill != elem.fill:
        # An earlier test with a fill of its own (a finite sentinel) is part of the score that this test then masks.
        elem = replace(elem, value=Call("where", (_effective(elem.tests), elem.value, elem.fill)), keep=TRUE, tests=())
    keep = test.keep if elem.keep == TRUE else Call("and", (elem.keep, test.keep))
    return replace(elem, keep=keep, fill=fill, tests=(*elem.tests, test))


def _as_mask(op: Score, lets: Mapping[Expr, Expr]) -> Expr | None:
    """Where elements are kept, when a score expression only ever writes -inf or leaves the element as it is."""
    value, keep = split_masked(substitute(op.expr, lets))
    return keep if value == S and keep != TRUE else None


def split_masked(expr: Expr) -> tuple[Expr, Expr]:
    """``(value, keep)`` with ``expr == value where keep else -inf``."""
    if expr == NEG_INF:
        return expr, FALSE
    if not isinstance(expr, Call) or expr.op != "where":
        return expr, TRUE
    cond, yes, no = expr.args
    (a, keep_a), (b, keep_b) = split_masked(yes), split_masked(no)
    value = b if keep_a == FALSE else a if keep_b == FALSE or a == b else Call("where", (cond, a, b))
    either = Call("or", (Call("and", (cond, keep_a)), Call("and", (Call("not", (cond,)), keep_b))))
    return value, TRUE if keep_a == keep_b == TRUE else simplify(either)


def masks_tail(kernel: Kernel, keep: Expr, bindings: Mapping[str, float | int]) -> bool:
    """True when no column at or beyond Sk of the last tile is kept, by spelling or else by value, for any flags."""
    if any(is_tail(c) for c in conjuncts(simplify(keep))):
        return True
    env = points((keep,), tile=(kernel.Br, kernel.Bc), count=3000)
    ragged = env["Sk"] % kernel.Bc != 0
    beyond = env["Sk"] + np.arange(len(env["Sk"])) % np.maximum(-env["Sk"] % kernel.Bc, 1)
    env = {**env, "j": beyond, "kv0": beyond // kernel.Bc * kernel.Bc}
    free = [p.name for p in kernel.params if p.role.startswith("flag") and p.name not in bindings]
    for setting in (0, 1):
        scope = bind_unknown({**env, **dict.fromkeys(free, setting), **bindings}, free_vars(keep))
        kept = np.broadcast_to(value_at(keep, scope), ragged.shape).astype(bool)
        if bool((kept & ragged).any()):
            return False
    return True


def _effective(tests: tuple[ElementTest, ...]) -> Expr:
    """Where elements survive the tests, guards included."""
    parts = (t.keep if t.guard is None else Call("or", (t.keep, Call("not", (t.guard,)))) for t in tests)
    return conjoin(list(parts))

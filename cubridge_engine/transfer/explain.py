"""What a program computes, in one sentence: for the code lens, the hover and `cubridge lift`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..ir.expr import SK, SQ, TRUE, Call, Expr, I, J, free_vars
from ..ir.nodes import Kernel
from ..ir.simplify import linear_terms
from ..ir.text_expr import parse_expr, print_expr
from .algebra import coefficient_of_s
from .ranges import key_first, types_with_tiles
from .sampling import bind, bind_unknown, points, value_at
from .semantics import Semantics, bound_semantics, semantics_of

# Masks people have names for.
_MASKS: tuple[tuple[str, str], ...] = (
    ("causal (bottom-right)", "j <= i + (Sk - Sq)"),
    ("causal (top-left)", "j <= i"),
)
_HEADS: tuple[tuple[str, str], ...] = (("multi-head", "h"), ("GQA", "h // (H // Hkv)"), ("MQA", "0"))


def describe(kernel: Kernel, bindings: Mapping[str, float | int] | None = None) -> str:
    """``GQA attention, causal (bottom-right) when causal, softmax, LSE natural log; 64x64 tiles``. Raises
    NotAttention.
    """
    sem = semantics_of(kernel)
    if bindings:
        sem = bound_semantics(sem, bindings)
    parts = [f"{_heads(sem)} attention", *_mask(kernel, sem), *_score(kernel, sem), "softmax"]
    if sem.sink is not None:
        parts.append(f"sink {print_expr(sem.sink)}")
    parts.append({"ln": "LSE natural log", "none": "no LSE"}.get(sem.lse, f"LSE: {sem.lse}"))
    if sem.empty_rows != "none":
        parts.append(f"rows without a key give {sem.empty_rows}")
    return f"{', '.join(parts)}; {kernel.Br}x{kernel.Bc} tiles, D={kernel.D}"


def _heads(sem: Semantics) -> str:
    env = points((), tile=(64, 64), count=500)
    for name, text in _HEADS:
        if np.array_equal(
            np.broadcast_to(value_at(parse_expr(text), env), 500), np.broadcast_to(value_at(sem.head_map, env), 500)
        ):
            return name
    return f"KV head {print_expr(sem.head_map)}"


def _mask(kernel: Kernel, sem: Semantics) -> list[str]:
    if sem.keep == TRUE:
        return []
    flags = [p.name for p in kernel.params if p.role.startswith("flag") and p.name in free_vars(sem.keep)]
    if len(flags) == 1:
        on, off = bound_semantics(sem, {flags[0]: 1}), bound_semantics(sem, {flags[0]: 0})
        if off.keep == TRUE:
            return [f"{_mask_name(kernel, on.keep)} when {flags[0]}"]
    return [_mask_name(kernel, sem.keep)]


def _mask_name(kernel: Kernel, keep: Expr) -> str:
    for name, text in _MASKS:
        want = parse_expr(text)
        env = bind_unknown(points((want, keep), tile=(kernel.Br, kernel.Bc)), free_vars(keep))
        if np.array_equal(value_at(want, env), np.broadcast_to(value_at(keep, env), np.shape(env["i"]))):
            return name
    return words_of_mask(keep)


def words_of_mask(keep: Expr) -> str:
    """``causal (bottom-right) and window of 1024 keys``; parts without a name as text."""
    if isinstance(keep, Call) and keep.op in ("and", "or"):
        return f" {keep.op} ".join(words_of_mask(part) for part in keep.args)
    form = key_first(keep)
    if not isinstance(form, Call) or form.op not in ("lt", "le", "gt", "ge") or form.args[0] != J:
        return f"mask {print_expr(keep)}"
    terms, constant = linear_terms(form.args[1], types_with_tiles(None))
    # As an inclusive bound: j <= ... + constant, or j >= ... + constant.
    constant += {"lt": -1, "gt": 1}.get(form.op, 0)
    upper = form.op in ("lt", "le")
    where: dict[frozenset[tuple[Expr, int]], str] = {
        frozenset({(I, 1)}): "top-left",
        frozenset({(I, 1), (SK, 1), (SQ, -1)}): "bottom-right",
    }
    corner = where.get(frozenset(terms.items()))
    if corner and upper:
        return f"causal ({corner})" if constant == 0 else f"{constant} keys ahead ({corner})"
    if corner and constant <= 0:
        return f"window of {1 - constant} keys" + (" (top-left)" if corner == "top-left" else "")
    if not terms:
        return f"the first {constant + 1} keys" if upper else f"keys from {constant}"
    return f"mask {print_expr(keep)}"


def _score(kernel: Kernel, sem: Semantics) -> list[str]:
    names = {p.name for p in kernel.params}
    if coefficient_of_s(sem.score, lambda n: n in names or n == "D") is not None:
        return []
    return [f"score {print_expr(sem.score)}"]


def natural_text(expr: Expr, bindings: Mapping[str, float | int]) -> str:
    """An expression with its bound parameters put in, as text."""
    return print_expr(bind(expr, bindings))

"""Values of expressions at many points of many problem sizes, chosen around the constants that occur.

Decides what a symbolic rule cannot: whether one mask implies another, whether two scores agree, whether a tile range
covers a mask. A mask with a window of 1024 looks empty on small sizes, so the sizes and the distances of the points
come from the constants themselves.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import evaluate
from ..ir.expr import Const, Expr, Read, Var, rebuild, substitute, walk

Array = NDArray[Any]
Env = dict[str, Any]

_SIZES = (1, 2, 7, 33, 64, 65, 100, 128, 130, 200)


def integer_constants(exprs: Iterable[Expr]) -> list[int]:
    """The integers that occur, by size; those beyond a million are no distances."""
    found = {abs(int(e.value)) for x in exprs for e in walk(x) if isinstance(e, Const) and isinstance(e.value, int)}
    return sorted(n for n in found if 0 < n < 1_000_000)


def points(
    exprs: Iterable[Expr], *, tile: tuple[int, int], count: int = 12000, seed: int = 7, square_heads: bool = False
) -> Env:
    """Arrays of `count` points: ``b h hk i j B H Hkv Sq Sk q0 kv0 qt s``, each a position inside a problem (i < Sq, j
    < Sk).

    `tile` is (Br, Bc). With `square_heads` Hkv equals H everywhere (a spec without GQA).
    """
    rng = np.random.default_rng(seed)
    constants = integer_constants(exprs) or [1]
    sizes = np.array(sorted({*_SIZES, *(n for c in constants for n in (c, c + 1, 2 * c + 5))}))
    env: Env = {"Sq": rng.choice(sizes, count), "Sk": rng.choice(sizes, count)}
    # Half of the problems are square: many conventions (top-left, bottom-right) meet there.
    env["Sk"] = np.where(rng.random(count) < 0.4, env["Sq"], env["Sk"])
    env["B"] = rng.integers(1, 4, count)
    env["Hkv"] = rng.integers(1, 4, count)
    env["H"] = env["Hkv"] * (1 if square_heads else rng.integers(1, 5, count))
    env["b"] = rng.integers(0, env["B"])
    env["h"] = rng.integers(0, env["H"])
    env["i"] = _near(rng, constants, np.zeros(count, dtype=np.int64), env["Sq"], count)
    diagonal = env["i"] + np.where(rng.random(count) < 0.5, env["Sk"] - env["Sq"], 0)
    env["j"] = _near(rng, constants, diagonal, env["Sk"], count)
    env["q0"] = env["i"] // tile[0] * tile[0]
    env["qt"] = env["i"] // tile[0]
    env["kv0"] = env["j"] // tile[1] * tile[1]
    env["Br"], env["Bc"] = tile
    env["hk"] = env["h"] // (env["H"] // env["Hkv"])
    env["s"] = rng.normal(0, 8, count)
    return env


def _near(rng: np.random.Generator, constants: list[int], base: Array, size: Array, count: int) -> Array:
    """Positions below `size`: a third anywhere, others a constant away from `base` or from zero, give or take one."""
    anywhere = rng.integers(0, size)
    distance = rng.choice(np.array([0, *constants]), count) * rng.choice((-1, 1), count) + rng.integers(-2, 3, count)
    close = np.where(rng.random(count) < 0.7, base + distance, np.abs(distance))
    chosen = np.where(rng.random(count) < 0.35, anywhere, close)
    return np.clip(chosen, 0, size - 1)


def bind_unknown(env: Env, names: Iterable[str], seed: int = 11) -> Env:
    """`env` with every missing name given a positive value: parameters such as strides and scales."""
    rng = np.random.default_rng(seed)
    out = dict(env)
    for name in sorted(set(names) - set(env)):
        out[name] = int(rng.integers(50, 5000)) if "stride" in name else float(rng.uniform(0.05, 0.5))
    return out


def flatten_reads(expr: Expr, strides: Mapping[str, tuple[Expr, ...]]) -> Expr:
    """Reads of tensors with known element strides become reads at one flat offset, so that both spellings compare
    equal.
    """
    expr = rebuild(expr, lambda e: flatten_reads(e, strides))
    if not isinstance(expr, Read):
        return expr
    steps = strides.get(expr.tensor) or strides.get(f"operand:{expr.tensor}")
    if steps is None or len(steps) != len(expr.index):
        return expr
    flat: Expr = Const(0)
    for index, step in zip(expr.index, steps, strict=True):
        flat = flat + index * step
    return Read(expr.tensor, (flat,))


def value_at(expr: Expr, env: Mapping[str, Any], types: Mapping[str, str] | None = None) -> Array:
    """`expr` at every point of `env`. A tensor read takes a value that depends on the problem's lengths, on tensor and
    index only (by hash): problems of other lengths have other tensors.
    """
    bound = dict(env)
    closed = _close(expr, bound, types or {}, {})
    return np.asarray(evaluate(closed, bound))


def _close(expr: Expr, env: Env, types: Mapping[str, str], seen: dict[Read, Var]) -> Expr:
    expr = rebuild(expr, lambda e: _close(e, env, types, seen))
    if not isinstance(expr, Read):
        return expr
    if expr not in seen:
        index = [np.asarray(evaluate(e, env)).astype(np.int64) for e in expr.index]
        seen[expr] = Var(f"read {len(seen)} of {expr.tensor}")
        lengths = [np.asarray(env[size]).astype(np.int64) for size in ("Sq", "Sk") if size in env]
        env[seen[expr].name] = _hashed(expr.tensor, lengths, index, types.get(expr.tensor, "float"))
    return seen[expr]


def _hashed(tensor: str, lengths: list[Array], index: list[Array], kind: str) -> Array:
    state = np.uint64(zlib.crc32(tensor.encode()))
    with np.errstate(over="ignore"):
        for part in (*lengths, *index):
            state = (np.asarray(part).astype(np.uint64) + state) * np.uint64(0x9E3779B97F4A7C15)
            state = state ^ (state >> np.uint64(29))
    unit = np.asarray(state % np.uint64(1 << 20)).astype(np.float64) / (1 << 20)
    if kind == "bool":
        return unit < 0.6
    if kind == "int":  # document ids, lengths, bounds: small numbers, some anywhere in the sequence, or its whole
        longest = np.maximum(lengths[-1], 1) if lengths else 256
        place = np.minimum((unit - 0.5) * 2.2 * longest, longest)
        return np.where(unit < 0.35, unit * 8, np.where(unit < 0.5, unit * 256, place)).astype(np.int64)
    return unit * 4 - 2


def implies(a: Expr, b: Expr, env: Env, types: Mapping[str, str] | None = None) -> bool:
    """True when no point of `env` has `a` true and `b` false."""
    left = np.asarray(value_at(a, env, types), dtype=bool)
    right = np.asarray(value_at(b, env, types), dtype=bool)
    return not bool(np.any(left & ~right))


def close(a: Array, b: Array, tolerance: float = 1e-5) -> bool:
    """Equal up to a relative `tolerance`; infinities and NaN must coincide."""
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True))


def bind(expr: Expr, bindings: Mapping[str, float | int]) -> Expr:
    """`expr` with parameters replaced by their bound values."""
    return substitute(expr, {Var(name): Const(value) for name, value in bindings.items()})

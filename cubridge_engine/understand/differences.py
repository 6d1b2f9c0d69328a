"""What differs between two functions, part by part, with the first place where it shows.

Expressions are compared by value at many points of many problems (`transfer.sampling`), so two spellings of one
condition are not a difference; a difference that is reported has a place where both values can be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.evaluate import UnboundName
from ..ir.expr import Call, Const, Expr, free_vars
from ..ir.text_expr import print_expr
from ..transfer.sampling import Env, bind_unknown, points, value_at
from ..verify.explain import MASKED
from .functions import expressions_of, free_names
from .model import Difference, Function, Witness
from .words import mask_text

Array = NDArray[Any]
ALIKE = -1e29  # in fp32 all fills at or below it act as -inf on every row that has a key
_INTEGERS = np.array([1, 2, 3, 5, 8, 17, 33, 64, 100, 129])
_DENSE = 1 << 18  # elements that are looked at one by one for the first that differs
_NEAR = 1e-4


def semantic_difference(found: Function, expected: Function, *, strict: bool = False) -> tuple[Difference, ...]:
    """The parts of `found` that are not those of `expected`; free names that are equal mean the same thing.

    Without `strict`, `found` may do more than was asked for: return a log-sum-exp, share KV heads where `expected` has
    one for each head. With it, both must do the same.
    """
    pair = _Pair(found, expected, strict)
    different = [d for part in _PARTS for d in part(pair)]
    for why in pair.blind:
        different.append(pair.difference("undecided", why, "", f"a part cannot be compared: {why}", None))
    return tuple(different)


class _Pair:
    """Both functions, and points of many problems at which to compare them."""

    def __init__(self, found: Function, expected: Function, strict: bool) -> None:
        self.found, self.expected, self.strict = found, expected, strict
        self.blind: dict[str, None] = {}  # why an expression has no value here, in order, each once
        self.kinds = {**found.kinds, **expected.kinds}
        parts = [*expressions_of(found), *expressions_of(expected)]
        maps = (expected.head_map, found.head_map) if strict else (expected.head_map,)
        square = not any("Hkv" in free_vars(e) for e in maps) and all(_one_to_one(e) for e in maps)
        self.env: Env = points(parts, tile=found.tile, square_heads=square)
        self.env["D"] = found.D or expected.D or 64
        self.free = sorted((free_names(found) | free_names(expected)) - set(self.env))
        self.scalars = [n for n in self.free if any(n in free_vars(e) for e in parts)]
        rng = np.random.default_rng(5)
        for name in self.scalars:
            self.env[name] = _drawn(self.kinds.get(name, "float"), rng, len(self.env["i"]))
        unknown = frozenset[str]().union(*(free_vars(e) for e in parts)) - set(self.env)
        self.env = bind_unknown(self.env, unknown)

    def values(self, a: Expr, b: Expr, env: Env | None = None) -> tuple[Array, Array] | None:
        """Both at every point, or None when one cannot be evaluated."""
        scope = self.env if env is None else env
        shape = np.shape(scope["i"])
        types = {name: kind for name, kind in self.kinds.items() if kind != "flag"}
        try:
            left, right = value_at(a, scope, types), value_at(b, scope, types)
        except (UnboundName, ValueError, TypeError) as error:
            self.blind[f"{error.args[0] if error.args else error} has no value"] = None
            return None
        return np.broadcast_to(left, shape), np.broadcast_to(right, shape)

    def first(self, differ: Callable[[Env], Array | None], wrong: Array) -> Env:
        """The first element, in order of b, h, i, j, that differs in the smallest problem found to differ."""
        size = self.env["Sq"] * self.env["Sk"]
        at = int(np.where(wrong, size, np.iinfo(np.int64).max).argmin())
        point: Env = {name: value[at] if np.ndim(value) else value for name, value in self.env.items()}
        h, sq, sk = int(point["H"]), int(point["Sq"]), int(point["Sk"])
        if h * sq * sk <= _DENSE:
            heads, rows, keys = np.meshgrid(np.arange(h), np.arange(sq), np.arange(sk), indexing="ij")
            flat = {"b": np.zeros(heads.size, dtype=np.int64), "h": heads.ravel(), "i": rows.ravel(), "j": keys.ravel()}
            dense: Env = {**point, **flat}
            dense["hk"] = dense["h"] // max(1, h // int(point["Hkv"]))
            there = differ(dense)
            if there is not None and there.any():
                one = int(np.argmax(there))
                return {n: v[one] if np.ndim(v) else v for n, v in dense.items()}
        return point

    def witness(self, at: Env, found: str, expected: str) -> Witness:
        """The element `at` as a witness."""
        sizes = {name: int(at[name]) for name in ("B", "H", "Hkv", "Sq", "Sk")}
        values = {name: _plain(at[name]) for name in self.scalars if name in at}
        return Witness(sizes, int(at["b"]), int(at["h"]), int(at["i"]), int(at["j"]), found, expected, values)

    def difference(self, part: str, found: str, expected: str, sentence: str, witness: Witness | None) -> Difference:
        """A difference with the lines of both sides."""
        spans = (self.found.spans.get(part), self.expected.spans.get(part) or self.expected.spans.get("function"))
        return Difference(part, sentence, found, expected, *spans, witness)


def _one_to_one(head_map: Expr) -> bool:
    heads = np.arange(6)
    try:
        value = value_at(head_map, {"h": heads, "H": np.full(6, 6), "Hkv": np.full(6, 6)})
    except (UnboundName, ValueError, TypeError):
        return False
    return bool((np.broadcast_to(value, heads.shape) == heads).all())


def _drawn(kind: str, rng: np.random.Generator, count: int) -> Array:
    if kind in ("flag", "bool"):
        return rng.integers(0, 2, count)
    return rng.choice(_INTEGERS, count) if kind == "int" else rng.uniform(0.5, 4.0, count)


def _plain(value: Any) -> float | int:
    number = np.asarray(value).item()
    return number if isinstance(number, int) and not isinstance(number, bool) else float(number)


# ---- the parts ----------------------------------------------------------------------------------------------------


def _widths(pair: _Pair) -> Iterator[Difference]:
    for name in ("D", "Dv"):
        a, b = getattr(pair.found, name), getattr(pair.expected, name)
        if a is not None and b is not None and a != b:
            yield pair.difference("widths", str(a), str(b), f"{name} is {a}; expected {b}", None)


def _heads(pair: _Pair) -> Iterator[Difference]:
    a, b = pair.found.head_map, pair.expected.head_map
    both = pair.values(a, b)
    if both is None or not (both[0] != both[1]).any():
        return

    def differ(env: Env) -> Array | None:
        found = pair.values(a, b, env)
        return None if found is None else found[0] != found[1]

    at = pair.first(differ, both[0] != both[1])
    here = pair.values(a, b, at)
    assert here is not None
    witness = pair.witness(at, str(int(here[0])), str(int(here[1])))
    got, want = print_expr(a), print_expr(b)
    heads = f"H={witness.sizes['H']}, Hkv={witness.sizes['Hkv']}"
    sentence = (
        f"query head h reads KV head {got}; expected {want}; first differs at h={witness.h} ({heads}): "
        f"{witness.found} against {witness.expected}"
    )
    yield pair.difference("heads", got, want, sentence, witness)


@dataclass(frozen=True, slots=True)
class _Logits:
    """What enters the softmax (or is the weight) at every point on both sides, and where each masks."""

    a: Array
    b: Array
    a_masked: Array
    b_masked: Array


def _logits(pair: _Pair, env: Env | None = None) -> _Logits | None:
    """A sentinel in a score masks as a mask does."""
    found, expected = pair.found, pair.expected
    keep = pair.values(found.attended, expected.attended, env)
    mine, wanted = (Call("where", (f.attended, f.score, f.fill)) for f in (found, expected))
    both = pair.values(mine, wanted, env)
    if keep is None or both is None:
        return None
    sides = zip(both, (found, expected), strict=True)
    low = [np.asarray(x <= MASKED) if f.normaliser == "softmax" else np.False_ for x, f in sides]
    masked = [~np.asarray(k, dtype=bool) | x for k, x in zip(keep, low, strict=True)]
    return _Logits(both[0], both[1], masked[0], masked[1])


def _mask(pair: _Pair) -> Iterator[Difference]:
    both = _logits(pair)
    if both is None:
        return
    wrong = both.a_masked != both.b_masked
    if not wrong.any():
        return

    def differ(env: Env) -> Array | None:
        found = _logits(pair, env)
        return None if found is None else found.a_masked != found.b_masked

    at = pair.first(differ, wrong)
    here = _logits(pair, at)
    assert here is not None
    words = ("masked", "attended") if bool(here.a_masked) else ("attended", "masked")
    witness = pair.witness(at, *words)
    got, want = mask_text(pair.found), mask_text(pair.expected)
    why = "" if _same_mask(pair) is False else "the conditions agree, the tiles that are visited or tested do not; "
    sentence = f"attends {got}; expected {want}; {why}first differs at {witness.place}: {words[0]}, expected {words[1]}"
    yield pair.difference("mask", got, want, sentence, witness)


def _same_mask(pair: _Pair) -> bool | None:
    """True where the conditions as written agree everywhere, so that guards or the visited range are to blame."""
    both = pair.values(pair.found.mask, pair.expected.mask)
    return None if both is None else bool((both[0].astype(bool) == both[1].astype(bool)).all())


def _fill(pair: _Pair) -> Iterator[Difference]:
    """Fills that differ where both mask, beyond those that act alike."""
    both = _logits(pair)
    if both is None or pair.found.normaliser != pair.expected.normaliser:
        return
    a, b = (np.maximum(np.nan_to_num(x, nan=0.0, neginf=ALIKE), ALIKE) for x in (both.a, both.b))
    wrong = both.a_masked & both.b_masked & ~np.isclose(a, b, rtol=1e-4, atol=0)
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    got, want = f"{both.a[at]:.6g}", f"{both.b[at]:.6g}"
    yield pair.difference("fill", got, want, f"masked scores become {got}; expected {want}", None)


def _score(pair: _Pair) -> Iterator[Difference]:
    both = _logits(pair)
    if both is None:
        return
    wrong = _scores_differ(pair, both, pair.env)
    if wrong is None or not wrong.any():
        return

    def differ(env: Env) -> Array | None:
        found = _logits(pair, env)
        return None if found is None else _scores_differ(pair, found, env)

    at = pair.first(differ, wrong)
    here = _logits(pair, at)
    assert here is not None
    witness = pair.witness(at, f"{float(here.a):.5g}", f"{float(here.b):.5g}")
    got, want = print_expr(pair.found.score), print_expr(pair.expected.score)
    sentence = (
        f"score is {got}; expected {want}; first differs at {witness.place}, s={float(at['s']):.3g}: "
        f"{witness.found} against {witness.expected}"
    )
    yield pair.difference("score", got, want, sentence, witness)


def _scores_differ(pair: _Pair, both: _Logits, env: Env) -> Array | None:
    """Where scores that both attend differ. A constant of the row is no difference where only a softmax sees it."""
    base: tuple[Any, Any] = (0.0, 0.0)
    if _shift_free(pair):
        shifted = {**env, "j": np.zeros_like(env["j"]), "s": np.full_like(env["s"], 0.75)}
        found = pair.values(pair.found.score, pair.expected.score, shifted)
        if found is None:
            return None
        base = found
    with np.errstate(invalid="ignore"):
        near = np.isclose(both.a - base[0], both.b - base[1], rtol=_NEAR, atol=_NEAR / 10, equal_nan=True)
    return ~both.a_masked & ~both.b_masked & ~near


def _shift_free(pair: _Pair) -> bool:
    return all(f.sink is None and f.normaliser == "softmax" and f.lse == "none" for f in (pair.found, pair.expected))


def _sink(pair: _Pair) -> Iterator[Difference]:
    found, expected = pair.found, pair.expected
    if "softmax" not in (found.normaliser, expected.normaliser):
        return
    absent = Const(-math.inf)
    both = pair.values(found.sink or absent, expected.sink or absent)
    if both is None:
        return
    wrong = ~np.isclose(both[0].astype(float), both[1].astype(float), rtol=_NEAR, atol=_NEAR / 10)
    same_weight = math.isclose(found.sink_weight, expected.sink_weight, abs_tol=1e-9)
    if not wrong.any() and same_weight:
        return
    got, want = (_sink_text(f) for f in (found, expected))
    sentence = f"the softmax has {got}; expected {want}"
    if found.sink is not None and not wrong.any():
        sentence += f"; it is counted {found.sink_weight:g} times in the row sum, expected {expected.sink_weight:g}"
    yield pair.difference("sink", got, want, sentence, None)


def _sink_text(function: Function) -> str:
    if function.sink is None:
        return "no sink" if function.sink_weight == 0 else f"a row sum that starts at {function.sink_weight:g}"
    return f"a sink of logit {print_expr(function.sink)}"


def _weights(pair: _Pair) -> Iterator[Difference]:
    found, expected = pair.found, pair.expected
    got, want = weights_text(found), weights_text(expected)
    if found.normaliser == expected.normaliser:
        count = len(pair.env["i"])
        mass = np.exp(pair.env["s"] / 4) * np.where(np.arange(count) % 2, 1.0, -1.0)
        both = pair.values(found.output, expected.output, {**pair.env, "l": mass})
        if both is None or np.allclose(both[0].astype(float), both[1].astype(float), rtol=_NEAR, atol=1e-6):
            return
    yield pair.difference("weights", got, want, f"O is {got}; expected {want}", None)


def weights_text(function: Function) -> str:
    """What O is made of, in words."""
    if function.normaliser == "softmax":
        extra = "" if print_expr(function.output) == "s" else f", stored as {print_expr(function.output)}"
        return f"the softmax-weighted mean of V{extra}"
    sums = {"none": "", "sum": " (l sums the weights)", "abs_sum": " (l sums the absolute weights)"}
    return (
        f"the sum of V weighted by the score itself, stored as {print_expr(function.output)}{sums[function.normaliser]}"
    )


_LSE = {"ln": "the natural log-sum-exp", "log2": "a base-2 log-sum-exp", "none": "no log-sum-exp"}


def _lse(pair: _Pair) -> Iterator[Difference]:
    a, b = pair.found.lse, pair.expected.lse
    if a == b or (b == "none" and not pair.strict):
        return
    got, want = _LSE.get(a, a), _LSE.get(b, b)
    yield pair.difference("lse", got, want, f"returns {got}; expected {want}", None)


def _issues(pair: _Pair) -> Iterator[Difference]:
    for issue in pair.found.issues:
        if issue not in pair.expected.issues:
            yield pair.difference("structure", issue, "", f"it is no attention of the usual kind: {issue}", None)


_PARTS = (_widths, _heads, _mask, _fill, _score, _sink, _weights, _lse, _issues)

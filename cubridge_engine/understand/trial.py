"""What a program does when it is executed: does it agree with its formula, on ragged lengths too, and what does a row
without keys give?

The formula is evaluated in float64 for whole problems, beside the interpreter of CuIR. Nothing here reads the program:
a sentence that rests on it was seen to hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic
from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import Expr, Read, free_vars, walk
from ..ir.interp import Outputs, execute
from ..ir.nodes import Copy, If, Kernel, Op, StoreTile
from ..transfer.structure import tile_walk, walk_ops
from .functions import LOG2E, expressions_of, kind_of
from .model import Function, Witness

Array = NDArray[Any]
TOLERANCE = 1e-6  # of an element, relative to the largest of its row; nothing is rounded
OUT_OF_BOUNDS = "CB508"
_MOST_READS = 4  # operands that index operands, at most that deep


@dataclass(frozen=True, slots=True)
class Problem:
    """Sizes to execute, and what for: a name of `ALL` or `CLOSER`. `late`: asynchronous copies land as late as they may
    (else as early).
    """

    name: str
    sizes: Mapping[str, int]
    late: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """One problem, executed. `agrees`: every row with a key is what the formula gives. `empty`: what rows without a key
    give (a key of `EMPTY`), '' where there is none, `empty_lse` what their LSE is. `visited` and `live` count KV tiles.
    """

    problem: Problem
    values: Mapping[str, float | int]
    agrees: bool
    first: Witness | None
    findings: tuple[Diagnostic, ...]
    empty: str
    empty_lse: str
    visited: int
    live: int


@dataclass(frozen=True, slots=True)
class Behaviour:
    """All runs. `stopped` says why nothing could be executed, or ''."""

    runs: tuple[Ran, ...] = ()
    stopped: str = ""

    def of(self, *names: str) -> tuple[Ran, ...]:
        """The runs of those problems."""
        return tuple(r for r in self.runs if r.problem.name in names)

    def agrees(self, *names: str) -> bool:
        """True when all runs of those problems (of all, without names) agree and there is one."""
        chosen = self.of(*names) if names else self.runs
        return bool(chosen) and all(r.agrees and not r.findings for r in chosen)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors by name (q, k, v, operands) and values of parameters, for one problem."""

    tensors: dict[str, Array]
    values: dict[str, float | int] = field(default_factory=dict[str, "float | int"])


class CannotExecute(ValueError):
    """The program cannot be executed on made-up inputs; the message says why."""


def behaviour(kernel: Kernel, function: Function) -> Behaviour:
    """Execute `kernel` on a few small problems at every setting of its switches, beside `function`, its formula with
    the kernel's own names. What counts is the mask as it is stated: tiles that are left out, or not tested, are not
    taken over from the program. Never raises.
    """
    stated = replace(function, attended=function.mask)
    try:
        executable(kernel)
        runs = _runs(kernel, stated, ALL)
        if not all(r.agrees and not r.findings for r in runs):
            runs += _runs(kernel, stated, CLOSER)
    except CannotExecute as why:
        return Behaviour((), str(why))
    return Behaviour(tuple(runs))


def _runs(kernel: Kernel, function: Function, names: tuple[str, ...]) -> list[Ran]:
    return [
        run_beside(kernel, function, problem, setting)
        for problem in problems_of(kernel, function, names)
        for setting in settings(kernel)
    ]


def executable(kernel: Kernel) -> None:
    """Raises CannotExecute for a program whose inputs somebody else must make."""
    if any(isinstance(op, Copy) and op.table for op in walk_ops(kernel.body)):
        raise CannotExecute("its keys lie in pages, which are not made up here")
    if tile_walk(kernel) is not None:
        raise CannotExecute("its KV tiles come from a list that the caller makes")


def settings(kernel: Kernel, most: int = 2) -> Iterator[dict[str, int]]:
    """The settings of its switches; of more than `most`, those with all off and all on."""
    names = [p.name for p in kernel.params if p.role == "flag"]
    if len(names) > most:
        yield from (dict.fromkeys(names, 0), dict.fromkeys(names, 1))
        return
    for number in range(2 ** len(names)):
        yield {name: number >> at & 1 for at, name in enumerate(names)}


ALL = ("short", "ragged", "late", "square", "empty", "none")
WHOLE = ("whole", "wide", "tall")
CLOSER = (*WHOLE, "sq", "sk")  # which length it is that must be whole, when ragged ones fail


def problems_of(kernel: Kernel, function: Function, names: tuple[str, ...] = ALL) -> tuple[Problem, ...]:
    """Lengths around the kernel's own tiles, by name; heads as its head map has them. A kernel with one length for
    queries and keys gets those problems where they are equal.
    """
    br, bc = kernel.Br, kernel.Bc
    both = math.lcm(br, bc)
    lengths = {
        "short": (min(3, br), 7),
        "ragged": (br + max(br // 3, 1), 2 * bc + max(bc // 3, 1)),
        "late": (br + max(br // 3, 1), 2 * bc + max(bc // 3, 1)),
        "square": (max(br, bc) + max(bc // 3, 1),) * 2,
        "empty": (br + bc // 2 + 1, 5),
        "none": (br, 0),
        "whole": (2 * both, 2 * both),
        "wide": (both, 2 * both),
        "tall": (2 * both, both),
        "sq": (br + max(br // 3, 1), 2 * bc),
        "sk": (both, bc + max(bc // 3, 1)),
    }
    shared = "Hkv" in free_vars(function.head_map)
    found: list[Problem] = []
    for name in names:
        sq, sk = lengths[name]
        if sq != sk and not has_own_sk(kernel):
            if name not in ("short", "late"):
                continue
            sk = sq
        b, h, hkv = (2, 4 if shared else 2, 2) if name == "short" else (1, 2 if shared else 1, 1)
        sizes = {"B": b, "H": h, "Hkv": hkv, "Sq": sq, "Sk": sk, "D": kernel.D, "Dv": kernel.Dv}
        found.append(Problem(name, sizes, name == "late"))
    return tuple(found)


def has_own_sk(kernel: Kernel) -> bool:
    """True where the number of keys is a parameter of its own."""
    return any(p.role == "Sk" for p in kernel.params)


def run_beside(kernel: Kernel, function: Function, problem: Problem, setting: Mapping[str, int]) -> Ran:
    """One problem, executed and compared with the formula. Raises CannotExecute."""
    inputs = make_inputs(kernel, function, problem.sizes, setting)
    got = run(kernel, inputs, problem)
    sizes = problem.sizes
    want = dense(function, inputs, sizes)
    live = np.asarray(want.attended.any(axis=-1))
    first = _first_wrong(got, want, live, function, sizes, inputs)
    values = {n: v for n, v in inputs.values.items() if n in function.kinds}
    return Ran(
        problem,
        values,
        first is None and not any(d.code == OUT_OF_BOUNDS for d in got.findings),
        first,
        got.findings,
        _empty(got.o, inputs, sizes, live, kernel),
        _empty_lse(got.lse, live),
        got.tiles,
        _live_tiles(want.attended, kernel),
    )


def run(kernel: Kernel, inputs: Inputs, problem: Problem) -> Outputs:
    """The program executed, nothing rounded. Raises CannotExecute where it needs a value that nobody knows."""
    mode = "late" if problem.late else "early"
    got = execute(kernel, inputs.tensors, problem.sizes, inputs.values, async_mode=mode)
    for finding in got.findings:
        if finding.code in ("CB504", "CB505"):
            raise CannotExecute(finding.message)
    return got


# ---- inputs ---------------------------------------------------------------------------------------------------------


def make_inputs(
    kernel: Kernel, function: Function, sizes: Mapping[str, int], setting: Mapping[str, float | int]
) -> Inputs:
    """Random tensors, the same for the same sizes. Raises CannotExecute for an operand whose extent is not known."""
    rng = np.random.default_rng(20240 + sizes["Sq"] * 7 + sizes["Sk"])
    b, h, hkv, sq, sk = (sizes[n] for n in ("B", "H", "Hkv", "Sq", "Sk"))
    tensors: dict[str, Array] = {
        "q": rng.normal(0, 1, (b, h, sq, kernel.D)),
        "k": rng.normal(0, 1, (b, hkv, sk, kernel.D)),
        "v": rng.normal(0, 1, (b, hkv, sk, kernel.Dv)),
    }
    inputs = Inputs(tensors, {**values_of(kernel), **setting})
    for _ in range(_MOST_READS):
        for read in [e for part in expressions_of(function) for e in walk(part) if isinstance(e, Read)]:
            if read.tensor not in tensors:
                _make_operand(read, function, inputs, sizes, rng)
    return inputs


def values_of(kernel: Kernel) -> dict[str, float | int]:
    """A value for every scalar: a usual scale, 0 for switches, small numbers for the rest."""
    scale = float(kernel.D) ** -0.5
    values: dict[str, float | int] = {}
    for number, p in enumerate(kernel.params):
        if p.role in ("scale", "scale_log2"):
            values[p.name] = scale * (LOG2E if p.role == "scale_log2" else 1.0)
        elif p.role == "flag":
            values[p.name] = 0
        elif p.role == "scalar":
            values[p.name] = 1.5 + number / 8 if kind_of(p) == "float" else 5 + number % 7
    return values


def _make_operand(
    read: Read, function: Function, inputs: Inputs, sizes: Mapping[str, int], rng: np.random.Generator
) -> None:
    """Make the tensor of `read` as large as its indices go, unless these need another tensor first."""
    env = _env(function, inputs, sizes)
    try:
        index = [np.asarray(evaluate(e, env, inputs.tensors)) for e in read.index]
    except UnboundName as missing:
        if missing.args[0] in function.kinds:
            return
        raise CannotExecute(f"nothing says what {missing.args[0]} is") from missing
    shape = tuple(max(1, int(i.max(initial=0)) + 1) for i in index)
    if math.prod(shape) > 1 << 24:
        raise CannotExecute(f"{read.tensor} would have {math.prod(shape)} elements")
    kind = function.kinds.get(read.tensor, "float")
    if kind == "bool":
        inputs.tensors[read.tensor] = rng.random(shape) < 0.7
    elif kind == "int":
        inputs.tensors[read.tensor] = rng.integers(0, max(2, sizes["Sk"] + 1), shape)
    else:
        inputs.tensors[read.tensor] = rng.normal(0, 1, shape)


# ---- the formula ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dense:
    """The formula's values: `o` [B, H, Sq, Dv], `lse` [B, H, Sq] or None, and where a key is attended."""

    o: Array
    lse: Array | None
    attended: Array


def _env(function: Function, inputs: Inputs, sizes: Mapping[str, int]) -> dict[str, Any]:
    axes = ("b", "h", "i", "j")
    counts = [sizes[n] for n in ("B", "H", "Sq", "Sk")]
    env: dict[str, Any] = {**sizes, **inputs.values, "scale": float(sizes["D"]) ** -0.5}
    for at, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        env[axis] = np.arange(count).reshape([-1 if n == at else 1 for n in range(4)])
    env["hk"] = np.asarray(evaluate(function.head_map, env))
    return env


def dense(function: Function, inputs: Inputs, sizes: Mapping[str, int]) -> Dense:
    """Evaluate the formula for a whole problem. Raises CannotExecute for a name without a value."""
    shape = tuple(sizes[n] for n in ("B", "H", "Sq", "Sk"))
    try:
        env = _env(function, inputs, sizes)
        heads = np.broadcast_to(env["hk"].reshape(-1) if env["hk"].size > 1 else env["hk"].item(), (sizes["H"],))
        k, v = (np.asarray(inputs.tensors[n])[:, heads.astype(int)] for n in ("k", "v"))
        env["s"] = inputs.tensors["q"] @ np.swapaxes(k, 2, 3)

        def value(expr: Expr, extra: Mapping[str, Any] | None = None) -> Array:
            return np.asarray(evaluate(expr, {**env, **(extra or {})}, inputs.tensors))

        attended = np.broadcast_to(value(function.attended), shape).astype(bool)
        x = np.where(attended, value(function.score), value(function.fill))
        with np.errstate(all="ignore"):
            if function.normaliser != "softmax":
                total = (np.abs(x) if function.normaliser == "abs_sum" else x).sum(-1, keepdims=True)
                o = value(function.output, {"s": x @ v, "l": total, "j": 0})
                return Dense(np.broadcast_to(o, (*shape[:3], v.shape[3])), None, attended)
            sink = -np.inf if function.sink is None else value(function.sink, {"j": 0})
            top = np.maximum(x.max(axis=-1, keepdims=True, initial=-np.inf), sink)
            p = np.exp(x - top)
            total = p.sum(-1, keepdims=True) + function.sink_weight * np.exp(sink - top)
            # An output of its own divides by l itself; the plain one is the normalised row.
            row = p @ v if "l" in free_vars(function.output) else p @ v / total
            o = value(function.output, {"s": row, "l": total, "j": 0})
            lse = (top + np.log(total))[..., 0]
    except UnboundName as missing:
        raise CannotExecute(f"nothing says what {missing.args[0]} is") from missing
    return Dense(np.broadcast_to(o, (*shape[:3], v.shape[3])), lse, attended)


# ---- what was seen --------------------------------------------------------------------------------------------------


def _first_wrong(
    got: Outputs, want: Dense, live: Array, function: Function, sizes: Mapping[str, int], inputs: Inputs
) -> Witness | None:
    """The first row with a key that is not what the formula gives."""
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(want.o).max(axis=-1, keepdims=True, initial=0.0), 1e-30)
        wrong = ~(np.abs(got.o - want.o) <= TOLERANCE * size)
    rows = live & wrong.any(axis=-1)
    if rows.any():
        b, h, i = (int(n) for n in np.argwhere(rows)[0])
        d = int(np.argmax(wrong[b, h, i]))
        found, expected = f"O[{d}] = {got.o[b, h, i, d]:.5g}", f"{want.o[b, h, i, d]:.5g}"
        return Witness(sizes, b, h, i, None, found, expected, dict(inputs.values))
    if got.lse is None or want.lse is None or function.lse not in ("ln", "log2"):
        return None
    lse = want.lse * (LOG2E if function.lse == "log2" else 1.0)
    with np.errstate(all="ignore"):
        rows = live & ~(np.abs(got.lse - lse) <= TOLERANCE * np.maximum(np.abs(lse), 1.0))
    if not rows.any():
        return None
    b, h, i = (int(n) for n in np.argwhere(rows)[0])
    found, expected = f"LSE = {got.lse[b, h, i]:.5g}", f"{lse[b, h, i]:.5g}"
    return Witness(sizes, b, h, i, None, found, expected, dict(inputs.values))


EMPTY: dict[str, str] = {
    "zero": "0",
    "nan": "NaN",
    "unwritten": "NaN, or keeps what was in memory",
    "mean": "the mean of V",
    "finite": "a finite value that is no mean of V",
    "different": "values that differ from row to row",
}


def _empty(o: Array, inputs: Inputs, sizes: Mapping[str, int], live: Array, kernel: Kernel) -> str:
    """What rows without a key give, as a key of `EMPTY`; '' where there is none."""
    rows = o[~live]
    if not rows.size:
        return ""
    kind = empty_kind(rows)
    if kind == "nan" and _conditional_store(kernel.body):
        return "unwritten"
    if kind == "finite" and sizes["Sk"]:
        means = np.asarray(inputs.tensors["v"]).mean(axis=2)
        close = [np.isclose(row[None, None], means, rtol=1e-9, atol=1e-12).all(-1).any() for row in rows]
        return "mean" if all(close) else "finite"
    return kind


def empty_kind(rows: Array) -> str:
    """Rows of O in one word of `EMPTY`, as far as their values alone say it."""
    if np.isnan(rows).all():
        return "nan"
    if (rows == 0).all():
        return "zero"
    return "finite" if np.isfinite(rows).all() else "different"


def _empty_lse(lse: Array | None, live: Array) -> str:
    rows = np.asarray([]) if lse is None else lse[~live]
    kinds = {"-inf": np.isneginf(rows), "inf": np.isposinf(rows), "NaN": np.isnan(rows)}
    return next((name for name, holds in kinds.items() if rows.size and holds.all()), "finite" if rows.size else "")


def _conditional_store(body: tuple[Op, ...]) -> bool:
    inside = [x for op in walk_ops(body) if isinstance(op, If) for x in walk_ops((*op.body, *op.orelse))]
    return any(isinstance(op, StoreTile) for op in inside)


def _live_tiles(attended: Array, kernel: Kernel) -> int:
    """KV tiles with an attended key, over all CTAs."""
    sq, sk = attended.shape[2:]
    return sum(
        int(attended[:, :, q : q + kernel.Br, j : j + kernel.Bc].any(axis=(2, 3)).sum())
        for q in range(0, sq, kernel.Br)
        for j in range(0, sk, kernel.Bc)
    )

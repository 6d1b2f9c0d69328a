"""A text of a base run in the simulator: what its checkers say, and whether the numbers are those of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cubridge_engine import simulate
from cubridge_engine.compile import compile_source
from cubridge_engine.diagnostics import Diagnostic
from cubridge_engine.simulate import SCHEDULES, Schedule
from cubridge_engine.simulate.calling import output, prepare_call
from cubridge_engine.simulate.tensors import bits_of, floats
from cubridge_engine.verify.grid import LAYOUTS

from .bases import Base, Problem

MAX_STEPS = 6000
LSE_TOLERANCE = 1e-3


class DoesNotCompile(Exception):
    """The compiler refused the text: its first message."""


@dataclass(frozen=True)
class Shown:
    """What one launch showed: findings, the worst error of O relative to the size of its row, and that of LSE."""

    problem: Problem
    schedule: Schedule
    findings: tuple[Diagnostic, ...]
    o: float
    lse: float

    def wrong(self, base: Base) -> bool:
        """True when the numbers are not attention's."""
        return not (self.o < base.tolerance and self.lse < LSE_TOLERANCE)


@lru_cache(maxsize=8)
def module_of(text: str, path: str, arch: str, expression: str) -> simulate.Module:
    """The text compiled and loaded. Raises DoesNotCompile."""
    compiled = compile_source(
        text, path=path, arch=arch, name_expressions=(expression,), want=("ptx",), options=("-lineinfo",)
    )
    if compiled.ptx is None:
        raise DoesNotCompile(compiled.diagnostics[0].message if compiled.diagnostics else "no PTX")
    return simulate.load(compiled.ptx, {path: text})


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: str) -> tuple[np.ndarray, np.ndarray]:
    """O [B, H, Sq, D] and natural LSE in float64; `causal` is "", "top left" or "bottom right"."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    sq, sk = s.shape[-2:]
    if causal:
        shift = sk - sq if causal == "bottom right" else 0
        s = np.where(np.arange(sk)[None] <= np.arange(sq)[:, None] + shift, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    return p / safe @ v, np.where(total > 0, top + np.log(safe), -np.inf)[..., 0]


def sizes_of(base: Base, problem: Problem) -> dict[str, int]:
    """B, H, Hkv, Sq, Sk, D and Dv of a problem."""
    sk = problem.sk if "Sq == Sk" not in base.contract.requires else problem.sq
    d, dv = base.chosen.widths
    return {
        "B": problem.b, "H": problem.h, "Hkv": problem.hkv or problem.h, "Sq": problem.sq, "Sk": sk, "D": d, "Dv": dv
    }  # fmt: skip


def _random(sizes: dict[str, int], dtype: str, low: bool) -> dict[str, np.ndarray]:
    """q, k, v: numbers that the dtype has; the row maximum rises in the last keys, and V has a mean that lost weights
    would show. `low`: every score is about -300.
    """
    rng = np.random.default_rng(sizes["Sq"] * 1000 + sizes["Sk"])
    b, h, hkv, sq, sk = (sizes[n] for n in ("B", "H", "Hkv", "Sq", "Sk"))
    q = rng.standard_normal((b, h, sq, sizes["D"]))
    k = rng.standard_normal((b, hkv, sk, sizes["D"]))
    k[:, :, -max(sk // 4, 1) :] *= 3
    if low:
        q[..., 0], k[..., 0] = (sign * (300 * sizes["D"] ** 0.5) ** 0.5 for sign in (-1, 1))
    v = rng.standard_normal((b, hkv, sk, sizes["Dv"])) + 0.5
    return {name: floats(bits_of(x, dtype), dtype) for name, x in (("q", q), ("k", k), ("v", v))}


def run(base: Base, text: str, problem: Problem, schedule: Schedule) -> Shown:
    """One launch of a text in the place of the base's. Raises DoesNotCompile."""
    contract, instance = base.contract, base.chosen
    module = module_of(text, str(base.path), base.arch, instance.expression)
    sizes = sizes_of(base, problem)
    arrays = _random(sizes, instance.dtype, problem.low)
    # Where the kernel is told its strides, those of K and V differ.
    layouts = LAYOUTS["padded"] if "stride:k.row" in {p.role for p in contract.parameters} else {}
    call = prepare_call(contract, instance, sizes, arrays, {"causal": int(problem.causal)}, layouts=layouts)
    assert not call.diagnostics, [d.message for d in call.diagnostics]
    ran = module.launch(
        module.kernels[0], call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared, schedule=schedule,
        max_steps=MAX_STEPS,
    )  # fmt: skip
    if not ran.outputs:
        return Shown(problem, schedule, tuple(ran.findings), np.inf, np.inf)
    causal = ("top left" if base.top_left else "bottom right") if problem.causal else ""
    want_o, want_lse = attention(*(arrays[n] for n in "qkv"), causal)
    size = np.maximum(np.abs(want_o).max(-1, keepdims=True, initial=0.0), 1e-2)
    have_lse = output(call, ran, "lse") if contract.lse != "none" else want_lse
    with np.errstate(invalid="ignore"):
        off = np.where(have_lse == want_lse, 0.0, np.abs(have_lse - want_lse))
    return Shown(problem, schedule, tuple(ran.findings), _worst(np.abs(output(call, ran) - want_o) / size), _worst(off))


def _worst(x: np.ndarray) -> float:
    return float(np.where(np.isnan(x), np.inf, x).max(initial=0.0))


def first_shown(base: Base, text: str, schedules: Sequence[Schedule] = SCHEDULES) -> Shown | None:
    """The first launch in which something shows; None when the text looks clean on every problem and schedule."""
    for problem in base.problems:
        for schedule in schedules:
            shown = run(base, text, problem, schedule)
            if shown.findings or shown.wrong(base):
                return shown
    return None

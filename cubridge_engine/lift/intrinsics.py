"""CUDA's device functions, by name: what each computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import arithmetic, conditions, places, reinterpreted
from .machine import Machine, value_kind
from .trace import Sync
from .values import Node, NotUnderstood, Poly, Ptr, Value

Rule = Callable[[Machine, list[Value]], Value]


def _float(op: str) -> Rule:
    return lambda m, a: arithmetic.float_op(m, op, *(_as_float(m, x) for x in a))


def _as_float(m: Machine, value: Value) -> Value:
    if value_kind(value) in ("int", "bool") and not isinstance(value, bool | int):
        return m.store.node("float", (value,))
    return value


def _extreme(op: str) -> Rule:
    def rule(m: Machine, a: list[Value]) -> Value:
        if "float" in (value_kind(a[0]), value_kind(a[1])):
            return arithmetic.float_op(m, op, *(_as_float(m, x) for x in a))
        x, y = a[0], a[1]
        if isinstance(x, int) and isinstance(y, int):
            return max(x, y) if op == "max" else min(x, y)
        return m.store.node(op, (arithmetic.as_int(m, x), arithmetic.as_int(m, y)), kind="int")

    return rule


def _abs(m: Machine, a: list[Value]) -> Value:
    if value_kind(a[0]) == "float":
        return arithmetic.float_op(m, "abs", a[0])
    return abs(a[0]) if isinstance(a[0], int) else m.store.node("abs", (a[0],), kind="int")


def _identity(m: Machine, a: list[Value]) -> Value:
    return a[0]


def _fma(m: Machine, a: list[Value]) -> Value:
    return arithmetic.float_op(m, "add", arithmetic.float_op(m, "mul", a[0], a[1]), a[2])


def _barrier(m: Machine, a: list[Value]) -> Value:
    m.record(Sync(m.next_order(), m.place(), "barrier"))
    m.observer.meeting(m, "cta")
    return None


def _warp_barrier(m: Machine, a: list[Value]) -> Value:
    m.record(Sync(m.next_order(), m.place(), "barrier", scope="warp"))
    m.observer.meeting(m, "warp")
    return None


def _shuffle_xor(m: Machine, a: list[Value]) -> Value:
    m.observer.shuffle(m, a[0])
    if not isinstance(a[2], int):
        raise NotUnderstood("a shuffle whose lane mask is not constant")
    return m.store.node("shfl", (a[1],), ("xor", a[2]), value_kind(a[1]))


def _shuffle_down(m: Machine, a: list[Value]) -> Value:
    m.observer.shuffle(m, a[0])
    if not isinstance(a[2], int):
        raise NotUnderstood("a shuffle whose distance is not constant")
    return m.store.node("shfl", (a[1],), ("down", a[2]), value_kind(a[1]))


def _shuffle(m: Machine, a: list[Value]) -> Value:
    m.observer.shuffle(m, a[0])
    numbers = conditions.numbers(m.store, a[2])
    if numbers is None or (len(a) > 3 and a[3] != 32):
        raise NotUnderstood("a shuffle whose source lane is not known")
    source = numbers % 32
    if isinstance(a[1], int | float) or (isinstance(a[1], Node | Poly) and a[1].uniform):
        return a[1]  # every lane has the same value
    known = conditions.numbers(m.store, a[1])
    if known is not None:
        lanes = np.arange(len(known))
        return m.store.array(known[lanes - lanes % 32 + source])
    data = int(source[0]) if (source == source[0]).all() else tuple(source.tolist())
    return m.store.node("shfl", (a[1],), ("lane", data), value_kind(a[1]))


def _ticket(m: Machine, a: list[Value]) -> Value:
    """An atomic by which a persistent producer gets its next item; consumers compute nothing with atomics."""
    if not m.producing or not isinstance(a[0], Ptr) or a[0].space != "global":
        raise NotUnderstood("an atomic operation other than a producer's for its next item")
    return m.store.fresh("ticket", (), a[0].root, "int", True)


def _vote(m: Machine, a: list[Value]) -> Value:
    if a[0] not in (0xFFFFFFFF, -1):
        raise NotUnderstood("a vote of a part of a warp")
    return m.store.node("vote", (arithmetic.boolean(m, a[1]),), "any", "bool")


def _round(op: str) -> Rule:
    return lambda m, a: a[0] if isinstance(a[0], float) else m.store.node(op, (a[0],))


def _pack(dtype: str) -> Rule:
    return lambda m, a: m.store.node("pack", (a[0], a[1]), dtype, "wide")


def _pack_rounding(dtype: str, op: str) -> Rule:
    def rule(m: Machine, a: list[Value]) -> Value:
        return m.store.node("pack", (_round(op)(m, [a[0]]), _round(op)(m, [a[1]])), dtype, "wide")

    return rule


def _to_shared(m: Machine, a: list[Value]) -> Value:
    if isinstance(a[0], Ptr) and a[0].space == "shared":
        return a[0].offset
    raise NotUnderstood("the shared address of something that is not in shared memory")


def _ldg(m: Machine, a: list[Value]) -> Value:
    if isinstance(a[0], Ptr):
        return places.load(m, Ptr(a[0].space, a[0].root, a[0].offset, a[0].ctype))
    raise NotUnderstood("__ldg of something that is no pointer")


def _isinf(m: Machine, a: list[Value]) -> Value:
    return (
        m.store.node("isinf", (a[0],), kind="bool")
        if not isinstance(a[0], float)
        else a[0] in (float("inf"), float("-inf"))
    )


def _vector(element: str) -> Rule:
    return lambda m, a: m.store.node(
        "vec", tuple(_as_float(m, x) if element == "float" else x for x in a), element, "wide"
    )


def _component(at: int) -> Rule:
    return lambda m, a: places.component(m, a[0], "xyzw"[at])


def _reciprocal(m: Machine, a: list[Value]) -> Value:
    return arithmetic.float_op(m, "div", 1.0, a[0])


def _float2(m: Machine, a: list[Value]) -> Value:
    return m.store.node("vec", tuple(places.component(m, a[0], f) for f in "xy"), "float", "wide")


def _pack_float2(dtype: str, op: str) -> Rule:
    pack = _pack_rounding(dtype, op)
    return lambda m, a: pack(m, [places.component(m, a[0], f) for f in "xy"])


def _twice(dtype: str, op: str) -> Rule:
    def rule(m: Machine, a: list[Value]) -> Value:
        half = _round(op)(m, [a[0]])
        return m.store.node("pack", (half, half), dtype, "wide")

    return rule


def _pairwise(op: Rule) -> Rule:
    """A half2 function from the one on its halves."""

    def rule(m: Machine, a: list[Value]) -> Value:
        halves = [op(m, [places.component(m, x, f) for x in a]) for f in "xy"]
        return m.store.node("pack", tuple(m.store.node("fp16", (x,)) for x in halves), "fp16", "wide")

    return rule


def _half(op: Rule) -> Rule:
    """A half function: computed, then rounded."""
    return lambda m, a: m.store.node("fp16", (op(m, a),))


def _exp10(m: Machine, a: list[Value]) -> Value:
    return arithmetic.float_op(m, "exp", arithmetic.float_op(m, "mul", a[0], 2.302585092994046))


def _bits_as_float(m: Machine, a: list[Value]) -> Value:
    return reinterpreted.bits_as_float(a[0])


TABLE: dict[str, Rule] = {
    "__int_as_float": _bits_as_float,
    "__uint_as_float": _bits_as_float,
    "__syncthreads": _barrier,
    "__syncwarp": _warp_barrier,
    "__shfl_xor_sync": _shuffle_xor,
    "__shfl_down_sync": _shuffle_down,
    "__shfl_sync": _shuffle,
    "__cvta_generic_to_shared": _to_shared,
    "__any_sync": _vote,
    "atomicAdd": _ticket,
    "atomicExch": _ticket,
    "__ldg": _ldg,
    "__fmaf_rn": _fma,
    "fmaf": _fma,
    "fma": _fma,
    "__fdividef": _float("div"),
    "__fdiv_rn": _float("div"),
    "__frcp_rn": _reciprocal,
    "__fmul_rn": _float("mul"),
    "__fadd_rn": _float("add"),
    "__fsub_rn": _float("sub"),
    "exp10f": _exp10,
    "isinf": _isinf,
    **{name: _extreme("max") for name in ("max", "fmaxf", "fmax", "__hmax")},
    **{name: _extreme("min") for name in ("min", "fminf", "fmin", "__hmin")},
    **{name: _float("exp") for name in ("exp", "expf", "__expf")},
    **{name: _float("exp2") for name in ("exp2", "exp2f")},
    **{name: _float("log") for name in ("log", "logf", "__logf")},
    **{name: _float("log2") for name in ("log2", "log2f", "__log2f")},
    **{name: _float("tanh") for name in ("tanh", "tanhf")},
    **{name: _float("sqrt") for name in ("sqrt", "sqrtf", "__fsqrt_rn")},
    **{name: _float("rsqrt") for name in ("rsqrt", "rsqrtf")},
    **{name: _float("abs") for name in ("fabs", "fabsf")},
    "abs": _abs,
    **{name: _float("sin") for name in ("sinf", "__sinf")},
    **{name: _float("cos") for name in ("cosf", "__cosf")},
    "log1pf": _float("log1p"),
    "erff": _float("erf"),
    "floorf": _float("floor"),
    "ceilf": _float("ceil"),
    "powf": _float("pow"),
    "__powf": _float("pow"),
    **dict.fromkeys(("__half2float", "__bfloat162float", "__float2int_rz", "forward", "move"), _identity),
    **{name: _round("fp16") for name in ("__float2half", "__float2half_rn")},
    **{name: _round("bf16") for name in ("__float2bfloat16", "__float2bfloat16_rn")},
    **{name: _pack("fp16") for name in ("__pack_half2", "__halves2half2")},
    "make_half2": _pack("fp16"),
    "__floats2half2_rn": _pack_rounding("fp16", "fp16"),
    "__float22half2_rn": _pack_float2("fp16", "fp16"),
    "__halves2bfloat162": _pack("bf16"),
    "__floats2bfloat162_rn": _pack_rounding("bf16", "bf16"),
    "__float22bfloat162_rn": _pack_float2("bf16", "bf16"),
    "__half22float2": _float2,
    "__bfloat1622float2": _float2,
    "__low2float": _component(0),
    "__high2float": _component(1),
    "__low2half": _component(0),
    "__high2half": _component(1),
    **{f"make_{t}{n}": _vector(t) for t in ("float", "int", "uint") for n in (2, 3, 4)},
    "__float2half2_rn": _twice("fp16", "fp16"),
    "__float2bfloat162_rn": _twice("bf16", "bf16"),
    "__half2half2": lambda m, a: m.store.node("pack", (a[0], a[0]), "fp16", "wide"),
    **{f"__h{op}2": _pairwise(_float(op)) for op in ("add", "sub", "mul")},
    "__hfma2": _pairwise(_fma),
    **{f"__h{op}": _half(_float(op)) for op in ("add", "sub", "mul", "div")},
    "__hfma": _half(_fma),
    "__int2float_rn": lambda m, a: m.store.node("float", (a[0],)),
}

"""Floating point: f16, bf16, their packed forms, f32 and f64. Approximate functions are computed accurately."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, types_of
from ..model import Instruction, Operand

Handler = Callable[[Emitter, Instruction], str | None]

HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_FLOATS = (*HALVES, "f32", "f64")
_DIRECTED = ("rz", "rm", "rp")

# opcode -> expression over float operands
_FORMULAS = {
    "add": "{0}+{1}",
    "sub": "{0}-{1}",
    "mul": "{0}*{1}",
    "div": "{0}/{1}",
    "min": "A.fmin({0},{1})",
    "max": "A.fmax({0},{1})",
    "neg": "-{0}",
    "abs": "np.abs({0})",
    "ex2": "np.exp2({0})",
    "lg2": "np.log2({0})",
    "rcp": "{0}.dtype.type(1)/{0}",
    "sqrt": "np.sqrt({0})",
    "rsqrt": "{0}.dtype.type(1)/np.sqrt({0})",
    "sin": "np.sin({0})",
    "cos": "np.cos({0})",
    "tanh": "np.tanh({0})",
    "copysign": "np.copysign({1},{0})",
}


def float_type(ins: Instruction) -> str:
    """The float type of an instruction ('' when it has none)."""
    types = [t for t in types_of(ins) if t in _FLOATS]
    return types[-1] if types else ""


def is_float(ins: Instruction) -> bool:
    """True when the last type modifier is a float type."""
    types = types_of(ins)
    return bool(types) and types[-1] in _FLOATS


def read_float(e: Emitter, operand: Operand, kind: str) -> str:
    """The operand as float32 (float64 for f64); packed types with a leading axis of 2."""
    if kind in HALVES:
        # Packed values get an axis of their own, so they must have one value per lane.
        bits = e.lanes(operand, "u", 32) if kind.endswith("x2") else e.read(operand, "u", 16)
        key = ("up", kind, e.stamp(operand))
        if key not in e.memo:
            e.memo[key] = e.temp(f"A.up({bits},{kind!r})")
        return e.memo[key]
    return e.read(operand, "f", 64 if kind == "f64" else 32)


def write_float(e: Emitter, ins: Instruction, expression: str, kind: str) -> None:
    """The inverse of ``read_float``, into the first operand."""
    if kind in HALVES:
        e.write(ins.args[0], f"A.down({expression},{kind!r})", "u32" if kind.endswith("x2") else "u16", ins)
    else:
        e.write(ins.args[0], expression, "f64" if kind == "f64" else "f32", ins)


def _mode(ins: Instruction) -> str:
    return next((m for m in _DIRECTED if m in ins.parts), "")


def _finish(e: Emitter, ins: Instruction, expression: str, kind: str) -> None:
    if ins.has("sat"):
        expression = f"A.saturate({expression})"
    if ins.has("relu"):
        expression = f"A.fmax({expression},f32(0))"
    if ins.has("ftz") and kind in ("f32", "f64"):
        expression = f"A.ftz({expression})"
    write_float(e, ins, expression, kind)


def _simple(name: str) -> Handler:
    def emit(e: Emitter, ins: Instruction) -> None:
        kind = float_type(ins)
        args = [read_float(e, a, kind) for a in ins.args[1:]]
        mode = _mode(ins)
        if ins.has("xorsign"):
            raise Unsupported("modifier .xorsign")
        if ins.has("ftz") and kind == "f32":
            args = [f"A.ftz({a})" for a in args]
        if len(args) == 3 and name in ("min", "max"):
            args = [_FORMULAS[name].format(*args[:2]), args[2]]
        expression = _FORMULAS[name].format(*args)
        if ins.has("NaN") and name in ("min", "max"):
            expression = f"np.{name}imum({','.join(args)})"
        if mode and kind == "f32" and name in ("add", "sub", "mul", "div", "rcp", "sqrt"):
            wide = [f"{a}.astype(f64)" for a in args]
            second = f"-{wide[1]}" if name == "sub" else wide[-1]
            if name in ("add", "sub"):
                expression = f"A.directed_sum({wide[0]},{second},{mode!r})"
            else:
                expression = f"A.directed({_FORMULAS[name].format(*wide)},{mode!r})"
        elif mode and kind == "f64" and name in ("add", "sub", "mul", "div", "rcp", "sqrt"):
            expression = f"E.directed64({name!r},{mode!r},{expression},{','.join(args)})"
        elif mode and name not in ("ex2", "lg2"):
            raise Unsupported(f"rounding .{mode} of {kind}")
        _finish(e, ins, expression, kind)

    return emit


def _fma(e: Emitter, ins: Instruction) -> None:
    kind = float_type(ins)
    args = ",".join(read_float(e, a, kind) for a in ins.args[1:4])
    mode = _mode(ins)
    if mode and kind not in ("f32", "f64"):
        raise Unsupported(f"rounding .{mode} of {kind}")
    if kind == "f64":
        expression = f"A.fma_double({args})"
        expression = f"E.directed64('fma',{mode!r},{expression},{args})" if mode else expression
    elif mode:
        expression = f"A.directed(A.fma64({args}),{mode!r})"
    else:
        expression = f"A.fma64({args})" if kind in HALVES else f"A.fma({args})"
    _finish(e, ins, expression, kind)


def _testp(e: Emitter, ins: Instruction) -> None:
    tests = {"nan": "np.isnan", "finite": "np.isfinite", "infinite": "np.isinf", "number": "~np.isnan"}
    if ins.parts[1] not in tests:
        raise Unsupported(f"test .{ins.parts[1]}")
    e.write(ins.args[0], f"{tests[ins.parts[1]]}({read_float(e, ins.args[1], float_type(ins))})", "p1", ins)


# Rows that integers share; ops.integer dispatches to them by type.
FLOAT_ROWS: dict[str, Handler] = {
    **{name: _simple(name) for name in ("add", "sub", "mul", "div", "min", "max", "neg", "abs")},
    "fma": _fma,
}
ROWS: dict[str, Handler] = {
    **{name: _simple(name) for name in ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh", "copysign")},
    "fma": _fma,
    "testp": _testp,
}

"""Scalar expressions as CUDA C++: one table of operators, C's precedence, float literals with their suffix."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..ir.expr import OPS, Call, Const, Expr, Read, Var, free_vars, type_of

PRIMARY, UNARY, TERNARY = 100, 90, 10
_C_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&&", "or": "||"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BITS = {"bitand": ("&", 42), "bitor": ("|", 38), "bitxor": ("^", 40), "shl": ("<<", 55), "shr": (">>", 55)}
# Functions of one float argument. tanhf and expf, not the approximate forms: the lowered score must be as exact as the
# kernel's own.
_FLOAT_CALLS = {
    "exp": "expf",
    "exp2": "exp2f",
    "log": "logf",
    "log2": "log2f",
    "log1p": "log1pf",
    "tanh": "tanhf",
    "sqrt": "sqrtf",
    "rsqrt": "rsqrtf",
    "sin": "sinf",
    "cos": "cosf",
    "erf": "erff",
    "floor": "floorf",
    "ceil": "ceilf",
}
_MINMAX = {"min": ("min", "fminf"), "max": ("max", "fmaxf")}


class NotInScope(KeyError):
    """A variable has no spelling at the site; `name` is the canonical one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Scope:
    """How canonical names are spelled at a site. `read` prints a tensor read (None: reads are not possible here)."""

    names: Mapping[str, str]
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    read: Callable[[Read, Scope], tuple[str, int]] | None = None
    float_suffix: str = ".f"
    constants: Mapping[str, float] = field(default_factory=dict[str, float])  # the file's own, used instead of literals
    inside: bool = False  # tensor reads need no bounds test here
    wide: bool = False  # 64-bit integers keep their width here
    functions: Mapping[str, str] = field(default_factory=dict[str, str])  # the kernel's own for exp, exp2, ...

    def spelled(self, name: str) -> tuple[str, int]:
        """Text and precedence of a variable. Raises NotInScope."""
        if name not in self.names:
            raise NotInScope(name)
        text = self.names[name].strip()
        if _is_enclosed(text):
            text = text[1:-1].strip()
        return text, text_precedence(text)


_ARITHMETIC = (("+", 60), ("-", 60), ("*", 70), ("/", 70), ("%", 70))
_TOKENS = (("?", TERNARY), ("||", 20), ("&&", 30), ("==", 45), ("!=", 45), ("<", 50), (">", 50), *_ARITHMETIC)


def _is_enclosed(text: str) -> bool:
    """True when one pair of parentheses holds the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


def text_precedence(text: str) -> int:
    """Precedence of the loosest operator outside all brackets of a piece of C++."""
    depth, loosest = 0, PRIMARY
    for at, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth or c.isalnum() or c in " _.":
            continue
        if c in "+-*" and not text[:at].strip():
            loosest = min(loosest, UNARY)
            continue
        if text[at - 1 : at + 1] == "->" or text[at : at + 2] == "->":
            continue
        for token, precedence in _TOKENS:
            if text.startswith(token, at):
                loosest = min(loosest, precedence)
    return loosest


def print_cuda(expr: Expr, scope: Scope, outer: int = 0) -> str:
    """One C++ expression, in parentheses where `outer` binds tighter. Raises NotInScope."""
    text, precedence = _print(expr, scope)
    return f"({text})" if precedence < outer else text


def float_literal(value: float, suffix: str = ".f") -> str:
    """``50.f``, ``0.125f``, ``-INFINITY``; as many digits as the double has, so that constants stay readable."""
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if math.isnan(value):
        return "NAN"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value)}{suffix}"
    return f"{value!r}f"


def _print(expr: Expr, scope: Scope) -> tuple[str, int]:
    if isinstance(expr, Const):
        return _const(expr, scope)
    if isinstance(expr, Var):
        return scope.spelled(expr.name)
    if isinstance(expr, Read):
        if scope.read is None:
            raise NotInScope(expr.tensor)
        return scope.read(expr, scope)
    assert isinstance(expr, Call)
    return _TABLE[expr.op](expr, scope)


def _const(expr: Const, scope: Scope) -> tuple[str, int]:
    if isinstance(expr.value, bool):
        return ("true" if expr.value else "false"), PRIMARY
    if isinstance(expr.value, float):
        named = [n for n, value in scope.constants.items() if math.isclose(value, expr.value, rel_tol=1e-7)]
        if named:
            return named[0], PRIMARY
    text = str(expr.value) if isinstance(expr.value, int) else float_literal(expr.value, scope.float_suffix)
    return text, UNARY if text.startswith("-") else PRIMARY


def _is_float(expr: Expr, scope: Scope) -> bool:
    return type_of(expr, scope.types) == "float"


def _as_float(expr: Expr, scope: Scope, outer: int = 71) -> str:
    """An integer operand of a float operation, cast where C would divide or compute in integers."""
    if isinstance(expr, Const) and not isinstance(expr.value, bool):
        return float_literal(float(expr.value), scope.float_suffix)
    if _is_float(expr, scope):
        return print_cuda(expr, scope, outer)
    return f"static_cast<float>({print_cuda(expr, scope)})"


def _infix(e: Call, scope: Scope) -> tuple[str, int]:
    precedence = OPS[e.op].precedence
    parts: list[str] = []
    for n, arg in enumerate(e.args):
        other = e.args[1 - n]
        # float(x) beside a float operand: C converts by itself.
        if e.op in ("add", "sub", "mul") and isinstance(arg, Call) and arg.op == "float" and _stays_float(other, scope):
            arg = arg.args[0]
        elif _is_float(other, scope) and isinstance(arg, Const) and isinstance(arg.value, int) and e.op != "and":
            arg = Const(float(arg.value))
        # a * (b / c) needs its parentheses: integer division does not associate, and float division rounds otherwise.
        same = isinstance(arg, Call) and arg.op == e.op != "sub"
        tight = precedence + (1 if n == 1 and not same else 0)
        # gcc and clang warn about && inside || without parentheses; people write them.
        if e.op == "or" and isinstance(arg, Call) and arg.op == "and":
            tight = PRIMARY
        parts.append(print_cuda(arg, scope, tight))
    if _looks_like_template(e.op, f"{parts[0]} {parts[1]}"):
        parts = [f"({p})" if _COMPARISON.search(p) and not _is_enclosed(p) else p for p in parts]
    return f"{parts[0]} {_C_INFIX[e.op]} {parts[1]}", precedence


# ``a < b && c > d`` is a template argument list to many a parser (and reader): such comparisons get parentheses.
_LIKE_TEMPLATE = re.compile(r"<(?![=<]).*>(?!>)")
_LIKE_ASSIGNMENT = re.compile(r"<(?![=<]).*>=")
_LIKE_CALL = re.compile(r"<(?![=<]).*(?<!>)> \x00")  # the mark stands for a pair of brackets
_COMPARISON = re.compile(r"(?<![<>])[<>](?![<>])")


def _looks_like_template(op: str, text: str) -> bool:
    """True for ``a < b && c > d``, and for ``a < b || c >= d`` and ``a < b || c > (d)`` where no brackets keep the two
    apart: ``a`` with an argument list is then assigned to, or called.
    """
    if op == "or":
        while (shorter := re.sub(r"\([^()]*\)", "\x00", text)) != text:
            text = shorter
        return bool(_LIKE_ASSIGNMENT.search(text) or _LIKE_CALL.search(text))
    return op == "and" and bool(_LIKE_TEMPLATE.search(text))


def _stays_float(expr: Expr, scope: Scope) -> bool:
    """True for a float that does not get its type from a cast only."""
    return _is_float(expr, scope) and not (isinstance(expr, Call) and expr.op == "float")


def _compare(e: Call, scope: Scope) -> tuple[str, int]:
    precedence = OPS[e.op].precedence
    a, b = e.args
    if isinstance(a, Read) and isinstance(b, Read):
        scope = replace(scope, wide=True)
    if _is_float(a, scope) and isinstance(b, Const) and isinstance(b.value, int):
        b = Const(float(b.value))
    # A shift gets parentheses: ``x >> 4 < y`` is a template to some parsers, and puzzles readers.
    left, right = print_cuda(a, scope, 56), print_cuda(b, scope, 56)
    return f"{left} {_COMPARE[e.op]} {right}", precedence


def _div(e: Call, scope: Scope) -> tuple[str, int]:
    if "div" in scope.functions and "s" in free_vars(e.args[1]):
        return f"{scope.functions['div']}({', '.join(_as_float(a, scope, 0) for a in e.args)})", PRIMARY
    return f"{_as_float(e.args[0], scope, 70)} / {_as_float(e.args[1], scope)}", 70


def _floordiv(e: Call, scope: Scope) -> tuple[str, int]:
    a, b = e.args
    if nonnegative(a) and nonnegative(b):
        return f"{print_cuda(a, scope, 70)} / {print_cuda(b, scope, 71)}", 70
    if isinstance(b, Const) and _power_of_two(b.value):
        return f"{print_cuda(a, scope, UNARY)} >> {int(b.value).bit_length() - 1}", 55
    remainder, _ = _mod(Call("mod", (a, b)), scope)
    return f"({print_cuda(a, scope, 60)} - ({remainder})) / {print_cuda(b, scope, 71)}", 70


def _mod(e: Call, scope: Scope) -> tuple[str, int]:
    a, b = e.args
    if nonnegative(a) and nonnegative(b):
        return f"{print_cuda(a, scope, 70)} % {print_cuda(b, scope, 71)}", 70
    if isinstance(b, Const) and _power_of_two(b.value):
        return f"{print_cuda(a, scope, UNARY)} & {int(b.value) - 1}", 42
    divisor = print_cuda(b, scope, 71)
    return f"({print_cuda(a, scope, 70)} % {divisor} + {divisor}) % {divisor}", 70


def _power_of_two(value: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and value & (value - 1) == 0


def nonnegative(expr: Expr) -> bool:
    """True when an integer expression cannot be negative, so that C's division is the floor. Conservative."""
    if isinstance(expr, Const):
        return expr.value >= 0
    if isinstance(expr, Var):
        return expr.name in (
            "i",
            "j",
            "b",
            "h",
            "hk",
            "B",
            "H",
            "Hkv",
            "Sq",
            "Sk",
            "D",
            "q0",
            "kv0",
            "Br",
            "Bc",
            "qt",
            "lane",
        )
    if isinstance(expr, Call):
        if expr.op == "sub" and expr.args[1] == Const(1):
            return _at_least_one(expr.args[0])
        if expr.op in ("add", "mul", "min", "floordiv"):
            return all(nonnegative(a) for a in expr.args)
        if expr.op == "max":
            return any(nonnegative(a) for a in expr.args)
        return expr.op == "abs" or (expr.op == "mod" and nonnegative(expr.args[1]))
    return False


def _at_least_one(expr: Expr) -> bool:
    """True for a sum with a tile size in it."""
    if isinstance(expr, Call) and expr.op == "add":
        return nonnegative(expr) and any(_at_least_one(a) for a in expr.args)
    return expr in (Var("Br"), Var("Bc"))


def _minmax(e: Call, scope: Scope) -> tuple[str, int]:
    name = _MINMAX[e.op][1 if _is_float(e, scope) else 0]
    return f"{name}({', '.join(print_cuda(a, scope) for a in e.args)})", PRIMARY


def _abs(e: Call, scope: Scope) -> tuple[str, int]:
    return f"{'fabsf' if _is_float(e, scope) else 'abs'}({print_cuda(e.args[0], scope)})", PRIMARY


def _neg(e: Call, scope: Scope) -> tuple[str, int]:
    inner = print_cuda(e.args[0], scope, UNARY)
    return (f"-({inner})" if inner.startswith("-") else f"-{inner}"), UNARY


def _not(e: Call, scope: Scope) -> tuple[str, int]:
    return f"!{print_cuda(e.args[0], scope, UNARY)}", UNARY


def _where(e: Call, scope: Scope) -> tuple[str, int]:
    c, a, b = e.args
    if _is_float(e, scope):
        a, b = (Const(float(x.value)) if isinstance(x, Const) and not isinstance(x.value, bool) else x for x in (a, b))
    yes, no = print_cuda(a, scope, TERNARY + 1), print_cuda(b, scope, TERNARY)
    return f"{print_cuda(c, scope, TERNARY + 1)} ? {yes} : {no}", TERNARY


def _call(e: Call, scope: Scope) -> tuple[str, int]:
    a = e.args[0]
    text = print_cuda(a, scope) if _is_float(a, scope) else _as_float(a, scope)
    return f"{scope.functions.get(e.op, _FLOAT_CALLS[e.op])}({text})", PRIMARY


def _bits(e: Call, scope: Scope) -> tuple[str, int]:
    token, precedence = _BITS[e.op]
    return (
        f"{print_cuda(e.args[0], scope, precedence + 1)} {token} {print_cuda(e.args[1], scope, precedence + 1)}",
        precedence,
    )


def _sigmoid(e: Call, scope: Scope) -> tuple[str, int]:
    inner = e.args[0]
    turned = Call("sub", (inner.args[1], inner.args[0])) if isinstance(inner, Call) and inner.op == "sub" else None
    below = Call("add", (Const(1.0), Call("exp", (turned or Call("neg", (inner,)),))))
    return _div(Call("div", (Const(1.0), below)), scope)


def _relu(e: Call, scope: Scope) -> tuple[str, int]:
    return _minmax(Call("max", (e.args[0], Const(0.0))), scope)


def _pow(e: Call, scope: Scope) -> tuple[str, int]:
    base, power = e.args
    if isinstance(power, Const) and power.value == 2 and not _has_call(base):
        return f"{print_cuda(base, scope, 71)} * {print_cuda(base, scope, 71)}", 70
    return f"powf({_as_float(base, scope)}, {_as_float(power, scope)})", PRIMARY


def _has_call(expr: Expr) -> bool:
    return isinstance(expr, Read | Call)


def _sign(e: Call, scope: Scope) -> tuple[str, int]:
    zero = Const(0.0) if _is_float(e.args[0], scope) else Const(0)
    one, minus = (Const(1.0), Const(-1.0)) if _is_float(e.args[0], scope) else (Const(1), Const(-1))
    below = Call("where", (Call("lt", (e.args[0], zero)), minus, zero))
    return _where(Call("where", (Call("gt", (e.args[0], zero)), one, below)), scope)


def _cast(to: str) -> Callable[[Call, Scope], tuple[str, int]]:
    return lambda e, scope: (f"static_cast<{to}>({print_cuda(e.args[0], scope)})", PRIMARY)


def _rounded(there: str, back: str) -> Callable[[Call, Scope], tuple[str, int]]:
    return lambda e, scope: (f"{back}({there}({print_cuda(e.args[0], scope)}))", PRIMARY)


_TABLE: dict[str, Callable[[Call, Scope], tuple[str, int]]] = {
    **dict.fromkeys(_C_INFIX, _infix),
    **dict.fromkeys(_COMPARE, _compare),
    **dict.fromkeys(_BITS, _bits),
    **dict.fromkeys(_FLOAT_CALLS, _call),
    **dict.fromkeys(_MINMAX, _minmax),
    "div": _div,
    "floordiv": _floordiv,
    "mod": _mod,
    "neg": _neg,
    "not": _not,
    "abs": _abs,
    "where": _where,
    "float": _cast("float"),
    "int": _cast("int"),
    "fp16": _rounded("__float2half_rn", "__half2float"),
    "bf16": _rounded("__float2bfloat16_rn", "__bfloat162float"),
    "sigmoid": _sigmoid,
    "relu": _relu,
    "pow": _pow,
    "sign": _sign,
}

assert set(_TABLE) == set(OPS), set(OPS) ^ set(_TABLE)


def varies(expr: Expr) -> bool:
    """True when the value differs between elements of a tile."""
    return bool(free_vars(expr) & {"s", "i", "j", "kv0", "lane"})

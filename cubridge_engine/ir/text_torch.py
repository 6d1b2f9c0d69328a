"""Scalar expressions as PyTorch code that computes what ``ir.evaluate`` computes.

Indices ``i`` and ``j`` are int64 tensors, ``b h hk`` and sizes are Python numbers, numbers with a point are float64
(torch would make float32 of an integer tensor times 0.5). A read is ``at(tensor, i, j)``, a function of the generated
file that takes each index into range, as ``evaluate`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .expr import VAR_TYPES, Call, Const, Expr, Read, Var

TENSORS = frozenset({"i", "j"})  # variables that are tensors in the generated code

# Python's precedences, which are not C's: comparisons bind less than & and |.
_COMPARE, _OR, _XOR, _AND, _SHIFT, _SUM, _PRODUCT, _UNARY, _ATOM = range(1, 10)
_INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", _SUM),
    "sub": ("-", _SUM),
    "mul": ("*", _PRODUCT),
    "div": ("/", _PRODUCT),
    "floordiv": ("//", _PRODUCT),
    "mod": ("%", _PRODUCT),
    "bitand": ("&", _AND),
    "bitor": ("|", _OR),
    "bitxor": ("^", _XOR),
    "shl": ("<<", _SHIFT),
    "shr": (">>", _SHIFT),
    "lt": ("<", _COMPARE),
    "le": ("<=", _COMPARE),
    "gt": (">", _COMPARE),
    "ge": (">=", _COMPARE),
    "eq": ("==", _COMPARE),
    "ne": ("!=", _COMPARE),
    "and": ("&", _AND),
    "or": ("|", _OR),
}
_OF_FLOATS = ("exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "erf", "floor")
_FUNCTIONS = (*_OF_FLOATS, "ceil", "pow")
_EXTREMES = {"min": ("minimum", "minimum"), "max": ("maximum", "fmax")}  # for integers, for numbers with a point


class NoTorchText(ValueError):
    """A name of the expression is none that the generated code knows."""


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    precedence: int
    kind: str  # 'bool' | 'int' | 'float'
    tensor: bool  # False: a Python number

    def at_least(self, precedence: int) -> str:
        return self.text if self.precedence >= precedence else f"({self.text})"

    def method(self, calls: str, kind: str) -> _Text:
        return _Text(f"{self.at_least(_ATOM)}{calls}", _ATOM, kind, True)


def print_torch(expr: Expr, tensors: Mapping[str, tuple[str, str]], names: frozenset[str] | set[str]) -> str:
    """One line of Python. `tensors`: name in the expression -> (name in the code, dtype); `names`: the variables that
    the code has. It may use ``torch``, ``at`` and ``device``. Raises NoTorchText.
    """
    return _print(expr, tensors, names).text


def _print(expr: Expr, tensors: Mapping[str, tuple[str, str]], names: frozenset[str] | set[str]) -> _Text:
    if isinstance(expr, Const):
        return _const(expr.value)
    if isinstance(expr, Var):
        if expr.name not in names:
            raise NoTorchText(f"`{expr.name}` is not known before the launch")
        return _Text(expr.name, _ATOM, VAR_TYPES.get(expr.name, "float"), expr.name in TENSORS)
    if isinstance(expr, Read):
        return _read(expr, tensors, names)
    assert isinstance(expr, Call)
    expr = _subtracted(expr)
    args = [_print(a, tensors, names) for a in expr.args]
    if expr.op in _INFIX:
        return _infix(expr.op, *args)
    if expr.op in _FUNCTIONS:
        return _Text(f"torch.{expr.op}({', '.join(_double(a).text for a in args)})", _ATOM, "float", True)
    return _OTHERS[expr.op](args)


def _subtracted(expr: Call) -> Call:
    """``x + -y`` as ``x - y``."""
    last = expr.args[-1]
    if expr.op == "add" and isinstance(last, Call) and last.op == "neg":
        return Call("sub", (expr.args[0], last.args[0]))
    return expr


def _const(value: float | int | bool) -> _Text:
    if isinstance(value, float) and not math.isfinite(value):
        return _Text(f'float("{value}")', _ATOM, "float", False)
    return _Text(repr(value), _UNARY if value < 0 else _ATOM, type(value).__name__, False)


def _read(expr: Read, tensors: Mapping[str, tuple[str, str]], names: frozenset[str] | set[str]) -> _Text:
    if expr.tensor not in tensors:
        raise NoTorchText(f"`{expr.tensor}` is not known before the launch")
    name, dtype = tensors[expr.tensor]
    index = [_print(e, tensors, names).text for e in expr.index]
    kind = "bool" if dtype == "bool" else "float" if dtype.startswith(("float", "bfloat")) else "int"
    read = _Text(f"at({', '.join([name, *index])})", _ATOM, kind, True)
    return read.method(".double()", kind) if kind == "float" else read


def _infix(op: str, left: _Text, right: _Text) -> _Text:
    symbol, own = _INFIX[op]
    if op in ("and", "or"):
        left, right = _truth(left), _truth(right)
    elif op == "div" or "float" in (left.kind, right.kind):
        left, right = _widened(left), _widened(right)
    # Python chains comparisons, so neither side of one may be another.
    text = f"{left.at_least(own + (own == _COMPARE))} {symbol} {right.at_least(own + 1)}"
    kinds = (left.kind, right.kind)
    truth = own == _COMPARE or op in ("and", "or") or (symbol in "&|^" and kinds == ("bool", "bool"))
    kind = "bool" if truth else "float" if op == "div" or "float" in kinds else "int"
    return _Text(text, own, kind, left.tensor or right.tensor)


def _truth(x: _Text) -> _Text:
    return x if x.kind == "bool" else _Text(f"{x.at_least(_OR)} != 0", _COMPARE, "bool", x.tensor)


def _widened(x: _Text) -> _Text:
    """An operand beside a number with a point."""
    return x.method(".double()", "float") if x.tensor and x.kind != "float" else x


def _double(x: _Text) -> _Text:
    """A float64 tensor."""
    if x.tensor:
        return _widened(x)
    return _Text(f"torch.tensor({x.text}, dtype=torch.float64, device=device)", _ATOM, "float", True)


def _tensor(x: _Text, kind: str) -> _Text:
    """A tensor of that kind."""
    if kind == "float":
        return _double(x)
    return x if x.tensor else replace(x, text=f"torch.tensor({x.text}, device=device)", precedence=_ATOM, tensor=True)


def _widest(args: Sequence[_Text]) -> str:
    kinds = {a.kind for a in args}
    return next(kind for kind in ("float", "int", "bool") if kind in kinds)


def _extreme(op: str) -> Callable[[Sequence[_Text]], _Text]:
    def printed(args: Sequence[_Text]) -> _Text:
        kind = _widest(args)
        if not any(a.tensor for a in args):
            return _Text(f"{op}({args[0].text}, {args[1].text})", _ATOM, kind, False)
        if kind == "int" and not all(a.tensor for a in args):
            x, bound = sorted(args, key=lambda a: not a.tensor)
            return x.method(f".clamp({'max' if op == 'min' else 'min'}={bound.text})", "int")
        name = _EXTREMES[op][kind == "float"]
        return _Text(f"torch.{name}({', '.join(_tensor(a, kind).text for a in args)})", _ATOM, kind, True)

    return printed


def _where(args: Sequence[_Text]) -> _Text:
    condition, kind = _truth(args[0]), _widest(args[1:])
    if not condition.tensor:
        then, other = (_tensor(a, kind) if args[1].tensor or args[2].tensor else a for a in args[1:])
        return _Text(f"({then.text} if {condition.text} else {other.text})", _ATOM, kind, then.tensor)
    parts = [condition.text, *(_tensor(a, kind).text for a in args[1:])]
    return _Text(f"torch.where({', '.join(parts)})", _ATOM, kind, True)


def _not(args: Sequence[_Text]) -> _Text:
    x = args[0]
    if x.kind != "bool":
        return _Text(f"{x.at_least(_OR)} == 0", _COMPARE, "bool", x.tensor)
    if x.tensor:
        return _Text(f"~{x.at_least(_UNARY)}", _UNARY, "bool", True)
    return _Text(f"(not {x.text})", _ATOM, "bool", False)


def _converted(kind: str, calls: str, word: str) -> Callable[[Sequence[_Text]], _Text]:
    def printed(args: Sequence[_Text]) -> _Text:
        if args[0].tensor:
            return args[0].method(calls, kind)
        return _Text(f"{word}({args[0].text})", _ATOM, kind, False)

    return printed


def _same_kind(name: str) -> Callable[[Sequence[_Text]], _Text]:
    return lambda args: _Text(f"torch.{name}({_tensor(args[0], args[0].kind).text})", _ATOM, args[0].kind, True)


_OTHERS: dict[str, Callable[[Sequence[_Text]], _Text]] = {
    "min": _extreme("min"),
    "max": _extreme("max"),
    "where": _where,
    "not": _not,
    "neg": lambda args: replace(args[0], text=f"-{args[0].at_least(_UNARY)}", precedence=_UNARY),
    "abs": lambda args: replace(args[0], text=f"abs({args[0].text})", precedence=_ATOM),
    "float": _converted("float", ".double()", "float"),
    "int": _converted("int", ".long()", "int"),
    "fp16": lambda args: _double(args[0]).method(".half().double()", "float"),
    "bf16": lambda args: _double(args[0]).method(".bfloat16().double()", "float"),
    "relu": _same_kind("relu"),
    "sign": _same_kind("sign"),
}

"""Positions used as floats (a distance times a slope) are converted once a tile and not once an element.

A conversion from int runs at the rate of an exponential, an eighth of an addition's. So ``float(j - i)`` becomes
``distance + (offset)``: `distance` is a float of this thread's first element, declared before the user's element loops;
the offset counts from there, in the loop variables alone, and is a constant wherever the loops are unrolled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..ir.anchors import ElementNest
from ..ir.expr import Call, Const, Expr, I, J, Var, free_vars, type_of
from ..ir.simplify import linear_terms
from .cuda_expr import Scope, print_cuda, text_precedence

_LOOP_VARIABLE = re.compile(r"\bfor\s*\(\s*(?:const\s+)?\w+\s+(\w+)\s*=")
_DECLARED = re.compile(r"(\w+)\s*=\s*(.*?)\s*;?\s*$", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_SUM = 60  # precedence of + and -
# Operators that a conversion to float goes through: of the rest, an int operand stays an int.
_FLOATED = frozenset({"min", "max", "abs", "neg"})
_OVER_FLOATS = frozenset({"add", "sub", "mul", "div", "min", "max", "exp", "exp2", "tanh", "sigmoid", "where"})
_EXPONENTIALS = frozenset({"exp", "exp2"})
Term = tuple[int, str]  # a factor and a text


@dataclass
class Distances:
    """Rewrites one score expression for a nest. `lines` are the declarations before the nest, `names` and `types` the
    new variables for its scope.
    """

    nest: ElementNest
    scope: Scope  # inside the nest
    make: Callable[[str], str]  # a new name from a wanted one
    lines: list[str] = field(default_factory=list[str])
    names: dict[str, str] = field(default_factory=dict[str, str])
    types: dict[str, str] = field(default_factory=dict[str, str])

    def rewrite(self, expr: Expr) -> Expr:
        """`expr` with every position that is used as a float in its new form, where the nest allows it."""
        if not self.nest.headers or not all("unroll" in header for header in self.nest.headers):
            return expr
        return self._visit(expr)

    def _visit(self, expr: Expr) -> Expr:
        if not isinstance(expr, Call):
            return expr
        if expr.op == "float":
            return self._floated(expr.args[0]) or expr
        if expr.op in _EXPONENTIALS and (scaled := self._scaled(expr.args[0])) is not None:
            return Call(expr.op, (scaled,))
        if expr.op not in _OVER_FLOATS or self._type(expr) != "float":
            return expr
        first = 1 if expr.op == "where" else 0
        args = [a if n < first else self._operand(a) for n, a in enumerate(expr.args)]
        return Call(expr.op, tuple(args))

    def _scaled(self, expr: Expr) -> Expr | None:
        """A distance times what is the same for the whole CTA: ``decay + (offset) * factor``, one FMA an element."""
        if not isinstance(expr, Call) or expr.op != "mul":
            return None
        for position, factor in (expr.args, expr.args[::-1]):
            inner = position.args[0] if isinstance(position, Call) and position.op == "float" else position
            if not isinstance(factor, Var) or free_vars(factor) & {"s", "i", "j"} or self._type(inner) != "int":
                continue
            floated = self._floated(inner)
            if not isinstance(floated, Call) or not isinstance(floated.args[0], Var):
                return None
            base = floated.args[0].name
            line = f"= {base} * {print_cuda(factor, self.scope, 70)};"
            name = self.make("decay")
            self.lines.append(f"const float {name} {line}")
            self.names[name], self.types[name] = name, "float"
            return Call(floated.op, (Var(name), floated.args[1] * factor))
        return None

    def _operand(self, arg: Expr) -> Expr:
        if self._type(arg) == "int":
            return self._floated(arg) or arg
        return self._visit(arg)

    def _type(self, expr: Expr) -> str:
        return type_of(expr, {**self.scope.types, **self.types})

    def _floated(self, expr: Expr) -> Expr | None:
        """A float expression of the value of integer `expr`; None where it stays a conversion."""
        if not free_vars(expr) & {"i", "j"}:
            return None
        if isinstance(expr, Call) and expr.op in _FLOATED:
            parts = [self._floated(a) or _constant(a) for a in expr.args]
            return None if None in parts else Call(expr.op, tuple(p for p in parts if p is not None))
        terms, constant = linear_terms(expr, self.scope.types)
        moving = {atom: factor for atom, factor in terms.items() if free_vars(atom) & {"i", "j"}}
        if set(moving) - {I, J}:
            return None
        base: list[Term] = []
        offset: list[Term] = []
        for atom, text in ((I, self.nest.row), (J, self.nest.col)):
            split = self._split(text) if atom in moving else ([], [])
            if split is None:
                return None
            base += [(moving[atom] * sign, part) for sign, part in split[0]]
            offset += [(moving[atom] * sign, part) for sign, part in split[1]]
        base += [(factor, print_cuda(atom, self.scope, 70)) for atom, factor in terms.items() if atom not in moving]
        if constant:
            base.append((constant, ""))
        if not base:
            return None
        return self._declared(base, offset, "distance" if len(moving) == 2 else "key" if J in moving else "query")

    def _declared(self, base: list[Term], offset: list[Term], wanted: str) -> Expr:
        line = f"= static_cast<float>({_sum_text(base)});"
        known = next((text for text in self.lines if text.endswith(line)), None)
        if known is None:
            name = self.make(wanted)
            self.lines.append(f"const float {name} {line}")
        else:
            name = known.split()[2]
        self.names[name] = name
        self.types[name] = "float"
        if not offset:
            return Var(name)
        back = all(factor < 0 for factor, _ in offset)
        text = _sum_text([(-factor if back else factor, part) for factor, part in offset])
        place = f"{name} offset {text}"
        self.names[place] = text
        self.types[place] = "int"
        return Call("sub" if back else "add", (Var(name), Call("float", (Var(place),))))

    def _split(self, text: str) -> tuple[list[Term], list[Term]] | None:
        """The terms of a position that are the same for all elements of a thread, and those that are not."""
        inside = {m[1] for header in self.nest.headers for m in _LOOP_VARIABLE.finditer(header)}
        declared = {m[1]: m[2] for line in self.nest.declarations if (m := _DECLARED.search(line)) is not None}
        text = declared.get(text.strip(), text).strip()
        if not inside or text_precedence(text) < _SUM:
            return None
        inside |= set(declared)
        fixed: list[Term] = []
        moving: list[Term] = []
        for sign, part in _terms(text):
            (moving if set(_WORD.findall(part)) & inside else fixed).append((sign, part))
        return fixed, moving


def _constant(expr: Expr) -> Expr | None:
    return Const(float(expr.value)) if isinstance(expr, Const) else None


def _terms(text: str) -> list[Term]:
    """The terms of a sum, with their signs: split at + and - outside all brackets."""
    found: list[Term] = []
    depth, start, sign = 0, 0, 1
    for at, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth or c not in "+-" or not text[start:at].strip():
            continue
        found.append((sign, text[start:at].strip()))
        sign, start = (1 if c == "+" else -1), at + 1
    found.append((sign, text[start:].strip()))
    return found


def _sum_text(terms: list[Term]) -> str:
    """``kv0 + 2 * (lane % 4) - row0``: positive terms first; an empty text stands for 1."""
    ordered = sorted(terms, key=lambda term: (term[0] < 0, not term[1]))
    out = ""
    for factor, text in ordered:
        size = abs(factor)
        shown = str(size) if not text else text if size == 1 else f"{size} * {_bracketed(text)}"
        joint = ("-" if factor < 0 else "") if not out else " - " if factor < 0 else " + "
        out += joint + shown
    return out


def _bracketed(text: str) -> str:
    return f"({text})" if text_precedence(text) <= 70 else text

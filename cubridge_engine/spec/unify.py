"""Two readings at different sizes become one with symbolic sizes: each number that changed is a function of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..ir.expr import Call, Const, Expr, Read, Var
from .nodes import Algebra, show, walk

Sizes = Mapping[str, int]


class NotUnified(Exception):
    """The readings differ in a way the sizes do not explain."""


_INTEGERS: tuple[tuple[Expr, Callable[[Sizes], int]], ...] = (
    (Call("sub", (Var("Sk"), Var("Sq"))), lambda z: z["Sk"] - z["Sq"]),
    (Var("Sk"), lambda z: z["Sk"]),
    (Var("Sq"), lambda z: z["Sq"]),
    (Call("floordiv", (Var("H"), Var("Hkv"))), lambda z: z["H"] // z["Hkv"]),
    (Var("H"), lambda z: z["H"]),
    (Var("Hkv"), lambda z: z["Hkv"]),
    (Var("B"), lambda z: z["B"]),
    (Call("floordiv", (Var("Sk"), Const(2))), lambda z: z["Sk"] // 2),
    (Call("floordiv", (Var("Sq"), Const(2))), lambda z: z["Sq"] // 2),
)
_FUNCTIONS: tuple[tuple[Callable[[Expr], Expr], Callable[[float], float]], ...] = (
    (lambda e: e, lambda x: x),
    (lambda e: Call("div", (Const(1.0), e)), lambda x: 1.0 / x),
    (lambda e: Call("sqrt", (Call("float", (e,)),)), math.sqrt),
    (lambda e: Call("rsqrt", (Call("float", (e,)),)), lambda x: 1.0 / math.sqrt(x)),
    (lambda e: Call("log", (Call("float", (e,)),)), lambda x: math.log(x)),
)


def unify(a: Expr, b: Expr, left: Sizes, right: Sizes) -> Expr:
    """The expression that is `a` at sizes `left` and `b` at sizes `right`. Raises NotUnified."""
    return _Unifier(left, right).merge(a, b)


class _Unifier:
    def __init__(self, left: Sizes, right: Sizes) -> None:
        self.left, self.right = left, right
        self.algebra = Algebra()

    def merge(self, a: Expr, b: Expr) -> Expr:
        if a == b:
            return a
        if self.algebra.is_int(a) and self.algebra.is_int(b):
            return self.merge_int(a, b)
        if isinstance(a, Const) and isinstance(b, Const):
            return self.solve_float(float(a.value), float(b.value))
        if isinstance(a, Call) and isinstance(b, Call) and a.op == b.op and len(a.args) == len(b.args):
            return Call(a.op, tuple(self.merge(x, y) for x, y in zip(a.args, b.args, strict=True)))
        if isinstance(a, Read) and isinstance(b, Read) and a.tensor == b.tensor:
            return Read(a.tensor, tuple(self.merge(x, y) for x, y in zip(a.index, b.index, strict=True)))
        raise NotUnified(f"{show(a)} at one size, {show(b)} at another")

    def merge_int(self, a: Expr, b: Expr) -> Expr:
        """Affine forms term by term: atoms that differ only in numbers are paired by their form."""
        left, c = self.algebra.affine(a)
        right, d = self.algebra.affine(b)
        pending = dict(right)
        atoms: list[tuple[Expr, Expr]] = []  # coefficient, atom
        for atom, coefficient in left.items():
            twin = atom if atom in pending else next((o for o in pending if _form(o) == _form(atom)), None)
            if twin is None:
                raise NotUnified(f"{show(a)} at one size, {show(b)} at another")
            merged = atom if twin == atom else self.merge_atom(atom, twin)
            atoms.append((self.solve_int(coefficient, pending.pop(twin)), merged))
        if pending:
            raise NotUnified(f"{show(a)} at one size, {show(b)} at another")
        return self.rebuild(atoms, self.solve_int(c, d))

    def merge_atom(self, a: Expr, b: Expr) -> Expr:
        if isinstance(a, Call) and isinstance(b, Call):
            return Call(a.op, tuple(self.merge(x, y) for x, y in zip(a.args, b.args, strict=True)))
        if isinstance(a, Read) and isinstance(b, Read):
            return Read(a.tensor, tuple(self.merge(x, y) for x, y in zip(a.index, b.index, strict=True)))
        raise NotUnified(f"{show(a)} at one size, {show(b)} at another")

    def rebuild(self, atoms: list[tuple[Expr, Expr]], const: Expr) -> Expr:
        plain = {atom: int(c.value) for c, atom in atoms if isinstance(c, Const)}
        symbolic = [Call("mul", (atom, c)) for c, atom in atoms if not isinstance(c, Const)]
        base = self.algebra.build(plain, int(const.value) if isinstance(const, Const) else 0)
        parts: list[Expr] = [] if base == Const(0) and (symbolic or not isinstance(const, Const)) else [base]
        parts += symbolic
        if not isinstance(const, Const):
            parts.append(const)
        total = parts[0]
        for part in parts[1:]:
            total = Call("add", (total, part))
        return total

    def solve_int(self, x: int, y: int) -> Expr:
        """A size, or +-size + c, that is x and y; the smallest c wins."""
        if x == y:
            return Const(x)
        best: tuple[int, Expr] | None = None
        for expr, value in _INTEGERS:
            u, w = value(self.left), value(self.right)
            for factor in (1, -1, 2):
                if u == w or x - factor * u != y - factor * w:
                    continue
                rest = x - factor * u
                scaled = (
                    expr if factor == 1 else Call("neg", (expr,)) if factor == -1 else Call("mul", (expr, Const(2)))
                )
                cost = abs(rest) + (2 if factor != 1 else 0)
                if best is None or cost < best[0]:
                    op = "add" if rest > 0 else "sub"
                    best = (cost, scaled if rest == 0 else Call(op, (scaled, Const(abs(rest)))))
        if best is None:
            raise NotUnified(f"the number {x} at one size is {y} at another")
        return best[1]

    def solve_float(self, x: float, y: float) -> Expr:
        if x == y or (x != x and y != y):
            return Const(x)
        for expr, value in _INTEGERS:
            u, w = value(self.left), value(self.right)
            if u == w or u <= 1 or w <= 1:
                continue
            for wrap, fn in _FUNCTIONS:
                ratio = x / fn(u)
                if math.isclose(ratio, y / fn(w), rel_tol=1e-9):
                    return (
                        wrap(expr)
                        if math.isclose(ratio, 1.0, rel_tol=1e-12)
                        else Call("mul", (Const(ratio), wrap(expr)))
                    )
        raise NotUnified(f"the number {x:g} at one size is {y:g} at another")


def _form(expr: Expr) -> str:
    """The shape of an expression: everything but its numbers."""
    parts = [
        e.op if isinstance(e, Call) else e.name if isinstance(e, Var) else e.tensor if isinstance(e, Read) else "#"
        for e in walk(expr)
    ]
    # Terms may vanish at one size (a difference that is 0), so inner sums are compared by their variables only.
    return " ".join(sorted(p for p in parts if p not in ("add", "sub", "neg", "mul", "#")))

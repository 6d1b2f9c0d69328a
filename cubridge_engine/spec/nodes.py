"""The element language of the spec reader: scalar expressions, reductions and concatenations, and their algebra.

A traced tensor is read as a function of its indices. All sizes are numbers at this stage (`Algebra.extent` gives the
range of each index variable), which makes views exact: ``(b*4 + h) // 4`` is ``b`` because ``0 <= h < 4``. Comparisons
written by the user are never decided by these ranges: ``i - j < 256`` must not vanish because the traced length is 128.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ..ir.expr import FALSE, OPS, TRUE, Call, Const, Expr, Read, Var, type_of
from ..ir.text_expr import print_expr


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """``sum``, ``max``, ``any`` or ``all`` of `body` over ``0 <= var < extent``; `var` is named after its node."""

    op: str
    var: str
    extent: int
    body: Expr


@dataclass(frozen=True, slots=True)
class Cat(Expr):
    """``parts[n]`` where ``bounds[n] <= index < bounds[n+1]``: a concatenation whose index is not decided yet."""

    index: Expr
    bounds: tuple[int, ...]
    parts: tuple[Expr, ...]


ZERO = Const(0)
_INT_OPS = ("add", "sub", "mul", "neg")
_ORDER = {name: n for n, name in enumerate(("b", "h", "hk", "i", "j", "d"))}
_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, of the reader's own nodes too."""
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Read):
        return expr.index
    if isinstance(expr, Reduce):
        return (expr.body,)
    if isinstance(expr, Cat):
        return (expr.index, *expr.parts)
    return ()


def walk(expr: Expr) -> Iterable[Expr]:
    """All sub-expressions, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def variables(expr: Expr) -> frozenset[str]:
    """Free variables: bound ones of a reduction do not count."""
    if isinstance(expr, Var):
        return frozenset((expr.name,))
    inner: frozenset[str] = frozenset().union(*(variables(c) for c in children(expr)))
    return inner - {expr.var} if isinstance(expr, Reduce) else inner


def show(expr: Expr) -> str:
    """Text of an element expression, for ordering and messages."""
    if isinstance(expr, Reduce):
        return f"{expr.op}<{expr.var}<{expr.extent}>({show(expr.body)})"
    if isinstance(expr, Cat):
        return f"cat<{show(expr.index)}>({', '.join(show(p) for p in expr.parts)})"
    if isinstance(expr, Call):
        return f"{expr.op}({', '.join(show(a) for a in expr.args)})"
    if isinstance(expr, Read):
        return f"{expr.tensor}[{', '.join(show(e) for e in expr.index)}]"
    return print_expr(expr)


def factors(expr: Expr) -> tuple[list[Expr], list[Expr]]:
    """The factors above and below the fraction bar of a product."""
    if isinstance(expr, Call) and expr.op in ("mul", "div"):
        over, under = factors(expr.args[0])
        over2, under2 = factors(expr.args[1])
        return (over + over2, under + under2) if expr.op == "mul" else (over + under2, under + over2)
    if isinstance(expr, Call) and expr.op == "neg":
        over, under = factors(expr.args[0])
        return [Const(-1.0), *over], under
    return [expr], []


def terms(expr: Expr, sign: int = 1) -> list[tuple[int, Expr]]:
    """The signed terms of a sum."""
    if isinstance(expr, Call) and expr.op in ("add", "sub"):
        return terms(expr.args[0], sign) + terms(expr.args[1], sign if expr.op == "add" else -sign)
    if isinstance(expr, Call) and expr.op == "neg":
        return terms(expr.args[0], -sign)
    return [(sign, expr)]


def join_terms(parts: list[tuple[int, Expr]]) -> Expr:
    """Inverse of `terms`; 0.0 when there are none."""
    result: Expr | None = None
    for sign, part in parts:
        if result is None:
            result = part if sign > 0 else Call("neg", (part,))
        else:
            result = Call("add" if sign > 0 else "sub", (result, part))
    return Const(0.0) if result is None else result


def negate(expr: Expr) -> Expr:
    """Boolean negation, pushed to the comparisons (De Morgan) so that masks read as written by hand."""
    if isinstance(expr, Const):
        return FALSE if expr.value else TRUE
    if isinstance(expr, Call):
        if expr.op in _NEGATED:
            return Call(_NEGATED[expr.op], expr.args)
        if expr.op == "not":
            return expr.args[0]
        if expr.op in ("and", "or"):
            return Call("or" if expr.op == "and" else "and", tuple(negate(a) for a in expr.args))
    return Call("not", (expr,))


def both(a: Expr, b: Expr) -> Expr:
    """``a and b``, folded when one is constant."""
    if FALSE in (a, b):
        return FALSE
    return b if a == TRUE else a if b == TRUE else Call("and", (a, b))


def either(a: Expr, b: Expr) -> Expr:
    """``a or b``, folded when one is constant."""
    if TRUE in (a, b):
        return TRUE
    return b if a == FALSE else a if b == FALSE else Call("or", (a, b))


def _outside_exponents(expr: Expr) -> Iterable[Expr]:
    """The factors of a product, and of quotients in it, that are no exponentials."""
    over, under = factors(expr)
    return [f for f in (*over, *under) if not (isinstance(f, Call) and f.op == "exp")]


@dataclass
class Algebra:
    """Integer index algebra under known ranges. `types` gives the type of tensors that are not float."""

    extent: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)

    def is_int(self, expr: Expr) -> bool:
        """True when the expression is an integer: an index, a size, an integer tensor, or arithmetic of these."""
        if isinstance(expr, Const):
            return type(expr.value) is int
        if isinstance(expr, Var):
            return expr.name != "s"
        if isinstance(expr, Call):
            if expr.op in ("add", "sub", "mul", "neg", "floordiv", "mod", "min", "max", "abs"):
                return all(self.is_int(a) for a in expr.args)
            if expr.op == "where":
                return self.is_int(expr.args[1]) and self.is_int(expr.args[2])
            return expr.op in OPS and OPS[expr.op].result == "int"
        return isinstance(expr, Read) and self.types.get(expr.tensor) == "int"

    def type(self, expr: Expr) -> str:
        """'bool', 'int' or 'float'."""
        if isinstance(expr, (Reduce, Cat)):
            return "float"
        if isinstance(expr, Call) and expr.op not in OPS:
            return "float"
        if isinstance(expr, Call) and any(isinstance(e, (Reduce, Cat)) for e in walk(expr)):
            result = OPS[expr.op].result
            return "float" if result == "arg" else result
        return "int" if self.is_int(expr) else type_of(expr, self.types)

    # affine forms ------------------------------------------------------------------------------------------------
    def affine(self, expr: Expr) -> tuple[dict[Expr, int], int]:
        """`expr` as {atom: coefficient} and a constant."""
        if isinstance(expr, Const) and type(expr.value) is int:
            return {}, expr.value
        if isinstance(expr, Call) and expr.op in _INT_OPS and self.is_int(expr):
            left, c = self.affine(expr.args[0])
            if expr.op == "neg":
                return {k: -v for k, v in left.items()}, -c
            right, d = self.affine(expr.args[1])
            if expr.op == "mul":
                if left and right:
                    return {expr: 1}, 0
                scale, atoms, const = (c, right, d) if not left else (d, left, c)
                return {k: v * scale for k, v in atoms.items()}, const * scale
            sign = 1 if expr.op == "add" else -1
            merged = dict(left)
            for key, value in right.items():
                merged[key] = merged.get(key, 0) + sign * value
            return merged, c + sign * d
        return {expr: 1}, 0

    def build(self, atoms: Mapping[Expr, int], const: int) -> Expr:
        """The expression of an affine form, positive terms first, in one canonical order."""
        live = {k: v for k, v in atoms.items() if v}
        for key, value in list(live.items()):  # (x // m) * m * s + (x % m) * s  is  x * s
            if isinstance(key, Call) and key.op == "mod" and isinstance(key.args[1], Const):
                quotient = Call("floordiv", key.args)
                if live.get(key) == value and live.get(quotient) == value * int(key.args[1].value):
                    del live[key], live[quotient]
                    inner, c = self.affine(key.args[0])
                    for k, v in inner.items():
                        live[k] = live.get(k, 0) + v * value
                    return self.build(live, const + c * value)

        def rank(item: tuple[Expr, int]) -> tuple[int, int, str]:
            key, value = item
            name = key.name if isinstance(key, Var) else ""
            return (0 if value > 0 else 1, _ORDER.get(name, 50), show(key))

        result: Expr | None = None
        for key, value in sorted(live.items(), key=rank):
            size = abs(value)
            part: Expr = key if size == 1 else Call("mul", (key, Const(size)))
            if result is None:
                result = part if value > 0 else Call("neg", (part,))
            else:
                result = Call("add" if value > 0 else "sub", (result, part))
        if result is None:
            return Const(const)
        return result if const == 0 else Call("add" if const > 0 else "sub", (result, Const(abs(const))))

    def bounds(self, expr: Expr) -> tuple[int, int] | None:
        """Least and greatest value, or None when unknown."""
        if isinstance(expr, Const):
            return (int(expr.value), int(expr.value)) if type(expr.value) is int else None
        if isinstance(expr, Var):
            return (0, self.extent[expr.name] - 1) if expr.name in self.extent else None
        if isinstance(expr, Call) and expr.op in ("mod", "floordiv") and isinstance(expr.args[1], Const):
            divisor = int(expr.args[1].value)
            if expr.op == "mod":
                return (0, divisor - 1)
            inner = self.bounds(expr.args[0])
            return (inner[0] // divisor, inner[1] // divisor) if inner else None
        atoms, const = self.affine(expr)
        if list(atoms) == [expr]:
            return None
        low = high = const
        for key, value in atoms.items():
            inner = self.bounds(key)
            if inner is None:
                return None
            low += min(inner[0] * value, inner[1] * value)
            high += max(inner[0] * value, inner[1] * value)
        return low, high

    def add(self, a: Expr, b: Expr, sign: int = 1) -> Expr:
        """a + sign * b."""
        return self.normal(Call("add" if sign > 0 else "sub", (a, b)))

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b."""
        return self.normal(Call("mul", (a, b)))

    def normal(self, expr: Expr) -> Expr:
        """The canonical form of an integer sum or product."""
        atoms, const = self.affine(expr)
        return expr if list(atoms) == [expr] else self.build(atoms, const)

    def _split(self, expr: Expr, divisor: int) -> tuple[dict[Expr, int], Expr, tuple[int, int] | None]:
        """`expr` as divisor * whole + rest, and the bounds of the rest. Coefficients near a multiple are split where
        that decides the quotient: ``i * 79`` by 80 is ``i`` whole and ``-i``, as in a shift by views.
        """
        atoms, const = self.affine(expr)
        whole = {k: v // divisor for k, v in atoms.items() if v % divisor == 0}
        rest = self.build({k: v for k, v in atoms.items() if v % divisor}, const)
        span = self.bounds(rest)
        if span and span[0] // divisor == span[1] // divisor:
            return whole, rest, span
        nearest = {k: (2 * v + divisor) // (2 * divisor) for k, v in atoms.items()}
        near = self.build({k: v - nearest[k] * divisor for k, v in atoms.items()}, const)
        span = self.bounds(near)
        if span and span[0] // divisor == span[1] // divisor:
            return {k: v for k, v in nearest.items() if v}, near, span
        return whole, rest, None

    def floordiv(self, expr: Expr, divisor: int) -> Expr:
        """expr // divisor, by ranges where they decide it."""
        if divisor == 1:
            return expr
        whole, rest, span = self._split(expr, divisor)
        if span:
            return self.build(whole, span[0] // divisor)
        return self.add(self.build(whole, 0), Call("floordiv", (rest, Const(divisor))))

    def mod(self, expr: Expr, divisor: int) -> Expr:
        """expr % divisor, by ranges where they decide it."""
        if divisor == 1:
            return ZERO
        _, rest, span = self._split(expr, divisor)
        if span:
            return self.add(rest, Const(-(span[0] // divisor) * divisor))
        return Call("mod", (rest, Const(divisor)))

    # structure ---------------------------------------------------------------------------------------------------
    def cat(self, index: Expr, bounds: tuple[int, ...], parts: tuple[Expr, ...]) -> Expr:
        """A Cat, decided by the range of its index where possible."""
        span = self.bounds(index)
        if span:
            keep = [n for n in range(len(parts)) if span[1] >= bounds[n] and span[0] < bounds[n + 1]]
            if len(keep) == 1:
                return parts[keep[0]]
            if keep:
                bounds = (*(bounds[n] for n in keep), bounds[keep[-1] + 1])
                parts = tuple(parts[n] for n in keep)
        if all(p == parts[0] for p in parts):
            return parts[0]
        return Cat(index, bounds, parts)

    def rebuild(self, expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
        """`expr` with `fn` applied to its children, in canonical form again."""
        if isinstance(expr, Call):
            args = tuple(fn(a) for a in expr.args)
            divisor = args[1].value if len(args) == 2 and isinstance(args[1], Const) else None
            if expr.op in ("floordiv", "mod") and type(divisor) is int and self.is_int(args[0]) and divisor > 0:
                return self.floordiv(args[0], divisor) if expr.op == "floordiv" else self.mod(args[0], divisor)
            new = Call(expr.op, args)
            return self.normal(new) if expr.op in _INT_OPS and self.is_int(new) else new
        if isinstance(expr, Read):
            return Read(expr.tensor, tuple(fn(e) for e in expr.index))
        if isinstance(expr, Reduce):
            return Reduce(expr.op, expr.var, expr.extent, fn(expr.body))
        if isinstance(expr, Cat):
            return self.cat(fn(expr.index), expr.bounds, tuple(fn(p) for p in expr.parts))
        return expr

    def substitute(self, expr: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
        """Replace free occurrences of the keys, outermost first, and simplify."""
        if expr in mapping:
            return mapping[expr]
        return self.rebuild(expr, lambda e: self.substitute(e, mapping))

    def sum(self, var: str, extent: int, body: Expr) -> Expr:
        """Sum of `body` over `var`: concatenations are split at their seams, factors without `var` are taken out.

        Seams of a mask or a bias are none of the sum: which part a key reads stays a condition.
        """
        self.extent[var] = extent
        cuts = {0, extent}
        for e in walk(body):
            if isinstance(e, Cat) and not self._is_condition(e, body):
                atoms, const = self.affine(e.index)
                if atoms == {Var(var): 1}:
                    cuts |= {b - const for b in e.bounds if 0 < b - const < extent}
        edges = sorted(cuts)
        if len(edges) == 2:
            return self._plain_sum(var, extent, body)
        total: Expr | None = None
        for n, (low, high) in enumerate(pairwise(edges)):
            name = f"{var}_{n}"
            self.extent[name] = high - low
            at = Const(low) if high - low == 1 else self.add(Var(name), Const(low))
            piece = self.substitute(body, {Var(var): at})
            part = piece if high - low == 1 else self.sum(name, high - low, piece)
            total = part if total is None else Call("add", (total, part))
        assert total is not None
        return total

    def _is_condition(self, cat: Cat, body: Expr) -> bool:
        """True for bools one after another, and for tables one after another that only exponents read."""
        if all(self.type(part) == "bool" for part in cat.parts):
            return True
        if any(isinstance(e, Reduce) for e in walk(cat)):
            return False
        return not any(cat in walk(e) for e in _outside_exponents(body))

    def _plain_sum(self, var: str, extent: int, body: Expr) -> Expr:
        if extent == 1:
            return self.substitute(body, {Var(var): ZERO})
        over, under = factors(body)
        inside = [f for f in over if var in variables(f)]
        below = [f for f in under if var in variables(f)]
        outside = [f for f in over if var not in variables(f)]
        divisors = [f for f in under if var not in variables(f)]
        core: Expr = Const(float(extent))
        if inside or below:
            product: Expr = inside[0] if inside else Const(1.0)
            for f in inside[1:]:
                product = Call("mul", (product, f))
            for f in below:
                product = Call("div", (product, f))
            core = Reduce("sum", var, extent, product)
        for f in outside:
            core = Call("mul", (core, f))
        for f in divisors:
            core = Call("div", (core, f))
        return core

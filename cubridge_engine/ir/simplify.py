"""Simplify scalar expressions and decide whether two of them mean the same.

``simplify`` keeps the shape a person would write. ``normal_form`` is for comparing: sums of monomials, comparisons
against zero, sorted boolean parts; floats are treated as real numbers. ``equivalent`` compares normal forms and, where
these differ, values at many points chosen around the constants that occur (a boundary off by one is met by
construction).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

from .evaluate import evaluate
from .expr import FALSE, OPS, TRUE, VAR_TYPES, Call, Const, Expr, Read, Var, free_vars, rebuild, type_of, walk
from .text_expr import print_expr

Types = Mapping[str, str] | None

# ---- simplify ---------------------------------------------------------------------------------------------------


def simplify(expr: Expr, types: Types = None) -> Expr:
    """Fold constants, drop identities, collect integer sums: a readable equal expression."""
    expr = rebuild(expr, lambda e: simplify(e, types))
    if not isinstance(expr, Call):
        return expr
    if all(isinstance(a, Const) for a in expr.args) and expr.op not in ("fp16", "bf16"):
        return _fold(expr)
    rule = _RULES.get(expr.op)
    if rule is not None:
        better = rule(expr, types)
        if better is not None:
            return better
    if expr.op in ("add", "sub", "mul", "neg") and type_of(expr, types) == "int":
        return _collect_integers(expr, types)
    return expr


def _fold(expr: Call) -> Expr:
    value = evaluate(expr, {})
    kind = type_of(expr)
    if kind == "bool":
        return Const(bool(value))
    return Const(int(value) if kind == "int" else float(value))


def _is(expr: Expr, value: float) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == value


def _simplify_add(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if _is(b, 0) and type_of(a, types) == type_of(e, types):
        return a
    if _is(a, 0) and type_of(b, types) == type_of(e, types):
        return b
    if isinstance(b, Call) and b.op == "neg":
        return Call("sub", (a, b.args[0]))
    return None


def _simplify_sub(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if _is(b, 0) and type_of(a, types) == type_of(e, types):
        return a
    if isinstance(b, Call) and b.op == "neg":
        return simplify(Call("add", (a, b.args[0])), types)
    return None


def _simplify_mul(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if isinstance(a, Const) and not isinstance(b, Const):
        a, b = b, a
    if isinstance(b, Const) and not isinstance(b.value, bool):
        if b.value == 1 and type_of(a, types) == type_of(e, types):
            return a
        if b.value == 0 and type_of(e, types) == "int":
            return Const(0)
        if isinstance(a, Call) and a.op == "mul" and isinstance(a.args[1], Const):
            product = a.args[1].value * b.value
            return simplify(Call("mul", (a.args[0], Const(product))), types)
        if isinstance(a, Call) and a.op == "div" and isinstance(a.args[1], Const) and a.args[1].value == b.value:
            return a.args[0]
    return None


def _simplify_div(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if _is(b, 1) and type_of(a, types) == "float":
        return a
    if isinstance(b, Const) and isinstance(a, Call) and a.op == "mul" and isinstance(a.args[1], Const) and b.value:
        return simplify(Call("mul", (a.args[0], Const(float(a.args[1].value) / float(b.value)))), types)
    return None


def _simplify_and(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if FALSE in (a, b):
        return FALSE
    if a in (TRUE, b):
        return b
    return a if b == TRUE else None


def _simplify_or(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if TRUE in (a, b):
        return TRUE
    if a in (FALSE, b):
        return b
    return a if b == FALSE else None


_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _simplify_not(e: Call, types: Types) -> Expr | None:
    (a,) = e.args
    if isinstance(a, Call):
        if a.op == "not":
            return a.args[0]
        if a.op in _NEGATED:
            return Call(_NEGATED[a.op], a.args)
        if a.op in ("and", "or"):
            parts = tuple(simplify(Call("not", (x,)), types) for x in a.args)
            return simplify(Call("or" if a.op == "and" else "and", parts), types)
    return None


def _simplify_where(e: Call, types: Types) -> Expr | None:
    c, a, b = e.args
    if c == TRUE or a == b:
        return a
    if c == FALSE:
        return b
    if isinstance(c, Call) and c.op == "not":
        return Call("where", (c.args[0], b, a))
    return None


def _simplify_minmax(e: Call, types: Types) -> Expr | None:
    return e.args[0] if e.args[0] == e.args[1] else None


def _simplify_floordiv(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if _is(b, 1):
        return a
    if isinstance(b, Const) and int(b.value) > 0:
        terms, constant = _linear(a, types)
        n = int(b.value)
        whole = {k: v // n for k, v in terms.items() if v % n == 0}
        rest = {k: v for k, v in terms.items() if v % n}
        if whole and not rest:
            return _from_linear(whole, constant // n)
    return None


def _simplify_mod(e: Call, types: Types) -> Expr | None:
    a, b = e.args
    if _is(b, 1):
        return Const(0)
    if isinstance(b, Const) and int(b.value) > 0:
        terms, constant = _linear(a, types)
        n = int(b.value)
        if all(v % n == 0 for v in terms.values()):
            return Const(constant % n)
    return None


def _simplify_float(e: Call, types: Types) -> Expr | None:
    return e.args[0] if type_of(e.args[0], types) == "float" else None


def _simplify_int(e: Call, types: Types) -> Expr | None:
    return e.args[0] if type_of(e.args[0], types) == "int" else None


_RULES: dict[str, Callable[[Call, Types], Expr | None]] = {
    "add": _simplify_add,
    "sub": _simplify_sub,
    "mul": _simplify_mul,
    "div": _simplify_div,
    "and": _simplify_and,
    "or": _simplify_or,
    "not": _simplify_not,
    "where": _simplify_where,
    "min": _simplify_minmax,
    "max": _simplify_minmax,
    "floordiv": _simplify_floordiv,
    "mod": _simplify_mod,
    "float": _simplify_float,
    "int": _simplify_int,
}


def _linear(expr: Expr, types: Types) -> tuple[dict[Expr, int], int]:
    """An integer expression as sum of coefficient * atom, plus a constant."""
    if isinstance(expr, Const):
        return {}, int(expr.value)
    if isinstance(expr, Call) and type_of(expr, types) == "int":
        if expr.op in ("add", "sub"):
            sign = 1 if expr.op == "add" else -1
            terms, constant = _linear(expr.args[0], types)
            more, extra = _linear(expr.args[1], types)
            for atom, factor in more.items():
                terms[atom] = terms.get(atom, 0) + sign * factor
            return {k: v for k, v in terms.items() if v}, constant + sign * extra
        if expr.op == "neg":
            terms, constant = _linear(expr.args[0], types)
            return {k: -v for k, v in terms.items()}, -constant
        if expr.op == "mul":
            for x, y in (expr.args, expr.args[::-1]):
                if isinstance(y, Const):
                    terms, constant = _linear(x, types)
                    factor = int(y.value)
                    return {k: v * factor for k, v in terms.items() if v * factor}, constant * factor
    return {expr: 1}, 0


def _from_linear(terms: Mapping[Expr, int], constant: int) -> Expr:
    """Positive terms first, each group in text order, the constant last."""
    result: Expr | None = None
    ordered = sorted(terms.items(), key=lambda kv: (kv[1] < 0, print_expr(kv[0])))
    for atom, factor in ordered:
        size = abs(factor)
        term = atom if size == 1 else Call("mul", (atom, Const(size)))
        if result is None:
            result = term if factor > 0 else Call("neg", (term,)) if size == 1 else Call("mul", (atom, Const(factor)))
        else:
            result = Call("add" if factor > 0 else "sub", (result, term))
    if result is None:
        return Const(constant)
    if constant:
        result = Call("add" if constant > 0 else "sub", (result, Const(abs(constant))))
    return result


def _collect_integers(expr: Expr, types: Types) -> Expr:
    return _from_linear(*_linear(expr, types))


def linear_terms(expr: Expr, types: Types = None) -> tuple[dict[Expr, int], int]:
    """An integer expression as ``({atom: coefficient}, constant)``; atoms are whatever is not a sum or a product by a
    constant.
    """
    return _linear(simplify(expr, types), types)


# ---- normal form -----------------------------------------------------------------------------------------------

_Monomial = tuple[tuple[Expr, int], ...]
_Poly = dict[_Monomial, float]
_MAX_TERMS = 64


def normal_form(expr: Expr, types: Types = None) -> Expr:
    """A canonical expression: equal results mean equal expressions over the reals. Different results may still be
    equal.
    """
    if type_of(expr, types) == "bool":
        return _normal_bool(simplify(expr, types), types)
    return _from_poly(_poly(expr, types))


def _poly(expr: Expr, types: Types) -> _Poly:
    if isinstance(expr, Const):
        return {(): float(expr.value)} if expr.value else {}
    if isinstance(expr, Call):
        if expr.op in ("add", "sub"):
            return _poly_add(_poly(expr.args[0], types), _poly(expr.args[1], types), 1.0 if expr.op == "add" else -1.0)
        if expr.op == "neg":
            return {k: -v for k, v in _poly(expr.args[0], types).items()}
        if expr.op == "float":
            return _poly(expr.args[0], types)
        if expr.op == "mul":
            a, b = _poly(expr.args[0], types), _poly(expr.args[1], types)
            if len(a) * len(b) <= _MAX_TERMS:
                return _poly_mul(a, b)
        if expr.op == "div":
            a, b = _poly(expr.args[0], types), _poly(expr.args[1], types)
            if len(b) == 1:
                (mono, factor), *_ = b.items()
                inverse = {tuple((atom, -power) for atom, power in mono): 1.0 / factor}
                return _poly_mul(a, inverse)
            return _poly_mul(a, {((_from_poly(b), -1),): 1.0})
    return {((_normal_atom(expr, types), 1),): 1.0}


def _poly_add(a: _Poly, b: _Poly, sign: float) -> _Poly:
    out = dict(a)
    for mono, factor in b.items():
        out[mono] = out.get(mono, 0.0) + sign * factor
    return {k: v for k, v in out.items() if v != 0.0}


def _poly_mul(a: _Poly, b: _Poly) -> _Poly:
    out: _Poly = {}
    for m1, f1 in a.items():
        for m2, f2 in b.items():
            powers: dict[Expr, int] = {}
            for atom, power in (*m1, *m2):
                powers[atom] = powers.get(atom, 0) + power
            mono = tuple(sorted(((k, v) for k, v in powers.items() if v), key=lambda kv: print_expr(kv[0])))
            out[mono] = out.get(mono, 0.0) + f1 * f2
    return {k: v for k, v in out.items() if v != 0.0}


def _from_poly(poly: _Poly) -> Expr:
    if not poly:
        return Const(0.0)
    result: Expr | None = None
    ordered = sorted(poly.items(), key=lambda kv: [(print_expr(a), p) for a, p in kv[0]])
    for mono, factor in ordered:
        term: Expr = Const(float(f"{factor:.12g}"))
        for atom, power in mono:
            term = Call("mul", (term, atom if power == 1 else Call("pow", (atom, Const(power)))))
        result = term if result is None else Call("add", (result, term))
    assert result is not None
    return result


def _normal_atom(expr: Expr, types: Types) -> Expr:
    if isinstance(expr, Var | Const):
        return expr
    if isinstance(expr, Read):
        return Read(expr.tensor, tuple(normal_form(e, types) for e in expr.index))
    assert isinstance(expr, Call)
    args = [normal_form(a, types) for a in expr.args]
    if expr.op in ("min", "max", "bitand", "bitor", "bitxor"):
        args.sort(key=print_expr)
    return Call(expr.op, tuple(args))


def _normal_bool(expr: Expr, types: Types) -> Expr:
    if not isinstance(expr, Call):
        return expr
    if expr.op in ("and", "or"):
        parts = _flatten(expr, expr.op, types)
        unique = sorted(set(parts), key=print_expr)
        result = unique[0]
        for part in unique[1:]:
            result = Call(expr.op, (result, part))
        return result
    if expr.op == "not":
        return Call("not", (_normal_bool(expr.args[0], types),))
    if expr.op in _NEGATED:
        return _normal_comparison(expr, types)
    return Call(expr.op, tuple(normal_form(a, types) for a in expr.args))


def _flatten(expr: Expr, op: str, types: Types) -> list[Expr]:
    if isinstance(expr, Call) and expr.op == op:
        return _flatten(expr.args[0], op, types) + _flatten(expr.args[1], op, types)
    return [_normal_bool(expr, types)]


def _normal_comparison(expr: Call, types: Types) -> Expr:
    """Integers: ``a < b`` becomes ``b - a - 1 >= 0``. Floats keep strictness. Equalities get a fixed sign."""
    a, b = expr.args
    if expr.op in ("lt", "le"):
        a, b = b, a
    difference = _poly_add(_poly(a, types), _poly(b, types), -1.0)
    integers = "float" not in (type_of(a, types), type_of(b, types))
    if expr.op in ("eq", "ne"):
        if difference:
            first = min(difference.items(), key=lambda kv: [(print_expr(x), p) for x, p in kv[0]])
            if first[1] < 0:
                difference = {k: -v for k, v in difference.items()}
        return Call(expr.op, (_from_poly(difference), Const(0.0)))
    strict = expr.op in ("lt", "gt")
    if integers and strict:
        difference = _poly_add(difference, {(): 1.0}, -1.0)
        strict = False
    return Call("gt" if strict else "ge", (_from_poly(difference), Const(0.0)))


# ---- equivalence ----------------------------------------------------------------------------------------------


def equivalent(a: Expr, b: Expr, types: Types = None, *, samples: int = 600, tolerance: float = 1e-6) -> bool:
    """True when the normal forms agree, or else when the values agree at `samples` points (relative `tolerance`, NaN
    and inf exactly).

    Integer variables are drawn near zero, near the integer constants of both expressions and near sums of another
    variable and such a constant, so that boundaries are met. Tensor reads take random values per index tuple.
    """
    if normal_form(a, types) == normal_form(b, types):
        return True
    rng = random.Random(20260131)
    names = sorted(free_vars(a) | free_vars(b))
    constants = sorted(_integer_constants(a) | _integer_constants(b))
    for _ in range(samples):
        env = _draw(names, constants, types, rng)
        if not _same(_value(a, env), _value(b, env), tolerance):
            return False
    return True


def _integer_constants(expr: Expr) -> set[int]:
    found = {0}
    for e in walk(expr):
        if (
            isinstance(e, Const)
            and not isinstance(e.value, bool)
            and math.isfinite(e.value)
            and e.value == int(e.value)
        ):
            found.add(int(e.value))
    return {c for c in found if abs(c) < 10**7}


_POSITIVE = {"B", "H", "Hkv", "Sq", "Sk", "D", "Dv", "group"}


def _draw(names: list[str], constants: list[int], types: Types, rng: random.Random) -> dict[str, object]:
    env: dict[str, object] = {}
    integers: list[int] = []
    for name in names:
        kind = (types or {}).get(name) or VAR_TYPES.get(name, "float")
        if kind == "bool":
            env[name] = rng.random() < 0.5
            continue
        if kind == "float":
            env[name] = rng.choice((rng.uniform(-3, 3), rng.uniform(-60, 60), rng.uniform(0.01, 1)))
            continue
        base = rng.choice(constants) + rng.randint(-2, 2)
        if integers and rng.random() < 0.6:
            base += rng.choice(integers)
        if rng.random() < 0.2:
            base = rng.randint(0, 300)
        value = abs(base)
        if name in _POSITIVE:
            value = max(value, 1)
        env[name] = value
        integers.append(value)
    # Head counts divide in every real problem; sampling others would compare values no launch can have.
    if "H" in env and "Hkv" in env:
        env["Hkv"] = rng.choice((1, 2, 3, 4))
        env["H"] = int(str(env["Hkv"])) * rng.choice((1, 2, 3, 8))
    if "h" in env and "H" in env:
        env["h"] = rng.randrange(int(str(env["H"])))
    return env


def _value(expr: Expr, env: Mapping[str, object]) -> object:
    """Evaluate with reads replaced by a hash of tensor name and index: equal index tuples give equal values."""

    def close(e: Expr) -> Expr:
        if isinstance(e, Read):
            index = tuple(int(evaluate(close(x), env)) for x in e.index)
            return Const(random.Random(f"{e.tensor}{index}").uniform(-2, 2))
        return rebuild(e, close)

    return evaluate(close(expr), env)


def _same(x: object, y: object, tolerance: float) -> bool:
    a, b = float(x), float(y)  # type: ignore[arg-type]
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


assert set(_RULES) <= set(OPS)

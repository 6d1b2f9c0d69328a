"""From values to CuIR expressions over i, j, kv0, q0, h, b and sizes.

All elements of a tile are rewritten together: their values have the same structure, and whatever differs between
elements or threads must be
an affine function of (i, j) - or of i and the lane, for row values - or the value is not expressible and the
statement stays opaque.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.expr import NEG_INF, Call, Const, Expr, Read, Var, free_vars, substitute, type_of
from ..ir.simplify import simplify
from . import listed
from .addresses import Ints
from .problem import Problem
from .stepwise import Axis, solve, stepwise
from .values import Coefficient, Monomial, Node, Poly, Store, Value, non_negative
from .walking import walk
from .whole_numbers import scaled_all, whole_all


class NotExpressible(Exception):
    """A value that has no expression over the problem's indices; its text says why."""


@dataclass(slots=True)
class Frame:
    """Coordinates of the elements being rewritten: arrays [elements, threads]; j or lane may be absent."""

    count: int
    i: Ints | None = None
    j: Ints | None = None
    lane: Ints | None = None
    source: Callable[[Value], str | None] = field(
        default=lambda value: None
    )  # name of the tile or row a value belongs to
    fits: Callable[[int, Value], bool] = field(
        default=lambda element, value: True
    )  # False when a tile's (or row's) value is not the one at this element's place


PASS_OPS = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "min",
        "max",
        "abs",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "and",
        "or",
        "not",
        "exp",
        "exp2",
        "log",
        "log2",
        "log1p",
        "tanh",
        "sigmoid",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "erf",
        "floor",
        "ceil",
        "pow",
    ]
)
_TILE_ATOMS = frozenset({"block", "iv", "iv_any", "mod", "tmod", "tdiv", "floordiv"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_FLOAT_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "min", "max"})


class Writer:
    """Rewrites values for one kernel."""

    def __init__(self, store: Store, problem: Problem, param_names: dict[int, str], flags: set[int]) -> None:
        self.store = store
        self.p = problem
        self.param_names = param_names
        self.flags = flags
        self.i = store.node("index", (), "i", "int")
        self.j = store.node("index", (), "j", "int")
        self.lane = store.node("index", (), "lane", "int")
        self.kv0: Value | None = None  # value of the first key column of the current tile
        self.iv: Node | None = None
        self.iv_name = ""
        self.names: dict[Node, Expr] = {}
        self.int_params: dict[str, str] = {}
        self.bounds = False  # rewriting a loop bound: truncation and floor differ only where no trip is made either way
        self.operand_strides: dict[int, tuple[Expr, ...]] = {}
        self._cache: dict[Any, Expr] = {}

    # ---- entry points
    # ---------------------------------------------------------------------------------------------------

    def uniform(self, value: Value) -> Expr:
        """A value that all threads share."""
        return simplify(self.expr([value], Frame(1)), self.types())

    def elements(self, values: list[Value], frame: Frame) -> Expr:
        """The common expression of the elements of a tile (or of the rows of a row vector)."""
        return simplify(self.expr(values, frame), self.types())

    def types(self) -> dict[str, str]:
        """Types of the names that are no canonical size or index."""
        found = {name: "int" for name in (*_INTEGERS, self.iv_name) if name}
        for position, name in self.param_names.items():
            if position in self.flags:
                found[name] = "bool"
        return found | self.int_params

    # ---- recursion
    # ----------------------------------------------------------------------------------------------------------

    def expr(self, values: list[Value], frame: Frame) -> Expr:
        """The expression that all `values` have in common."""
        values = [self._strip(v, frame) for v in values]
        first = values[0]
        if all(isinstance(v, bool) for v in values):
            return self._booleans(values)
        integers = whole_all(self.store, values)
        if integers is not None:
            return Call("float", (self._integer(integers, frame),))
        scaled = scaled_all(self.store, values)
        if scaled is not None:
            position = Call("float", (self._integer(scaled[0], frame),))
            return self._operation("mul", (position, self.expr(scaled[1], frame)))
        if all(isinstance(v, float) for v in values):
            if all(v == first or (v != v and first != first) for v in values):
                assert isinstance(first, float)
                return Const(first) if first != -math.inf else NEG_INF
            raise NotExpressible("elements that get different constants")
        if all(self._is_integer(v) for v in values):
            return self._integer(values, frame)
        if any(not isinstance(v, Node) for v in values):
            raise NotExpressible("elements that are computed differently")
        return self._node([v for v in values if isinstance(v, Node)], frame)

    def _strip(self, value: Value, frame: Frame) -> Value:
        """A value without the versions of variables that are no named tile or row."""
        while isinstance(value, Node) and value.op == "ver" and frame.source(value) is None:
            value = value.args[0]
        return value

    def _booleans(self, values: list[Value]) -> Expr:
        if all(v == values[0] for v in values):
            return Const(bool(values[0]))
        raise NotExpressible("a condition that differs between elements")

    def _is_integer(self, value: Value) -> bool:
        return (
            (isinstance(value, int) and not isinstance(value, bool))
            or isinstance(value, Poly)
            or (isinstance(value, Node) and value.kind == "int")
        )

    def _node(self, nodes: list[Node], frame: Frame) -> Expr:
        first = nodes[0]
        name = frame.source(first)
        if name is not None:
            if any(frame.source(n) != name for n in nodes):
                raise NotExpressible("elements that belong to different tiles")
            if not all(frame.fits(k, n) for k, n in enumerate(nodes)):
                raise NotExpressible("an element computed from another element of the tile")
            return Var(name)
        if any(n.op != first.op or (n.data != first.data and n.op not in ("ver", "gload", "join")) for n in nodes):
            raise NotExpressible("elements that are computed differently")
        if first in self.names:
            return self.names[first]
        if first.op == "param":
            return self._param(first)
        if first.op in ("ver", "float"):
            inner = self.expr([n.args[0] for n in nodes], frame)
            return inner if first.op == "ver" else Call("float", (inner,))
        if first.op == "gload":
            return self._read(nodes, frame)
        if first.op in _COMPARISONS and len(set(nodes)) == 1 and (sides := listed.without_row(self.store, first)):
            return self._operation(first.op, tuple(self._integer([side] * len(nodes), frame) for side in sides))
        if first.op in ("ne", "eq") and (flag := self._flag(first)) is not None:
            return flag if first.op == "ne" else Call("not", (flag,))
        if first.op in ("ne", "eq") and all(n.args[1] == 0 and _is_remainder(n.args[0]) for n in nodes):
            # A remainder is zero or not whatever its sign: C's % and the mathematical one agree.
            inner = [n.args[0] for n in nodes]
            return Call(first.op, (Call("mod", self._args([x for x in inner if isinstance(x, Node)], frame)), Const(0)))
        if first.op == "select":
            return Call("where", self._args(nodes, frame))
        if first.op == "join":
            return Call("where", self._args(nodes, frame))
        if first.op in ("fp16", "bf16", "int"):
            return Call(first.op, self._args(nodes, frame))
        if first.op == "isinf":
            inner = self._args(nodes, frame)[0]
            return Call("eq", (Call("abs", (inner,)), Const(math.inf)))
        if first.op in PASS_OPS:
            return self._operation(first.op, self._args(nodes, frame))
        raise NotExpressible(_WORDS.get(first.op, f"the operation {first.op}"))

    def _args(self, nodes: list[Node], frame: Frame) -> tuple[Expr, ...]:
        return tuple(self.expr([n.args[k] for n in nodes], frame) for k in range(len(nodes[0].args)))

    def _operation(self, op: str, args: tuple[Expr, ...]) -> Expr:
        if op in _FLOAT_ARITHMETIC and "float" in [type_of(a, self.types()) for a in args]:
            args = tuple(
                a.args[0]
                if isinstance(a, Call)
                and a.op == "float"
                and any(
                    b is not a and type_of(b, self.types()) == "float" and not (isinstance(b, Call) and b.op == "float")
                    for b in args
                )
                else a
                for a in args
            )
        if self.p.shared_length and op in _COMPARISONS:
            args = self._key_length(args)
        return Call(op, args)

    def _key_length(self, args: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """One parameter serves as Sq and Sk: in a comparison with a key column it means Sk."""
        for a, b in (args, args[::-1]):
            if b == Var("Sq") and free_vars(a) & {"j", "kv0"}:
                other = Var("Sk")
                return tuple(other if x == b else x for x in args)
            if b == Var("Sq") and self.iv_name in free_vars(a):
                return tuple(substitute(x, {Var("Sq"): Var("Sk")}) for x in args)
        return args

    def key_bound(self, expr: Expr) -> Expr:
        """A bound of the KV loop: the one parameter for both lengths means Sk there."""
        return substitute(expr, {Var("Sq"): Var("Sk")}) if self.p.shared_length else expr

    def _flag(self, node: Node) -> Expr | None:
        a, b = node.args
        if isinstance(a, Node) and a.op == "param" and isinstance(b, int | float) and b == 0 and a.data in self.flags:
            return Var(self.param_names[a.data])
        return None

    def _param(self, node: Node) -> Expr:
        if node in self.p.canon:
            return self.p.canon[node]
        return Var(self.param_names[node.data])

    # ---- integers
    # -------------------------------------------------------------------------------------------------------------

    def _integer(self, values: list[Value], frame: Frame) -> Expr:
        polys = [self.store.poly(v) for v in values]
        if all(p.uniform and p.key == polys[0].key for p in polys):
            return self._from_poly(self.store.lower(dict(polys[0].terms)), frame)
        monomials = {m for p in polys for m in p.terms}
        if any(not a.uniform for m in monomials for a in m):
            return self._by_atoms(polys, frame)
        total: Value = 0
        for m in monomials:
            table = np.stack([np.broadcast_to(np.asarray(p.terms.get(m, 0)), (self.store.threads,)) for p in polys])
            factor = self._fit(table, frame)
            term: Value = self.store.mul(self.store.lower({m: 1}) if m else 1, factor)
            total = self.store.add(total, term)
        return self._from_poly(total, frame)

    def _by_atoms(self, polys: list[Poly], frame: Frame) -> Expr:
        """Polynomials with thread-dependent atoms (a clamped index, a remainder): same shape, atom by atom.

        Atoms are paired by their factors, operations and symbols, then in the order in which they were made; each pair
        is then an expression of its own, so that a wrong pair is not expressible rather than wrong.
        """
        split = [self._atoms_of(p) for p in polys]
        if len({len(atoms) for atoms, _ in split}) != 1:
            raise NotExpressible("an index with another number of thread-dependent parts per element")
        total = self._integer([rest for _, rest in split], frame)
        for group in reversed(list(zip(*(atoms for atoms, _ in split), strict=True))):
            atom = self._atom([node for node, _ in group], frame)
            term = Call("mul", (atom, self._integer([factor for _, factor in group], frame)))
            total = Call("add", (term, total))
        return total

    def _atoms_of(self, poly: Poly) -> tuple[list[tuple[Node, Value]], Value]:
        """The thread-dependent atoms of a polynomial with their factors, and what is left."""
        atoms = [a for a in poly.atoms() if not a.uniform]
        if any(sum(not a.uniform for a in m) > 1 for m in poly.terms):
            raise NotExpressible("an index with a product of thread-dependent parts")
        found: list[tuple[Node, Value]] = []
        for atom in atoms:
            factor = {tuple(a for a in m if a is not atom): c for m, c in poly.terms.items() if atom in m}
            found.append((atom, self.store.lower(factor)))
        found.sort(key=_likeness)
        rest = {m: c for m, c in poly.terms.items() if all(a.uniform for a in m)}
        return found, self.store.lower(rest)

    def _fit(self, table: Ints, frame: Frame) -> Value:
        """A table [elements, threads] of numbers as ``alpha * i + beta * j + c`` over *local* coordinates, made
        global.
        """
        base = int(table.flat[0])
        if (table == base).all():
            return base
        coordinates: list[tuple[Ints, Value]] = []
        if frame.i is not None:
            coordinates.append((frame.i, self.store.add(self.i, self.p.q_row0, -1)))
        if frame.j is not None and self.kv0 is not None:
            coordinates.append((frame.j, self.store.add(self.j, self.kv0, -1)))
        if frame.lane is not None:
            coordinates.append((frame.lane, self.lane))
        factors = solve(table, [c for c, _ in coordinates])
        if factors is None:
            found = stepwise(self.store, table, self._axes(frame))
            if found is not None:
                return found
            raise NotExpressible("an index that is no linear function of the row and the column")
        total: Value = factors[-1]
        for (_, symbol), factor in zip(coordinates, factors, strict=False):
            total = self.store.add(total, self.store.mul(symbol, factor))
        return total

    def _axes(self, frame: Frame) -> list[Axis]:
        axes = [Axis(frame.i, self.i, self.p.q_row0)] if frame.i is not None else []
        if frame.j is not None and self.kv0 is not None:
            axes.append(Axis(frame.j, self.j, self.kv0))
        return axes

    def _from_poly(self, value: Value, frame: Frame) -> Expr:
        poly = self._tile_variables(self.store.poly(value))
        parts: list[tuple[int, Expr]] = []
        for m, c in poly.terms.items():
            assert isinstance(c, int)
            term: Expr | None = None
            for atom in m:
                expr = self._atom([atom] * frame.count, frame)
                term = expr if term is None else Call("mul", (term, expr))
            parts.append((c, term if term is not None else Const(1)))
        return simplify(_sum(parts), self.types())

    def _tile_variables(self, poly: Poly) -> Poly:
        """Block and loop variables that stand for the tile become q0 and kv0 where the factor allows it."""
        terms: dict[Monomial, Coefficient] = {}
        result: Value = 0
        for source, name in ((self.p.q_row0, "q0"), (self.kv0, "kv0")):
            if source is None:
                continue
            sp = self.store.poly(source)
            leading = next(((m[0], c) for m, c in sp.terms.items() if len(m) == 1 and m[0].op in _TILE_ATOMS), None)
            if leading is None:
                continue
            atom, factor = leading
            marker = self.store.node("index", (), name, "int")
            rest = self.store.add(source, self.store.mul(atom, int(factor)), -1)
            terms = {}
            result = 0
            for m, c in poly.terms.items():
                if atom in m and isinstance(c, int) and c % int(factor) == 0:
                    others = tuple(a for a in m if a is not atom) + (atom,) * (m.count(atom) - 1)
                    scaled = self.store.lower({others: c // int(factor)})
                    result = self.store.add(result, self.store.mul(scaled, self.store.add(marker, rest, -1)))
                else:
                    terms[m] = c
            poly = self.store.poly(self.store.add(self.store.lower(terms), result))
        return poly

    def _atom(self, atoms: list[Node], frame: Frame) -> Expr:
        first = atoms[0]
        if first.op == "index":
            return Var(str(first.data))
        if first in self.names:
            return self.names[first]
        if first in self.p.canon and all(a is first for a in atoms):
            return self.p.canon[first]
        if first is self.iv:
            return Var(self.iv_name)
        if first.op in ("block", "grid"):
            return self._block(first)
        if first.op == "param":
            return self._param(first)
        if first.op in ("tdiv", "tmod", "floordiv", "mod"):
            return self._division(atoms, frame)
        if first.op in ("bitand", "bitor", "bitxor", "shl", "shr", "min", "max", "abs"):
            return Call(first.op, self._args(atoms, frame))
        return self._node(atoms, frame)

    def _block(self, node: Node) -> Expr:
        return Var(f"b{node.data}" if node.op == "block" else f"grid{node.data}")

    def _division(self, atoms: list[Node], frame: Frame) -> Expr:
        a, b = self._args(atoms, frame)
        op = atoms[0].op
        if op in ("floordiv", "mod"):
            return Call(op, (a, b))
        if all(non_negative(x) for n in atoms for x in n.args) or self.bounds:
            return Call("floordiv" if op == "tdiv" else "mod", (a, b))
        quotient = Call("int", (Call("div", (a, b)),))
        return quotient if op == "tdiv" else Call("sub", (a, Call("mul", (quotient, b))))

    # ---- reads of operands
    # ------------------------------------------------------------------------------------------------------

    def _read(self, nodes: list[Node], frame: Frame) -> Expr:
        root, size, _ = nodes[0].data
        if any(n.data != nodes[0].data for n in nodes) or root not in self.param_names:
            raise NotExpressible("elements that read different tensors")
        index = self._integer([n.args[0] for n in nodes], frame)
        from .operands import split_index

        axes, strides = split_index(index, size, self.types(), self.param_names[root])
        known = self.operand_strides.get(root)
        if known is not None and known != strides and len(known) == len(strides):
            axes, strides = axes, known
        self.operand_strides[root] = strides
        return Read(self.param_names[root], axes)


# Names of a body that are integers and no canonical size or index.
_INTEGERS = ("qt", "q0", "kv0", "lane", "gridx", "gridy", "gridz")


def _is_remainder(value: Value) -> bool:
    return isinstance(value, Node) and value.op in ("tmod", "mod")


def _likeness(part: tuple[Node, Value]) -> tuple[str, list[str], list[int], int]:
    """A key by which the same part of an index has the same place in every element."""
    atom, factor = part
    inside = list(walk([atom]))
    ends = sorted(n.uid for n in inside if not n.args)
    return repr(factor), sorted(n.op for n in inside), ends, atom.uid


_WORDS = {
    "shfl": "a value of another lane",
    "phi": "a loop-carried value whose course is not understood",
    "after": "a value that a loop left behind",
    "sload": "a shared memory read that is not understood",
    "mma": "a matrix product whose operands are not understood",
    "unknown": "a value from a statement that was not understood",
    "undefined": "a value that was never set",
}


def _sum(parts: list[tuple[int, Expr]]) -> Expr:
    result: Expr | None = None
    for c, term in sorted(parts, key=lambda x: (x[0] < 0, str(x[1]) == "Const(value=1)")):
        if isinstance(term, Const) and term.value == 1:
            scaled: Expr = Const(abs(c))
        else:
            scaled = term if abs(c) == 1 else Call("mul", (term, Const(abs(c))))
        if result is None:
            result = scaled if c > 0 else Const(-abs(c)) if isinstance(scaled, Const) else Call("neg", (scaled,))
        else:
            result = Call("add" if c > 0 else "sub", (result, scaled))
    return result if result is not None else Const(0)

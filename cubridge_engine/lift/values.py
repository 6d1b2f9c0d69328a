"""Values of symbolic execution: integers as polynomials over uniform symbols, all else as a shared expression graph.

One thread block is executed at once. What depends on the thread index is a NumPy array with one entry per thread; what
depends on block indices, parameters and loop variables stays symbolic. An integer is therefore a sum of monomials
(products of uniform atoms) whose coefficients are ints or per-thread arrays: ``q0 + warp * 16 + lane / 4`` is
``{(bx,): 64, (): [0, 0, 0, 0, 1, ...]}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import budget

IntArray: TypeAlias = NDArray[np.int64]
Coefficient: TypeAlias = "int | IntArray"
Monomial: TypeAlias = "tuple[Node, ...]"


class NotUnderstood(Exception):
    """A construct that execution has no meaning for; caught at the statement, which becomes Unknown."""


class Node:
    """A symbolic value that is no polynomial: an atom of polynomials, a float expression, a load, a matrix fragment.

    `kind` is int | float | bool | reg (32 packed bits) | wide. Nodes are interned by `Store`: equal nodes are the
    same object.
    """

    __slots__ = ("args", "data", "kind", "op", "uid", "uniform")

    def __init__(self, op: str, args: tuple[Value, ...], data: Any, kind: str, uniform: bool, uid: int) -> None:
        self.op = op
        self.args = args
        self.data = data
        self.kind = kind
        self.uniform = uniform
        self.uid = uid

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        data = "" if self.data is None else f"; {self.data}"
        return f"{self.op}#{self.uid}({inner}{data})"


class Poly:
    """An integer: ``sum(coefficient * product(atoms))``. Terms with coefficient zero are never kept."""

    __slots__ = ("_key", "terms")

    def __init__(self, terms: dict[Monomial, Coefficient]) -> None:
        self.terms = terms
        self._key: Any = None

    @property
    def key(self) -> Any:
        """A hashable identity."""
        if self._key is None:
            self._key = frozenset(
                (tuple(a.uid for a in m), c if isinstance(c, int) else c.tobytes()) for m, c in self.terms.items()
            )
        return self._key

    @property
    def uniform(self) -> bool:
        """True when every thread has the same value."""
        return all(isinstance(c, int) and all(a.uniform for a in m) for m, c in self.terms.items())

    def numeric(self) -> IntArray | None:
        """The per-thread numbers when no symbol occurs."""
        if len(self.terms) == 1 and () in self.terms:
            value = self.terms[()]
            return value if isinstance(value, np.ndarray) else None
        return None

    def atoms(self) -> set[Node]:
        """The symbols that occur."""
        return {a for m in self.terms for a in m}

    def __repr__(self) -> str:
        return "Poly(" + " + ".join(f"{c}*{'*'.join(map(repr, m))}" for m, c in self.terms.items()) + ")"


@dataclass(frozen=True, slots=True)
class CType:
    """A C type as far as execution needs it: size in bytes and class (int | float | bool | half | bf16 | wide | void
    | other).
    """

    name: str
    size: int
    kind: str
    pointer: int = 0
    signed: bool = True

    def pointee(self) -> CType:
        """The type behind one star."""
        return CType(self.name, self.size, self.kind, max(0, self.pointer - 1), self.signed)


class Cells:
    """A local variable or array of one thread: `dims` is () for a scalar. `values` holds one value per element."""

    __slots__ = ("ctype", "dims", "name", "oid", "start", "values")

    def __init__(self, oid: int, name: str, ctype: CType, dims: tuple[int, ...], start: int) -> None:
        size = 1
        for d in dims:
            size *= d
        self.oid = oid
        self.name = name
        self.ctype = ctype
        self.dims = dims
        self.start = start  # byte offset of the declaration, for anchors
        self.values: list[Value] = [UNDEFINED] * size


@dataclass(frozen=True, slots=True)
class Ptr:
    """A pointer. `offset` counts bytes for global and shared memory, elements for local arrays (`root` is then the
    Cells).

    For global memory `root` is the position of the kernel parameter. `dims` are the remaining extents of a
    (multi-dimensional) array.
    """

    space: str  # global | shared | local
    root: Any
    offset: Value
    ctype: CType
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A callable value: a lambda (with its defining scope) or the name of a function."""

    node: Any
    scope: Any


class Record:
    """A variable of a struct type: its members by name."""

    __slots__ = ("ctype", "fields")

    def __init__(self, ctype: CType, fields: dict[str, Cells | Record]) -> None:
        self.ctype = ctype
        self.fields = fields


Value: TypeAlias = "int | float | bool | Poly | Node | Ptr | Function | Record | None"

UNDEFINED = Node("undefined", (), None, "other", True, -1)

_TRUE_UNIFORM = frozenset({"param", "block", "grid", "iv"})
_VARYING = frozenset({"shfl", "gload", "sload", "frag", "mma", "phi"})


class Store:
    """Makes and interns nodes, and does the arithmetic of polynomials."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._nodes: dict[Any, Node] = {}
        self._count = 0
        self._folded: dict[int, Value] = {}  # of remainders and quotients kept as written: what they are as numbers

    # ---- nodes --------------------------------------------------------------------------------------------------

    def node(self, op: str, args: tuple[Value, ...] = (), data: Any = None, kind: str = "float") -> Node:
        """The node with these contents."""
        key = (op, tuple([_key(a) for a in args]), data, kind)
        found = self._nodes.get(key)
        if found is None:
            # One address, one number: an integer read at a place that the block shares may steer loops and copies.
            steady = op not in _VARYING or (op == "gload" and kind == "int")
            uniform = steady and (op in _TRUE_UNIFORM or all(is_uniform(a) for a in args))
            self._count += 1
            found = self._nodes[key] = Node(op, args, data, kind, uniform, self._count)
        return found

    def integer_reads(self) -> list[tuple[Value, int]]:
        """(offset, bytes of an element) of each place where an integer in global memory has been read."""
        return [(n.args[0], n.data[1]) for n in self._nodes.values() if n.op == "gload" and n.kind == "int"]

    def fresh(
        self, op: str, args: tuple[Value, ...] = (), data: Any = None, kind: str = "float", uniform: bool = False
    ) -> Node:
        """A node equal to no other: a version of a variable, a loop-carried value."""
        self._count += 1
        return Node(op, args, data, kind, uniform, self._count)

    # ---- integers -----------------------------------------------------------------------------------------------

    def poly(self, value: Value) -> Poly:
        """An integer value as a polynomial."""
        if isinstance(value, Poly):
            return value
        if isinstance(value, Node):
            return Poly({(value,): 1})
        if isinstance(value, bool | int):
            return Poly({(): int(value)} if value else {})
        raise NotUnderstood("arithmetic on something that is no integer")

    def array(self, values: IntArray) -> Value:
        """Per-thread numbers; a plain int when all threads agree."""
        first = int(values[0])
        if (values == first).all():
            return first
        return Poly({(): values.astype(np.int64)})

    def lower(self, terms: dict[Monomial, Coefficient]) -> Value:
        """The simplest value with these terms."""
        clean: dict[Monomial, Coefficient] = {}
        for m, c in terms.items():
            if isinstance(c, np.ndarray):
                first = int(c[0])
                if (c == first).all():
                    c = first
            if isinstance(c, np.ndarray) or c != 0:
                clean[m] = c
        if not clean:
            return 0
        if len(clean) == 1:
            (m, c), *_ = clean.items()
            if not m and isinstance(c, int):
                return c
            if len(m) == 1 and isinstance(c, int) and c == 1:
                return m[0]
        return Poly(clean)

    def add(self, a: Value, b: Value, sign: int = 1) -> Value:
        """``a + sign * b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a + sign * b
        if b == 0 and isinstance(a, Poly | Node):
            return a
        if a == 1 and sign == -1 and (other := self._other_of_two(b)) is not None:
            return other
        terms = dict(self.poly(a).terms)
        for m, c in self.poly(b).terms.items():
            terms[m] = terms.get(m, 0) + sign * c
        return self.lower(terms)

    def _other_of_two(self, place: Value) -> Value | None:
        """The other buffer of two, ``place ^ 1`` or ``1 - place``: as the next place, ``(trip + 1) % 2``."""
        if isinstance(place, Node) and place.uniform and place.op == "mod" and place.args[1] == 2:
            return self.remainder(self.add(place.args[0], 1), 2, floor=True)
        return None

    def mul(self, a: Value, b: Value) -> Value:
        """``a * b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if b == 1 and isinstance(a, Poly | Node):
            return a
        terms: dict[Monomial, Coefficient] = {}
        for m1, c1 in self.poly(a).terms.items():
            for m2, c2 in self.poly(b).terms.items():
                m = m1 + m2 if not m1 or not m2 else tuple(sorted(m1 + m2, key=lambda n: n.uid))
                terms[m] = terms.get(m, 0) + c1 * c2
        return self.lower(terms)

    def divide(self, a: Value, b: Value, *, floor: bool) -> Value:
        """Integer quotient; C's truncation, or rounding down (shifts)."""
        if isinstance(a, int) and isinstance(b, int) and b != 0:
            return a // b if floor else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        numbers = self._numbers(a, b)
        if numbers is not None:
            x, y = numbers
            if not (y == 0).any():
                q = np.floor_divide(x, y) if floor else (np.sign(x) * np.sign(y) * (abs(x) // abs(y)))
                return self.array(np.asarray(q).reshape(-1))
        if b == 1:
            return a
        if isinstance(b, int) and b > 0:
            split = self._split(a, b)
            if split is not None:
                whole, rest = split
                return self.add(whole, self.array(rest // b))
        return self.node("floordiv" if floor else "tdiv", (a, b), kind="int")

    def remainder(self, a: Value, b: Value, *, floor: bool) -> Value:
        """Integer remainder; C's sign of the dividend, or the mathematical one (masks by 2^k - 1)."""
        if isinstance(a, int) and isinstance(b, int) and b != 0:
            return a % b if floor else abs(a) % abs(b) * (1 if a >= 0 else -1)
        numbers = self._numbers(a, b)
        if numbers is not None:
            x, y = numbers
            if not (y == 0).any():
                r = np.mod(x, y) if floor else np.fmod(x, y)
                return self.array(np.asarray(r).reshape(-1))
        if isinstance(b, int) and b > 0:
            split = self._split(a, b)
            if split is not None:
                return self.array(split[1] % b)
        return self.node("mod" if floor else "tmod", (a, b), kind="int")

    def _split(self, a: Value, b: int) -> tuple[Value, IntArray] | None:
        """``a = b * whole + rest`` with `rest` numeric, when nothing is negative: division then acts on `rest`."""
        if not isinstance(a, Poly) or not non_negative(a):
            return None
        whole: dict[Monomial, Coefficient] = {}
        for m, c in a.terms.items():
            if m:
                if not np.all(np.asarray(c) % b == 0):
                    return None
                whole[m] = c // b
        rest = np.broadcast_to(np.asarray(a.terms.get((), 0), dtype=np.int64), (self.threads,))
        return self.lower(whole), rest

    # ---- remainders of positions ------------------------------------------------------------------------------------

    def kept(self, op: str, a: Value, b: Value, value: Value) -> Value:
        """`value`, which is ``a op b`` (op: mod | floordiv), or a node that says so.

        ``col % 2`` of a tile that starts at a multiple of 2 is a number for each element; but elements that numbers
        decide differently are computed differently from then on. So a remainder of a row or a column of the tile stays
        what was written, until an address needs the number (`fold`).
        """
        if not isinstance(a, Poly) or not isinstance(b, int) or b <= 1 or isinstance(value, Node):
            return value
        found_again = op == "floordiv" and b & (b - 1) == 0  # by its digits (`stepwise`)
        if found_again or a.uniform or len(a.terms) < 2 or self._split(a, b) is None:
            return value
        node = self.node(op, (a, b), kind="int")
        self._folded[node.uid] = value
        return node

    def fold(self, value: Value) -> Value:
        """`value` with numbers for the remainders and quotients that were kept."""
        if not self._folded or is_uniform(value) or not isinstance(value, Poly | Node):
            return value
        return self.substitute(value, self._number_of)

    def _number_of(self, node: Node) -> Value | None:
        found = self._folded.get(node.uid)
        return None if found is None else self.fold(found)

    def _numbers(self, a: Value, b: Value) -> tuple[IntArray, IntArray] | None:
        found: list[IntArray] = []
        for v in (a, b):
            if isinstance(v, bool | int):
                found.append(np.asarray([int(v)], dtype=np.int64))
            elif isinstance(v, Poly) and (numbers := v.numeric()) is not None:
                found.append(numbers)
            else:
                return None
        return found[0], found[1]

    def bits(self, op: str, a: Value, b: Value) -> Value:
        """``&  |  ^  <<  >>`` on integers."""
        if op == "shl":
            if isinstance(b, int) and 0 <= b < 63:
                return self.mul(a, 1 << b)
        elif op == "shr":
            if isinstance(b, int) and 0 <= b < 63:
                return self.divide(a, 1 << b, floor=True)
        elif op == "bitand":
            if isinstance(a, int) and not isinstance(b, int):
                a, b = b, a
            if isinstance(b, int) and b >= 0 and (b & (b + 1)) == 0:
                return self.remainder(a, b + 1, floor=True)
        elif op == "bitxor" and b == 1 and (other := self._other_of_two(a)) is not None:
            return other
        numbers = self._numbers(a, b)
        if numbers is not None:
            return self.array(np.asarray(_BITS[op](*numbers)).reshape(-1))
        if op in ("bitor", "bitxor") and isinstance(b, int) and isinstance(a, Poly) and non_negative(a):
            # Bits of a small constant beside symbols that are multiples of a larger power of two.
            size = 1 << b.bit_length()
            split = self._split(a, size)
            if split is not None:
                return self.add(self.mul(split[0], size), self.array(_BITS[op](split[1], b)))
        return self.node(op, (a, b), kind="int")

    def substitute(self, value: Value, replace: Callable[[Node], Value | None]) -> Value:
        """`value` with nodes replaced where `replace` gives something, inside polynomials and nodes alike."""
        return self._substitute(value, replace, {})

    def _substitute(self, value: Value, replace: Callable[[Node], Value | None], known: dict[int, Value]) -> Value:
        """As `substitute`; `known` are nodes that are done: many expressions share a part."""
        if isinstance(value, Poly):
            total: Value = 0
            for m, c in value.terms.items():
                term: Value = c if isinstance(c, int) else Poly({(): c})
                for atom in m:
                    term = self.mul(term, self._substitute(atom, replace, known))
                total = self.add(total, term)
            return total
        if not isinstance(value, Node):
            return value
        if value.uid not in known:
            budget.spend()
            new = replace(value)
            if new is None and value.args:
                args = tuple(self._substitute(a, replace, known) for a in value.args)
                same = all(x is y for x, y in zip(args, value.args, strict=True))
                new = value if same else self._remake(value, args)
            known[value.uid] = value if new is None else new
        return known[value.uid]

    def _remake(self, node: Node, args: tuple[Value, ...]) -> Value:
        if node.op in ("tdiv", "floordiv", "tmod", "mod"):
            of = self.divide if node.op in ("tdiv", "floordiv") else self.remainder
            value = of(args[0], args[1], floor=node.op in ("floordiv", "mod"))
            return self.kept(node.op, args[0], args[1], value) if node.uid in self._folded else value
        if node.op in _BITS:
            return self.bits(node.op, args[0], args[1])
        return self.node(node.op, args, node.data, node.kind)


_BITS: dict[str, Callable[..., Any]] = {
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
}


def _key(value: Value) -> Any:
    if isinstance(value, Node):
        return value.uid
    if isinstance(value, Poly):
        return value.key
    if isinstance(value, Ptr):
        return ("ptr", value.space, id(value.root), _key(value.offset))
    return (type(value).__name__, value)


def is_uniform(value: Value) -> bool:
    """True when every thread of the block has the same value."""
    if isinstance(value, Node | Poly):
        return value.uniform
    if isinstance(value, Ptr):
        return value.space != "local" and is_uniform(value.offset)
    return True


def same(a: Value, b: Value) -> bool:
    """Structural equality."""
    return a is b or (type(a) is type(b) and _key(a) == _key(b))


_NON_NEGATIVE_OPS = frozenset({"block", "grid", "mod", "iv"})


def non_negative(value: Value) -> bool:
    """True when `value` cannot be negative, counting kernel parameters (sizes, strides) as non-negative."""
    return _non_negative(value, {})


def _non_negative(value: Value, known: dict[int, bool]) -> bool:
    """`known`: of nodes by identity. A counter of a ring shares its parts many times over: each is asked once."""
    if isinstance(value, bool | int):
        return value >= 0
    if isinstance(value, Poly):
        least = int(np.min(value.terms.get((), 0)))
        for m, c in value.terms.items():
            if m and not (np.all(np.asarray(c) >= 0) and all(_non_negative(a, known) for a in m)):
                return False
            least += int(np.min(c)) * math.prod(_least(a) for a in m) if m and least < 0 else 0
        return least >= 0
    if isinstance(value, Node):
        if id(value) not in known:
            known[id(value)] = _node_non_negative(value, known)
        return known[id(value)]
    return False


def _least(node: Node) -> int:
    """A number that a node which is not negative is never below: ``max(1, tiles)`` is at least 1."""
    return max((a for a in node.args if isinstance(a, int)), default=0) if node.op == "max" else 0


def _node_non_negative(node: Node, known: dict[int, bool]) -> bool:
    if node.op in _NON_NEGATIVE_OPS:
        return True
    if node.op == "param":
        return node.kind == "int"
    if node.op in ("tdiv", "floordiv", "tmod", "min", "int_max", "bitand"):
        return all(_non_negative(a, known) for a in node.args)
    if node.op == "select":
        return all(_non_negative(a, known) for a in node.args[1:])
    return node.op == "max" and any(_non_negative(a, known) for a in node.args)

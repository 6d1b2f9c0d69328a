"""The problem behind the addresses: which parameter is which tensor, which block index is the head, which size is Sk.

Everything is read off the addresses and predicates of accesses whose meaning is already known (Q, K, V, O, LSE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir.expr import Call, Const, Expr, Var
from . import addresses
from .map_unknowns import is_map_unknown
from .memory import Memory, Wave
from .values import Coefficient, Monomial, Node, Poly, Store, Value, same


@dataclass(slots=True)
class Problem:
    """What the lifter knows about the problem the kernel solves."""

    tensors: dict[str, int] = field(default_factory=dict[str, int])  # q k v o lse -> parameter position
    roles: dict[int, str] = field(default_factory=dict[int, str])  # parameter position -> role
    q_row0: Value = 0
    Br: int = 0
    Bc: int = 0
    D: int = 0  # width of Q and K
    Dv: int = 0  # width of V and O
    q_tile: Value = 0  # uniform, over block indices
    b: Value = 0
    h: Value = 0
    hk: Value = 0
    canon: dict[Node, Expr] = field(default_factory=dict[Node, Expr])
    sizes: dict[str, Node] = field(default_factory=dict[str, Node])  # Sq, Sk, H, Hkv -> parameter node
    strides: dict[str, dict[str, Value]] = field(default_factory=dict[str, dict[str, Value]])  # q -> {b, h, row}
    shared_length: bool = False  # one parameter is both Sq and Sk
    notes: list[str] = field(default_factory=list[str])


class Reader:
    """Fills a Problem from the memory of a trace."""

    def __init__(self, store: Store, memory: Memory, problem: Problem) -> None:
        self.store = store
        self.memory = memory
        self.p = problem

    def sizes_from_limits(self, limits: Mapping[str, Sequence[Value]]) -> None:
        """Sq bounds the rows of Q, O and LSE; Sk those of K and V."""
        for size, sources in (("Sq", ("q", "o", "lse")), ("Sk", ("k", "v"))):
            for source in sources:
                for limit in limits.get(source, ()):
                    if isinstance(limit, Node) and limit.op == "param" and not is_map_unknown(limit):
                        self.p.sizes.setdefault(size, limit)
        q, k = self.p.sizes.get("Sq"), self.p.sizes.get("Sk")
        if q is not None and q is k:
            self.p.shared_length = True

    def grid(self, bases: dict[str, Value], lse: Value | None) -> None:
        """Block indices: b and h from the bases of Q and K; H and Hkv from the head map and the LSE's address."""
        q_parts = self._parts(bases["q"])
        k_parts = self._parts(bases["k"]) if "k" in bases else {}
        indices = list(q_parts)
        h = self._head(indices, list(k_parts), lse, q_parts)
        b = next((a for a in indices if a is not h), 0)
        self.p.h, self.p.b = h if h is not None else 0, b
        if len(indices) == 1 and h is not None:
            self._combined(h, q_parts[h], k_parts)
        else:
            self._head_count(q_parts, lse)
            self._lengths("Sk", "k", k_parts)
            self.p.hk = head_of(self.store, bases["k"], b)[0] if k_parts else self.p.h
        self._kv_heads()
        for role, base in bases.items():
            self._stride_roles(role, base)

    def _parts(self, base: Value) -> dict[Node, Value]:
        """A base address as index -> stride: every monomial has one atom that is no parameter."""
        parts: dict[Node, Value] = {}
        for m, c in self.store.poly(base).terms.items():
            index = [a for a in m if not addresses.of_parameters(a)]
            if len(index) == 1:
                stride = self.store.lower({tuple(a for a in m if a is not index[0]): c})
                parts[index[0]] = self.store.add(parts.get(index[0], 0), stride)
        return parts

    def _head(
        self, q: list[Node], k: list[Node], lse: Value | None, strides: dict[Node, Value] | None = None
    ) -> Node | None:
        if len(q) == 1:
            return q[0]
        for a in q:
            # Of the two, h is the one that K reads through a map (GQA), b the one it reads unchanged.
            if a not in k and any(x is not a and _contains(x, a) for x in k):
                return a
        for a in q:
            if a.op in ("tmod", "mod"):
                return a
        if lse is not None:
            parts = self._parts(lse)
            rows = {a: self.store.poly(parts[a]) for a in q if a in parts}
            if len(rows) == 2:
                (x, sx), (y, sy) = rows.items()
                return x if _degree(sx) < _degree(sy) else y
        if len(q) == 2 and strides is not None:
            degrees = [_degree(self.store.poly(strides[a])) for a in q]
            if degrees[0] != degrees[1]:  # the batches lie a number of heads apart
                return q[degrees.index(min(degrees))]
        # Nothing tells them apart, and nothing depends on it: either reading computes the same. Usually y is the head.
        by_axis = {str(a.data): a for a in q if a.op == "block"}
        return by_axis.get("y", q[0] if q else None)

    def _combined(self, bh: Node, stride: Value, k_parts: dict[Node, Value]) -> None:
        """One block index for batch and head: b = bh // H, h = bh % H, with H known to the caller only."""
        self.p.notes.append("combined")
        self.p.h = self.p.b = bh
        self.p.hk = next(iter(k_parts), bh)

    def _head_count(self, q_parts: dict[Node, Value], lse: Value | None) -> None:
        """H: the factor between the batch's and the head's distance in a contiguous tensor."""
        tables = [q_parts]
        if lse is not None:
            tables.insert(0, self._parts(lse))
        for parts in tables:
            if isinstance(self.p.h, Node) and isinstance(self.p.b, Node) and self.p.h in parts and self.p.b in parts:
                x, y = self.store.poly(parts[self.p.b]), self.store.poly(parts[self.p.h])
                if len(x.terms) == 1 and len(y.terms) == 1:
                    (mb, cb), (mh, ch) = next(iter(x.terms.items())), next(iter(y.terms.items()))
                    rest = addresses.without(mb, mh)
                    if rest is not None and len(rest) == 1 and cb == ch:
                        self.p.sizes.setdefault("H", rest[0])
                        if mh and "Sq" not in self.p.sizes and len(mh) == 1 and parts is tables[0] and lse is not None:
                            self.p.sizes["Sq"] = mh[0]
        self._lengths("Sq", "q", q_parts)
        self._interleaved_heads(q_parts)
        for index in (self.p.b, self.p.h):
            if isinstance(index, Node) and index.op in ("tdiv", "floordiv", "tmod", "mod"):
                count = index.args[1]
                if isinstance(count, Node) and count.op == "param":
                    self.p.sizes.setdefault("H", count)

    def _lengths(self, size: str, role: str, parts: dict[Node, Value]) -> None:
        """[B, H, S, D] without stride arguments: the heads lie S rows apart, and no predicate may say so."""
        tensor = self.p.tensors.get(role)
        stride = self.memory.strides.get(tensor) if tensor is not None else None
        if size in self.p.sizes or stride is None or stride.symbols != ():
            return
        for distance in parts.values():
            terms = self.store.poly(distance).terms
            if len(terms) == 1:
                (m, c), *_ = terms.items()
                if len(m) == 1 and m[0].op == "param" and isinstance(c, int) and c == stride.factor:
                    self.p.sizes[size] = m[0]
        q, k = self.p.sizes.get("Sq"), self.p.sizes.get("Sk")
        self.p.shared_length = q is not None and q is k

    def _interleaved_heads(self, q_parts: dict[Node, Value]) -> None:
        """[B, S, H, D] without stride arguments: a row is H heads long."""
        tensor = self.p.tensors.get("q")
        stride = self.memory.strides.get(tensor) if tensor is not None else None
        head = q_parts.get(self.p.h) if isinstance(self.p.h, Node) else None
        if stride is not None and isinstance(head, int) and head == stride.factor and len(stride.symbols) == 1:
            self.p.sizes.setdefault("H", stride.symbols[0])

    def _kv_heads(self) -> None:
        """Hkv (and H, or the group size) from the shape of the head map."""
        hk, h = self.p.hk, self.p.h
        if not isinstance(hk, Node) or hk is h:
            return
        if hk.op in ("tdiv", "floordiv") and isinstance(hk.args[0], Poly):
            # h * Hkv / H
            factors = [a for m in hk.args[0].terms for a in m if a is not h]
            if len(factors) == 1 and factors[0].op == "param" and isinstance(hk.args[1], Node):
                self.p.sizes.setdefault("Hkv", factors[0])
                self.p.sizes.setdefault("H", hk.args[1])
        elif hk.op in ("tdiv", "floordiv") and len(hk.args) == 2:
            divisor = hk.args[1]
            if isinstance(divisor, Node) and divisor.op in ("tdiv", "floordiv"):
                for name, node in (("H", divisor.args[0]), ("Hkv", divisor.args[1])):
                    if isinstance(node, Node) and node.op == "param":
                        self.p.sizes.setdefault(name, node)
            elif isinstance(divisor, Node) and divisor.op == "param" and divisor is not self.p.sizes.get("H"):
                self.p.roles.setdefault(divisor.data, "group")
        elif hk.op in ("tmod", "mod") and isinstance(hk.args[1], Node) and hk.args[1].op == "param":
            self.p.sizes.setdefault("Hkv", hk.args[1])

    def _stride_roles(self, role: str, base: Value) -> None:
        table = self.p.strides.setdefault(role, {})
        for index, stride in self._parts(base).items():
            axis = "b" if index is self.p.b else "h" if index is self.p.h or _contains(index, self.p.h) else ""
            if axis and self.p.b is not self.p.h:
                table[axis] = head_of(self.store, base, self.p.b)[1] if axis == "h" else stride
            elif axis:
                table["h"] = stride
        tensor = self.p.tensors.get(role)
        if tensor is not None and tensor in self.memory.strides:
            known = self.memory.strides[tensor]
            table["row"] = self.store.lower({known.symbols: known.factor})

    def finish(self) -> None:
        """Fix parameter roles and the canonical name of every known atom."""
        for role, position in self.p.tensors.items():
            self.p.roles.setdefault(position, role)
        for size, node in self.p.sizes.items():
            self.p.roles.setdefault(node.data, size)
        for role, table in self.p.strides.items():
            for axis, stride in table.items():
                if isinstance(stride, Node) and stride.op == "param":
                    self.p.roles.setdefault(stride.data, f"stride:{role}.{axis}")
        for size in ("Sk", "Sq", "H", "Hkv"):
            node = self.p.sizes.get(size)
            if node is not None:
                self.p.canon[node] = Var(size)
        heads, hk = self.p.sizes.get("H"), self.p.hk
        if (
            heads is not None
            and isinstance(hk, Node)
            and hk.op in ("tdiv", "floordiv")
            and isinstance(hk.args[1], Node)
        ):
            # Hkv as the code computes it from the group size.
            self.p.canon[self.store.node(hk.op, (heads, hk.args[1]), kind="int")] = Var("Hkv")
        for name, value in (("b", self.p.b), ("h", self.p.h)):
            if isinstance(value, Node) and self.p.b is not self.p.h:
                self.p.canon[value] = Var(name)
        if self.p.b is self.p.h and isinstance(self.p.h, Node):
            self.p.canon[self.p.h] = Call("add", (Call("mul", (Var("b"), Var("H"))), Var("h")))


def wave_limits(waves: Sequence[Wave], tensors: dict[str, int]) -> dict[str, list[Value]]:
    """The row limits of the copies of each tensor role."""
    return {
        role: [p.limit for w in waves if w.tensor == position for p in w.parts if p.limit is not None]
        for role, position in tensors.items()
    }


def _contains(value: Value, node: Any) -> bool:
    return isinstance(node, Node) and any(n is node for n in _walk(value))


def _walk(value: Value) -> Any:
    from .walking import walk

    return walk([value])


def _degree(poly: Poly) -> int:
    return max((len(m) for m in poly.terms), default=0)


def head_of(store: Store, base: Value, b: Value) -> tuple[Value, Value]:
    """The head that a base address is at, and the distance of two heads: ``(head, stride)`` of
    ``base = b * stride_b + head * stride``. The head may be a sum: ``H - 1 - h``. (0, 0) where every head is the same.
    """
    terms = {m: c for m, c in store.poly(base).terms.items() if b not in m}
    indexed = [m for m in terms if any(not addresses.of_parameters(a) for a in m)]
    if not indexed:
        return 0, 0
    first = next(a for a in indexed[0] if not addresses.of_parameters(a))
    stride, count = tuple(a for a in indexed[0] if a is not first), terms[indexed[0]]
    size = abs(count) if isinstance(count, int) else 1
    rest = {m: addresses.without(m, stride) for m in terms}
    whole = all(isinstance(c, int) and c % size == 0 for c in terms.values())
    if not whole or any(m is None for m in rest.values()):
        return first, store.lower({stride: count})
    head: dict[Monomial, Coefficient] = {}
    for m, c in terms.items():
        left = rest[m]
        if left is not None and isinstance(c, int):
            head[left] = c // size
    return store.lower(head), store.lower({stride: size})


def head_map(problem: Problem) -> Expr:
    """The KV head over h, H and Hkv; h itself when K is read by the same index."""
    hk, h = problem.hk, problem.h
    if hk is h or same(hk, h):
        return Var("h")
    if isinstance(hk, Node) and hk.op in ("tdiv", "floordiv") and hk.args[0] is h:
        divisor = hk.args[1]
        if isinstance(divisor, Node) and problem.roles.get(divisor.data if divisor.op == "param" else -1) == "group":
            return Call("floordiv", (Var("h"), Call("floordiv", (Var("H"), Var("Hkv")))))
        if isinstance(divisor, int):
            return Call("floordiv", (Var("h"), Const(divisor)))
    return _expr(hk, problem)


def _expr(value: Value, problem: Problem) -> Expr:
    if isinstance(value, int):
        return Const(value)
    if isinstance(value, Node) and value in problem.canon:
        return problem.canon[value]
    if isinstance(value, Node) and value is problem.h:
        return Var("h")
    if isinstance(value, Node):
        op = {"tdiv": "floordiv", "tmod": "mod"}.get(value.op, value.op)
        if value.op in ("block", "grid"):
            return Var(f"b{value.data}" if value.op == "block" else f"grid{value.data}")
        if value.args:
            return Call(op, tuple(_expr(a, problem) for a in value.args))
    if isinstance(value, Poly):
        result: Expr | None = None
        for atoms, c in value.terms.items():
            m = tuple(sorted(atoms, key=lambda a: a is not problem.h))
            term: Expr = Const(int(c)) if not m or (isinstance(c, int) and c != 1) else _expr(m[0], problem)
            for atom in m if isinstance(term, Const) else m[1:]:
                term = Call("mul", (term, _expr(atom, problem)))
            result = term if result is None else Call("add", (result, term))
        return result or Const(0)
    return Var("unknown")

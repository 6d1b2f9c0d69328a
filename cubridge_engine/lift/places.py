"""Addresses of lvalues, loads and stores, conversions, types."""

from __future__ import annotations

import math

import numpy as np

from . import conditions, dispatch, reinterpreted, structs, tails
from .arithmetic import as_int, boolean, scale_of
from .ctypes_table import OTHER, TYPES, VECTORS, named, stars
from .machine import Machine, Scope
from .syntax import Syn
from .trace import MemoryStore
from .values import UNDEFINED, Cells, CType, Node, NotUnderstood, Poly, Ptr, Value
from .walking import walk


def place(m: Machine, syn: Syn, scope: Scope) -> tuple[Ptr, str | None]:
    """The address of an lvalue, and the field of a vector type when one is named."""
    if syn.type == "parenthesized_expression" and syn.kids:
        return place(m, syn.kids[-1], scope)
    if syn.type == "identifier":
        found = scope.find(syn.text)
        if isinstance(found, Cells):
            return Ptr("local", found, 0, found.ctype, found.dims), None
        if isinstance(found, Ptr):
            return found, None
    if syn.type == "subscript_expression":
        base = dispatch.evaluate(m, child(syn, "argument"), scope)
        index_list = child(syn, "indices")
        if not isinstance(base, Ptr):
            raise NotUnderstood("subscript of something that is no array")
        for kid in index_list.kids:
            base = element(m, base, dispatch.evaluate(m, kid, scope))
        return base, None
    if syn.type == "pointer_expression" and syn.op == "*":
        target = dispatch.evaluate(m, child(syn, "argument"), scope)
        if isinstance(target, Ptr):
            return Ptr(target.space, target.root, target.offset, target.ctype, target.dims[1:]), None
    if syn.type == "field_expression":
        member = structs.member_at(m, syn, scope)
        if isinstance(member, Cells):
            return Ptr("local", member, 0, member.ctype, member.dims), None
        base, inner = place(m, child(syn, "argument"), scope)
        if inner is None:
            return base, child(syn, "field").text
    if syn.type == "call_expression" and (body := _macro_body(m, syn, scope)) is not None:
        return place(m, body, scope)
    if syn.type == "cast_expression" or (syn.type == "call_expression"):
        value = dispatch.evaluate(m, syn, scope)
        if isinstance(value, Ptr):
            return value, None
    raise NotUnderstood(f"`{syn.text[:40]}` as the target of an assignment")


def _macro_body(m: Machine, syn: Syn, scope: Scope) -> Syn | None:
    """The one expression that a macro call stands for: ``FETCH_FLOAT4(x)`` on the left of an assignment."""
    callee, arguments = syn.get("function"), syn.get("arguments")
    if callee is None or arguments is None or scope.find(callee.text) is not None:
        return None
    body = m.expand(callee.text, [k.text for k in arguments.kids], syn)
    if body is None or not body.kids or body.kids[0].type != "expression_statement" or not body.kids[0].kids:
        return None
    return body.kids[0].kids[0]


def element(m: Machine, base: Ptr, index: Value) -> Ptr:
    """``base[index]`` as an address."""
    step = m.store.mul(m.store.fold(as_int(m, index)), scale_of(base))
    return Ptr(base.space, base.root, m.store.add(base.offset, step), base.ctype, base.dims[1:])


def load(m: Machine, ptr: Ptr, field: str | None = None) -> Value:
    """The value at an address; arrays give their address."""
    if ptr.dims:
        return ptr
    if ptr.space == "local":
        cells: Cells = ptr.root
        if not isinstance(ptr.offset, int) or not 0 <= ptr.offset < len(cells.values):
            raise NotUnderstood(f"an index of {cells.name} that depends on the thread or lies outside")
        value: Value = reinterpreted.load(m, ptr)
        if m.unset:
            tails.check_read(m, value)
    else:
        kind = kind_of(ptr.ctype)
        op = "gload" if ptr.space == "global" else "sload"
        data = (
            (ptr.root, ptr.ctype.size, ptr.ctype.name) if op == "gload" else (m.epoch, ptr.ctype.size, ptr.ctype.name)
        )
        m.observer.access(m, ptr.space, ptr.root, ptr.offset, ptr.ctype.size, False)
        offset = folded(m, ptr).offset if op == "sload" else ptr.offset
        value = m.store.node(op, (offset,), data, kind)
    return value if field is None else component(m, value, field)


def kind_of(ctype: CType) -> str:
    if ctype.kind in ("half", "bf16", "float"):
        return "float"
    return {"wide": "wide", "bool": "bool"}.get(ctype.kind, "int")


FIELDS = {"x": 0, "y": 1, "z": 2, "w": 3}


def component(m: Machine, value: Value, field: str) -> Value:
    """One field of a vector value."""
    if field not in FIELDS or not isinstance(value, Node):
        is_struct = isinstance(value, Node) and value.op == "param"
        raise NotUnderstood(f"the field .{field} of a parameter that is a struct" if is_struct else f"field .{field}")
    while value.op == "ver" and isinstance(value.args[0], Node):
        value = value.args[0]
    at = FIELDS[field]
    if value.op in ("vec", "pack") and at < len(value.args):
        return value.args[at]
    if value.op in ("gload", "sload") and value.data[2] in VECTORS:
        base = TYPES[VECTORS[value.data[2]][0]]
        return m.store.node(
            value.op,
            (m.store.add(value.args[0], at * base.size),),
            (value.data[0], base.size, base.name),
            kind_of(base),
        )
    if value.op == "select":
        return m.select(value.args[0], *(component(m, x, field) for x in value.args[1:]))
    return m.store.node("field", (value,), at, "float")


def assign(m: Machine, target: Ptr, field: str | None, value: Value, syn: Syn) -> None:
    """Store a value at an address."""
    if field is not None:
        value = _with_field(m, target, field, value)
    elif not target.dims:
        value = to_type(m, value, target.ctype)
    if target.space == "local":
        if isinstance(target.offset, int) and 0 <= target.offset < len(target.root.values):
            reinterpreted.store(m, target, value)
            return
        raise NotUnderstood("an index that depends on the thread")
    if target.space == "shared":
        m.epoch += 1
    record_store(m, target, value)


def _with_field(m: Machine, target: Ptr, field: str, value: Value) -> Value:
    if target.ctype.name not in VECTORS or field not in FIELDS:
        raise NotUnderstood(f"field .{field}")
    base, count = VECTORS[target.ctype.name]
    old = load(m, target) if target.space == "local" else UNDEFINED
    while isinstance(old, Node) and old.op == "ver":
        old = old.args[0]
    parts: list[Value] = list(old.args) if isinstance(old, Node) and old.op == "vec" else [UNDEFINED] * count
    parts[FIELDS[field]] = to_type(m, value, TYPES[base])
    return m.store.node("vec", tuple(parts), base, "wide")


def to_type(m: Machine, value: Value, ctype: CType) -> Value:
    """The conversion of an assignment or a cast."""
    if ctype.pointer or isinstance(value, Ptr) or value is UNDEFINED:
        return value
    if ctype.kind in ("float", "half", "bf16"):
        if isinstance(value, bool | int):
            if abs(value) >> 128:  # a loop that never ends leaves any number of digits
                raise NotUnderstood("a number that no float holds")
            value = float(value)
        elif isinstance(value, Poly) or (isinstance(value, Node) and value.kind in ("int", "bool")):
            value = m.store.node("float", (value,))
        return rounded(m, value, ctype)
    if ctype.kind == "bool":
        return boolean(m, value)
    if ctype.kind == "int":
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return int(value)
        if isinstance(value, Node) and value.kind == "float":
            return m.store.node("int", (value,), kind="int")
    return value


def rounded(m: Machine, value: Value, ctype: CType) -> Value:
    """A float narrowed to half or bfloat16, unless it came from memory of that type."""
    if ctype.kind not in ("half", "bf16") or isinstance(value, float):
        return value
    if (
        isinstance(value, Node)
        and value.op in ("gload", "sload")
        and TYPES.get(value.data[2], OTHER).kind == ctype.kind
    ):
        return value
    op = "fp16" if ctype.kind == "half" else "bf16"
    if isinstance(value, Node) and value.op in ("fp16", "bf16"):
        return value
    return m.store.node(op, (value,))


def type_named(m: Machine, name: str, scope: Scope) -> CType | None:
    """The type of that name at this point."""
    found = scope.find(name)
    if isinstance(found, CType):
        return found
    if name in m.aliases:
        return read_type(m, m.aliases[name][1], scope)
    return named(name)


def read_type(m: Machine, syn: Syn, scope: Scope) -> CType:
    """The type that `syn` (a type specifier or a type_descriptor) names."""
    if syn.type == "type_descriptor":
        inner = syn.get("type")
        base = read_type(m, inner, scope) if inner is not None else OTHER
        count = stars(syn.get("declarator"))
        return CType(base.name, base.size, base.kind, base.pointer + count, base.signed) if count else base
    if syn.type == "placeholder_type_specifier":
        return TYPES["auto"]
    named = type_named(m, syn.text, scope)
    return named or structs.type_of(m, syn, scope) or CType(syn.text, 4, "other")


def child(syn: Syn, name: str) -> Syn:
    child = syn.get(name)
    if child is None:
        raise NotUnderstood(f"{syn.type.replace('_', ' ')} without {name}")
    return child


def cast(m: Machine, value: Value, ctype: CType) -> Value:
    """``(ctype) value``."""
    if isinstance(value, Ptr) and ctype.pointer:
        base = ctype.pointee()
        if value.space == "local":
            if base.size % max(1, value.root.ctype.size) or base.kind in ("void", "other"):
                raise NotUnderstood("a local array read as smaller elements")
            return Ptr("local", value.root, value.offset, base, ())
        return Ptr(value.space, value.root, value.offset, base)
    if isinstance(value, Ptr):
        return value.offset if value.space == "shared" and ctype.kind == "int" else value
    return to_type(m, value, ctype)


def record_store(m: Machine, target: Ptr, value: Value) -> None:
    """A store to shared or global memory."""
    if m.rehearsal:
        return
    size = target.ctype.size if not target.ctype.pointer else 8
    m.observer.access(m, target.space, target.root, target.offset, size, True)
    if target.space == "shared":
        target = folded(m, target)
        value = _kept(m, target, value)
    m.items.append(MemoryStore(m.next_order(), m.place(), target, size, value, tuple(m.predicates), m.epoch))


def _kept(m: Machine, target: Ptr, value: Value) -> Value:
    """A computed value stored where a symbol decides: the old one stays elsewhere. Copies keep their condition."""
    if value == 0 or any(n.op == "gload" for n in walk([value])):
        return value
    for p in reversed(m.predicates):
        if conditions.per_thread(m.store, p) is None:
            data = (m.epoch - 1, target.ctype.size, target.ctype.name)
            value = m.select(p, value, m.store.node("sload", (target.offset,), data, kind_of(target.ctype)))
    return value


def folded(m: Machine, ptr: Ptr) -> Ptr:
    """A shared address under ``if (thread < n)``: threads that take no part are given the address of one that does,
    since what they would find at their own is nothing that the kernel ever reads.
    """
    active = np.ones(m.store.threads, dtype=bool)
    for p in m.predicates:
        known = conditions.per_thread(m.store, p)
        if known is not None:
            active &= known
    if not isinstance(ptr.offset, Poly) or active.all() or not active.any():
        return ptr
    ids = np.flatnonzero(active)
    own = np.searchsorted(ids, np.arange(m.store.threads), side="right") - 1
    first_ones = len(ids) == ids[-1] + 1  # the first n threads: the others take turns
    stand_in = ids[np.arange(m.store.threads) % len(ids) if first_ones else np.maximum(own, 0)]
    terms = {k: c if isinstance(c, int) else c[stand_in] for k, c in ptr.offset.terms.items()}
    return Ptr(ptr.space, ptr.root, m.store.lower(terms), ptr.ctype, ptr.dims)

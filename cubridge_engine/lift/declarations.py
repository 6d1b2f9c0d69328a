"""Execution of declarations: variables, arrays, structs, shared memory, names of types."""

from __future__ import annotations

import math

from . import calls, dispatch, machine, places, structs, unsigned
from .ctypes_table import TYPES
from .machine import Machine, Scope
from .syntax import Syn
from .values import Cells, CType, NotUnderstood, Ptr, Record, Value

_MOST_ELEMENTS = 1 << 14  # of one dimension of a thread's own array
_MOST_RECORDS = 256  # of an array of structs
DYNAMIC_SHARED = 1 << 20  # address of the extern __shared__ array; static ones start at 0


def declaration(m: Machine, syn: Syn, scope: Scope) -> None:
    kind = syn.get("type")
    if kind is None:
        return
    shared = any(k.text == "__shared__" for k in syn.kids) or "__shared__" in syn.text.split("=")[0].split()
    ctype = places.read_type(m, kind, scope)
    for declarator in syn.lists.get("declarator", []):
        _declare(m, declarator, ctype, scope, syn, shared)
    return


def _declare(m: Machine, declarator: Syn, ctype: CType, scope: Scope, syn: Syn, shared: bool) -> None:
    value = declarator.get("value") if declarator.type == "init_declarator" else None
    inner = declarator.get("declarator") if declarator.type == "init_declarator" else declarator
    dims: list[int] = []
    reference = False
    to_rows = inner is not None and _points_to_array(inner)
    while inner is not None and inner.type not in ("identifier", "type_identifier"):
        if inner.type == "array_declarator":
            size = inner.get("size")
            extent = dispatch.evaluate(m, size, scope) if size is not None else 0
            if not isinstance(extent, int):
                raise NotUnderstood("an array whose size is not constant")
            dims.insert(0, extent)
        elif inner.type == "pointer_declarator":
            ctype = CType(ctype.name, ctype.size, ctype.kind, ctype.pointer + 1, ctype.signed)
        elif inner.type == "reference_declarator":
            reference = True
        inner = inner.get("declarator") or next(
            (k for k in reversed(inner.kids) if "declarator" in k.type or k.type == "identifier"), None
        )
    if inner is None:
        raise NotUnderstood("a declaration without a name")
    if shared:
        scope.names[inner.text] = _shared(m, syn, inner, ctype, tuple(dims))
        return
    if to_rows and value is not None:
        _pointer_to_rows(m, inner, ctype, dims, value, scope)
        return
    if reference and value is not None:
        record = structs.record_at(m, value, scope)
        scope.names[inner.text] = record if record is not None else places.place(m, value, scope)[0]
        return
    if structs.is_record(ctype) and not dims:
        scope.names[inner.text] = structs.unknown(m, ctype)  # should its start value not be understood
        scope.names[inner.text] = _record(m, ctype, value, scope, inner)
        return
    if not all(0 < d <= _MOST_ELEMENTS for d in dims):
        raise NotUnderstood("an array without elements, or with very many")
    if structs.is_record(ctype) and value is None and math.prod(dims) <= _MOST_RECORDS:
        items = [structs.build(m, ctype, (), inner.text, inner.start) for _ in range(math.prod(dims))]
        scope.names[inner.text] = structs.Records(items, tuple(dims))
        return
    cells = m.new_cells(inner.text, ctype, tuple(dims), inner.start)
    scope.names[inner.text] = cells
    if ctype.kind == "other" and not ctype.pointer and value is None:
        raise NotUnderstood(f"a variable of type {ctype.name}")
    if value is not None:
        _initialise(m, cells, value, scope)


def _pointer_to_rows(m: Machine, name: Syn, ctype: CType, dims: list[int], value: Syn, scope: Scope) -> None:
    """``T (*name)[n] = value``; `ctype` is ``T*``."""
    pointer = dispatch.evaluate(m, value, scope)
    if not isinstance(pointer, Ptr) or pointer.space == "local":
        raise NotUnderstood(f"the pointer {name.text} to an array")
    cells = m.new_cells(name.text, ctype, (), name.start)
    cells.values[0] = Ptr(pointer.space, pointer.root, pointer.offset, ctype.pointee(), (0, *dims))
    scope.names[name.text] = cells


def declares_rows(m: Machine, syn: Syn, scope: Scope) -> bool:
    """``float (*name)[n] = value;`` where the grammar saw an assignment to an element of a call; declares it."""
    dims: list[int] = []
    left, value = syn.get("left"), syn.get("right")
    if left is None or left.type != "subscript_expression" or "(*" not in left.text.replace(" ", ""):
        return False
    while left is not None and left.type == "subscript_expression":
        extent = dispatch.evaluate(m, places.child(left, "indices").kids[0], scope)
        if not isinstance(extent, int):
            return False
        dims.insert(0, extent)
        left = left.get("argument")
    kind = left.get("function") if left is not None and left.type == "call_expression" else None
    if left is None or kind is None or value is None or not dims or kind.type != "primitive_type":
        return False
    star = places.child(left, "arguments").kids
    if len(star) != 1 or star[0].type != "pointer_expression" or star[0].op != "*":
        return False
    ctype = places.read_type(m, kind, scope)
    name = places.child(star[0], "argument")
    _pointer_to_rows(m, name, CType(ctype.name, ctype.size, ctype.kind, 1, ctype.signed), dims, value, scope)
    return True


def _points_to_array(declarator: Syn) -> bool:
    """``T (*name)[n]``: a pointer to rows, not an array of pointers."""
    while declarator.type == "array_declarator" and (inner := declarator.get("declarator")) is not None:
        declarator = inner
    return declarator.type == "parenthesized_declarator" and declarator.kids[0].type == "pointer_declarator"


def _record(m: Machine, ctype: CType, value: Syn | None, scope: Scope, name: Syn) -> Record:
    """A variable of a struct type."""
    if value is not None and value.type not in ("initializer_list", "argument_list"):
        given = dispatch.evaluate(m, value, scope)
        if not isinstance(given, Record):
            raise NotUnderstood(f"a start value of {name.text} that is no {ctype.name}")
        return machine.copied(m, given)
    values = [dispatch.evaluate(m, k, scope) for k in value.kids] if value is not None else []
    if len(values) == 1 and isinstance(values[0], Record) and values[0].ctype == ctype:
        return machine.copied(m, values[0])
    return structs.build(m, ctype, values, name.text, name.start)


def _shared(m: Machine, syn: Syn, name: Syn, ctype: CType, dims: tuple[int, ...]) -> Ptr:
    key = (name.start, name.end, id(name))
    if key not in m.shared_declared:
        if "extern" in syn.text.split("__shared__")[0]:
            m.shared_declared[key] = Ptr("shared", None, DYNAMIC_SHARED, ctype, dims or (0,))
        else:
            size = ctype.size
            for d in dims:
                size *= d
            m.shared_declared[key] = Ptr("shared", None, m.shared_top, ctype, dims)
            m.shared_top += (size + 127) // 128 * 128
    return m.shared_declared[key]


def _initialise(m: Machine, cells: Cells, value: Syn, scope: Scope) -> None:
    if value.type in ("initializer_list", "argument_list"):
        flat = _flatten(value)
        if value.type == "argument_list" and len(flat) > 1:
            m.write(cells, 0, calls.construct(m, cells.ctype, [dispatch.evaluate(m, k, scope) for k in flat]))
            return
        for at in range(len(cells.values)):
            item: Value = dispatch.evaluate(m, flat[at], scope) if at < len(flat) else 0
            m.write(cells, at, places.to_type(m, item, cells.ctype))
        return
    result = dispatch.evaluate(m, value, scope)
    if cells.ctype.kind == "float" and not cells.ctype.pointer:
        unsigned.refuse_wrapped(m, value, result, scope)
    if cells.ctype.kind == "auto" and not cells.ctype.pointer:
        kind = "float" if machine.value_kind(result) == "float" else "int"
        cells.ctype = result.ctype if isinstance(result, Ptr) else TYPES[kind]
        m.write(cells, 0, result)
        return
    if cells.dims and isinstance(result, Ptr):
        raise NotUnderstood("copy of an array")
    m.write(cells, 0, places.to_type(m, result, cells.ctype))


def _flatten(value: Syn) -> list[Syn]:
    return [x for kid in value.kids for x in (_flatten(kid) if kid.type == "initializer_list" else [kid])]


def alias(m: Machine, syn: Syn, scope: Scope) -> None:
    kind, name = syn.get("type"), syn.get("name") or syn.get("declarator")
    if kind is not None and name is not None:
        scope.names[name.text] = places.read_type(m, kind, scope)
    return

"""Structs of the file as values: members are variables of their own, methods are executed in place.

A variable of a struct type is a record: one variable (or record) per member. A method runs with the members of its
record in scope, which is all that `this` means for a kernel that builds its objects once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..source import SourceFile
from . import dispatch, persistent, places
from .machine import Machine, Scope, copied
from .syntax import Syn, convert
from .values import Cells, CType, NotUnderstood, Ptr, Record, Value

if TYPE_CHECKING:
    from tree_sitter import Node as TreeNode


@dataclass(eq=False)
class Struct:
    """A struct as declared: its template parameters, the arguments it is specialised for, its members in order."""

    name: str
    template: list[Syn]
    special: list[Syn] | None
    body: list[Syn]
    bases: list[Syn]


@dataclass(eq=False)
class Method:
    """A member function."""

    params: list[Syn]
    body: Syn
    result: Syn | None


@dataclass(eq=False)
class StructType:
    """A struct with its template arguments: `scope` holds them, its types and constants; `fields` its members (name,
    type, extents, default, whether it is a reference).
    """

    ctype: CType
    scope: Scope
    fields: list[tuple[str, CType, tuple[int, ...], Syn | None, bool]] = field(
        default_factory=list[tuple[str, CType, tuple[int, ...], Syn | None, bool]]
    )
    methods: dict[str, list[Method]] = field(default_factory=dict[str, list[Method]])


@dataclass(frozen=True, eq=False)
class Bound:
    """The methods of one name, for the record they are called on (None: static)."""

    type: StructType
    name: str
    record: Record | None


_DECLARED: WeakKeyDictionary[SourceFile, dict[str, list[Struct]]] = WeakKeyDictionary()


def declared(m: Machine) -> dict[str, list[Struct]]:
    """The structs of the file by name, specialisations first."""
    if m.source not in _DECLARED:
        found: dict[str, list[Struct]] = {}
        _collect(m.source.root, m.source.clean, found)
        for header in m.source.headers:
            _collect(header.source.root, header.source.clean, found, header.at)
        for several in found.values():
            several.sort(key=lambda s: s.special is None)
        _DECLARED[m.source] = found
    return _DECLARED[m.source]


def _collect(root: TreeNode, data: bytes, found: dict[str, list[Struct]], at: tuple[int, int] | None = None) -> None:
    for child in root.named_children:
        if child.type in ("namespace_definition", "linkage_specification", "declaration_list"):
            _collect(child, data, found, at)
            continue
        node, template = child, list[Syn]()
        if child.type == "template_declaration":
            listed = child.child_by_field_name("parameters")
            kids = convert(listed, data, at=at).kids if listed is not None else []
            template = [k for k in kids if "parameter_declaration" in k.type]
            node = next((c for c in child.named_children if c.type in ("struct_specifier", "class_specifier")), child)
        if node.type not in ("struct_specifier", "class_specifier"):
            continue
        syn = convert(node, data, at=at)
        name, body = syn.get("name"), syn.get("body")
        if name is None or body is None:
            continue
        arguments = name.get("arguments") if name.type == "template_type" else None
        plain = places.child(name, "name").text if arguments is not None else name.text
        special = None if arguments is None else arguments.kids
        clause = next((k for k in syn.kids if k.type == "base_class_clause"), None)
        bases = [k for k in clause.kids if k.type != "access_specifier"] if clause is not None else []
        found.setdefault(plain, []).append(Struct(plain, template, special, body.kids, bases))


# ---- types


def type_of(m: Machine, syn: Syn, scope: Scope) -> CType | None:
    """The struct type that a type specifier names, or None."""
    from . import calls  # it needs the places, and these the structs

    while syn.type == "qualified_identifier" and (inner := syn.get("name")) is not None:
        syn = inner  # namespaces are ignored
    if syn.type == "template_type":
        name = places.child(syn, "name").text
        if name == "fragment" and name not in declared(m):
            from . import wmma  # it needs the structs

            return wmma.fragment_type(m, syn, scope).ctype
        if name in declared(m):
            return instance(m, name, calls.template_arguments(m, syn.get("arguments"), scope)).ctype
    elif syn.type == "type_identifier" and any(not s.template for s in declared(m).get(syn.text, [])):
        return instance(m, syn.text, []).ctype
    return None


def instance(m: Machine, name: str, arguments: list[Any]) -> StructType:
    """The struct of that name for these template arguments. Raises NotUnderstood."""
    from . import calls  # it needs the places, and these the structs

    shown = ", ".join(a.name + "*" * a.pointer if isinstance(a, CType) else str(a) for a in arguments)
    key = f"{name}<{shown}>" if arguments else name
    if key not in m.struct_types:
        found = next((s for s in declared(m)[name] if _fits(m, s, arguments)), None)
        if found is None:
            raise NotUnderstood(f"no definition of {key}")
        made = StructType(CType(key, 4, "struct"), Scope(m.globals, calls.bind_template(m, found.template, arguments)))
        m.struct_types[key] = made
        for base in found.bases:
            _inherit(m, made, base)
        for item in found.body:
            _read_item(m, made, item)
        size = sum(f[1].size * _count(f[2]) for f in made.fields)
        made.ctype = CType(key, max(1, size), "struct")
    return m.struct_types[key]


def _inherit(m: Machine, made: StructType, base: Syn) -> None:
    """Members, methods and names of a base come first."""
    ctype = type_of(m, base, made.scope)
    if ctype is None or ctype.name not in m.struct_types:
        raise NotUnderstood(f"the base {base.text} of {made.ctype.name}")
    of_base = m.struct_types[ctype.name]
    made.fields.extend(of_base.fields)
    made.methods.update(of_base.methods)
    made.scope.names.update({k: v for k, v in of_base.scope.names.items() if k not in made.scope.names})


def _count(dims: tuple[int, ...]) -> int:
    result = 1
    for d in dims:
        result *= d
    return result


def _fits(m: Machine, struct: Struct, arguments: list[Any]) -> bool:
    from . import calls  # it needs the places, and these the structs

    if struct.special is None:
        return len(arguments) <= len(struct.template)
    wanted = calls.template_arguments(m, _listed(struct.special), m.globals)
    return len(wanted) == len(arguments) and all(a == b for a, b in zip(wanted, arguments, strict=True))


def _listed(kids: list[Syn]) -> Syn:
    syn = Syn("template_argument_list", "", 0, 0)
    syn.kids = kids
    return syn


def _read_item(m: Machine, made: StructType, item: Syn) -> None:
    """One member of a struct's body."""
    if item.type == "alias_declaration":
        kind, name = item.get("type"), item.get("name")
        if kind is not None and name is not None:
            made.scope.names[name.text] = places.read_type(m, kind, made.scope)
    elif item.type == "function_definition":
        _read_method(made, item)
    elif item.type == "field_declaration" and (kind := item.get("type")) is not None:
        ctype = places.read_type(m, kind, made.scope)
        static = is_static(item)
        for declarator in item.lists.get("declarator", []):
            name, dims, pointers, reference = _declarator(m, declarator, made.scope)
            full = CType(ctype.name, ctype.size, ctype.kind, ctype.pointer + pointers, ctype.signed)
            default = item.get("default_value")
            if static and default is not None:
                made.scope.names[name] = places.to_type(m, dispatch.evaluate(m, default, made.scope), full)
            elif not static:
                made.fields.append((name, full, dims, default, reference))


def is_static(item: Syn) -> bool:
    """True for a member that is no part of an object."""
    return any(k.type == "storage_class_specifier" and k.text == "static" for k in item.kids)


def _read_method(made: StructType, item: Syn) -> None:
    declarator, body = item.get("declarator"), item.get("body")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.get("declarator")
    name = declarator.get("declarator") if declarator is not None else None
    listed = declarator.get("parameters") if declarator is not None else None
    if name is None or listed is None or body is None:
        return
    params = [k for k in listed.kids if "parameter_declaration" in k.type]
    made.methods.setdefault(name.text, []).append(Method(params, body, item.get("type")))
    made.scope.names[name.text] = Bound(made, name.text, None)


def _declarator(m: Machine, syn: Syn, scope: Scope) -> tuple[str, tuple[int, ...], int, bool]:
    """(name, extents, pointer levels, whether it is a reference)."""
    dims: list[int] = []
    pointers, reference = 0, False
    while syn.type != "field_identifier":
        if syn.type == "array_declarator":
            size = syn.get("size")
            extent = dispatch.evaluate(m, size, scope) if size is not None else 0
            if not isinstance(extent, int) or extent <= 0:
                raise NotUnderstood("a member array whose size is not constant")
            dims.insert(0, extent)
        pointers += syn.type == "pointer_declarator"
        reference = reference or syn.type == "reference_declarator"
        inner = syn.get("declarator") or next(
            (k for k in reversed(syn.kids) if "declarator" in k.type or k.type == "field_identifier"), None
        )
        if inner is None:
            raise NotUnderstood(f"the member {syn.text}")
        syn = inner
    return syn.text, tuple(dims), pointers, reference


# ---- records


@dataclass(frozen=True, eq=False)
class Records:
    """An array of records, the last extent fastest."""

    items: list[Record]
    dims: tuple[int, ...]


def is_record(ctype: CType) -> bool:
    """True for a struct of the file, not a pointer to one."""
    return ctype.kind == "struct" and not ctype.pointer


def build(m: Machine, ctype: CType, values: Sequence[Value], name: str, start: int) -> Record:
    """A record whose first members have these values, the others their defaults. Raises NotUnderstood."""
    if ctype.name not in m.struct_types:
        raise NotUnderstood(f"the members of {ctype.name}")
    made = m.struct_types[ctype.name]
    if len(values) > len(made.fields):
        raise NotUnderstood(f"{len(values)} values for the {len(made.fields)} members of {ctype.name}")
    record = Record(ctype, {})
    inside = Scope(made.scope, record.fields)
    for at, (member, kind, dims, default, reference) in enumerate(made.fields):
        value = values[at] if at < len(values) else None
        if value is None and default is not None:
            value = dispatch.evaluate(m, default, inside)
        if isinstance(value, Record):
            record.fields[member] = value if reference else copied(m, value)
        elif is_record(kind):
            record.fields[member] = build(m, kind, (), member, start)
        elif reference:
            raise NotUnderstood(f"the reference {member} to something that is no struct")
        else:
            cells = m.new_cells(member, kind, dims, start)
            record.fields[member] = cells
            if value is not None and not dims:
                cells.values[0] = places.to_type(m, value, kind)
            elif value is not None:
                raise NotUnderstood(f"a start value of the array {member}")
    m.deep = m.deep or bool(made.methods)
    return record


def unknown(m: Machine, ctype: CType) -> Record:
    """A record of whose members nothing is known."""
    record = build(m, ctype, (), "", 0) if not _has_references(m, ctype) else Record(ctype, {})
    for member in record.fields.values():
        if isinstance(member, Cells):
            member.values[:] = [m.store.fresh("unknown", (), None, "int", True) for _ in member.values]
    return record


def _has_references(m: Machine, ctype: CType) -> bool:
    return ctype.name not in m.struct_types or any(f[4] for f in m.struct_types[ctype.name].fields)


def assign(m: Machine, target: Record, value: Record) -> None:
    """``target = value``."""
    for name, member in value.fields.items():
        own = target.fields[name]
        if isinstance(own, Record) and isinstance(member, Record):
            assign(m, own, member)
        elif isinstance(own, Cells) and isinstance(member, Cells):
            for at, part in enumerate(list(member.values)):
                m.write(own, at, part)


def choose(m: Machine, condition: Value, a: Record, b: Record) -> Record:
    """``condition ? a : b``, member by member."""
    result = copied(m, a)
    for name, member in result.fields.items():
        x, y = a.fields[name], b.fields[name]
        if isinstance(x, Record) and isinstance(y, Record):
            result.fields[name] = choose(m, condition, x, y)
        elif isinstance(member, Cells) and isinstance(x, Cells) and isinstance(y, Cells):
            member.values[:] = [m.select(condition, p, q) for p, q in zip(x.values, y.values, strict=True)]
    return result


# ---- members


def record_at(m: Machine, syn: Syn, scope: Scope) -> Record | None:
    """The record that an expression names, or None."""
    while syn.type == "parenthesized_expression" and syn.kids:
        syn = syn.kids[-1]
    if syn.type in ("identifier", "this"):
        found = scope.find(syn.text)
        return found if isinstance(found, Record) else None
    if syn.type == "field_expression":
        member = member_at(m, syn, scope)
        return member if isinstance(member, Record) else None
    if syn.type == "subscript_expression":
        found = _of_array(m, syn, scope)
        if isinstance(found, Record):
            return found
    pointer = pointer_at(m, syn, scope)
    return _behind(m, pointer) if pointer is not None else None


def _of_array(m: Machine, syn: Syn, scope: Scope) -> Record | Records | None:
    """The record (or the part of an array of records) that ``array[n]`` names. Raises NotUnderstood."""
    argument = places.child(syn, "argument")
    found: Any = scope.find(argument.text) if argument.type == "identifier" else None
    if argument.type == "subscript_expression":
        found = _of_array(m, argument, scope)
    if not isinstance(found, Records):
        return None
    index = dispatch.evaluate(m, places.child(syn, "indices").kids[0], scope)
    if not isinstance(index, int) or not 0 <= index < found.dims[0]:
        raise NotUnderstood(f"{syn.text}, whose index depends on the thread or lies outside")
    size = len(found.items) // found.dims[0]
    part = found.items[index * size : (index + 1) * size]
    return part[0] if len(found.dims) == 1 else Records(part, found.dims[1:])


def pointer_at(m: Machine, syn: Syn, scope: Scope) -> Ptr | None:
    """The address of the struct in shared memory that ``*p`` or ``p[n]`` names, or None."""
    if syn.type == "pointer_expression" and syn.op == "*":
        pointer = dispatch.evaluate(m, places.child(syn, "argument"), scope)
    elif syn.type == "subscript_expression" and len(places.child(syn, "indices").kids) == 1:
        argument = places.child(syn, "argument")
        found = scope.find(argument.text) if argument.type == "identifier" else None
        pointer = found.values[0] if isinstance(found, Cells) and not found.dims else None
        if isinstance(pointer, Ptr) and _to_record(pointer):
            index = dispatch.evaluate(m, places.child(syn, "indices").kids[0], scope)
            pointer = places.element(m, pointer, index)
    else:
        return None
    return pointer if isinstance(pointer, Ptr) and _to_record(pointer) else None


def _to_record(pointer: Ptr) -> bool:
    ctype = pointer.ctype if not pointer.ctype.pointer else pointer.ctype.pointee()
    return pointer.space == "shared" and is_record(ctype)


def _object(m: Machine, syn: Syn, scope: Scope) -> Record | None:
    """The record before the dot, or the one that the pointer before the arrow points to."""
    argument = places.child(syn, "argument")
    record = record_at(m, argument, scope)
    if record is None and syn.text[len(argument.text) :].lstrip().startswith("->"):
        pointer = dispatch.evaluate(m, argument, scope)
        return _behind(m, pointer) if isinstance(pointer, Ptr) else None
    return record


def _behind(m: Machine, pointer: Ptr) -> Record | None:
    return persistent.received(m, pointer) if _to_record(pointer) else None


def member_at(m: Machine, syn: Syn, scope: Scope) -> Cells | Record | None:
    """The member that ``record.name`` names, or None when there is no record."""
    record = _object(m, syn, scope)
    if record is None:
        return None
    name = places.child(syn, "field").text
    if name not in record.fields and record.ctype.name in m.struct_types:
        constant = m.struct_types[record.ctype.name].scope.names.get(name)
        return constant if isinstance(constant, Cells) else None
    return record.fields.get(name)


def static_member(m: Machine, syn: Syn, scope: Scope) -> Any:
    """What ``Struct::name`` names, or None when the part before is no struct of the file."""
    before, name = syn.get("scope"), syn.get("name")
    if before is None or name is None:
        return None
    ctype = scope.find(before.text) if before.type != "template_type" else type_of(m, before, scope)
    if not isinstance(ctype, CType) and before.text in declared(m):
        ctype = instance(m, before.text, []).ctype
    if not isinstance(ctype, CType) or not is_record(ctype) or ctype.name not in m.struct_types:
        return None  # also a struct that is declared and never defined
    return m.struct_types[ctype.name].scope.names.get(name.text)


# ---- methods


def method_at(m: Machine, callee: Syn, scope: Scope) -> Bound | None:
    """The method that ``record.name`` of a call names, or None."""
    record = _object(m, callee, scope)
    if record is None:
        return None
    made = m.struct_types[record.ctype.name]
    name = places.child(callee, "field").text
    return Bound(made, name, record) if name in made.methods else None


def call(m: Machine, bound: Bound, arguments: Syn, scope: Scope, syn: Syn) -> Value:
    """Execute a method."""
    from . import calls  # it needs the places, and these the structs

    fitting = [x for x in bound.type.methods[bound.name] if len(x.params) >= len(arguments.kids)]
    if len(fitting) != 1:
        raise NotUnderstood(f"no {bound.name} with {len(arguments.kids)} parameters, or several")
    outer = bound.type.scope
    if bound.record is not None:
        names: dict[str, Any] = {**bound.record.fields, "this": bound.record}
        names |= {name: Bound(bound.type, name, bound.record) for name in bound.type.methods}
        outer = Scope(outer, names)
    return calls.run_method(m, fitting[0].params, fitting[0].body, fitting[0].result, arguments, scope, outer, syn)

"""The parameters of a kernel, those that come as members of a struct among them.

Every number and pointer that the caller hands over has a number of its own: its place in the signature, or from
`_MEMBERS` on for a member of a struct (``params.q_ptr``), in the order of the declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import places, structs
from .ctypes_table import stars
from .machine import Definition, Machine, Scope
from .values import Cells, CType, NotUnderstood, Ptr, Record, Value

_MEMBERS = 100  # what a text does not say of tensor maps is numbered from 1000 on (map_unknowns)
_MOST_MEMBERS = 900
_KINDS = {"bool": "bool", "float": "float", "half": "float", "bf16": "float", "int": "int"}
RESERVED = frozenset(["i", "j", "s", "b", "h", "hk", "q0", "kv0", "qt", "lane", "t", "m", "l", "bx", "by", "bz"]) | {
    "Sq",
    "Sk",
    "H",
    "Hkv",
    "B",
    "D",
    "n_tiles",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number or pointer: how the kernel's body spells it, its type as written, its place in the signature."""

    number: int
    name: str
    ctype: str
    position: int
    span: tuple[int, int]

    @property
    def shown(self) -> str:
        """Its name in CuIR: what means something there gets a prefix, ``p.strides[0]`` is ``p.strides.0``."""
        name = self.name.replace("[", ".").rstrip("]")
        return f"p_{name}" if name in RESERVED else name


def names(parameters: Iterable[Parameter]) -> dict[int, str]:
    """Names in CuIR, by number."""
    return {p.number: p.shown for p in parameters}


def bind(m: Machine, definition: Definition, template: Mapping[str, Any]) -> Scope:
    """The scope of a kernel's body; fills `m.parameters`."""
    from . import calls  # it needs the places, and these the structs

    scope = Scope(m.globals, dict(template))
    m.parameters = []
    for at, param in enumerate(definition.params):
        name = calls.parameter_name(param)
        kind, declarator = param.get("type"), param.get("declarator")
        ctype = places.read_type(m, kind, scope) if kind is not None else CType("?", 4, "other")
        # A struct of nothing but arrays is opaque to the kernel: a tensor map.
        levels = stars(declarator) + (1 if declarator is not None and declarator.type == "array_declarator" else 0)
        ctype = CType(ctype.name, ctype.size, ctype.kind, ctype.pointer + levels, ctype.signed)
        span = (param.start, param.end)
        if structs.is_record(ctype) and any(not f[2] for f in m.struct_types[ctype.name].fields):
            scope.names[name] = _record(m, structs.build(m, ctype, (), name, param.start), name, at, span)
            continue
        text = param.text.rpartition(name)[0].strip() if name else param.text
        m.parameters.append(Parameter(at, name, " ".join(text.split()), at, span))
        cells = m.new_cells(name, ctype, (), param.start)
        cells.values[0] = _value(m, at, ctype)
        scope.names[name] = cells
    return scope


def _value(m: Machine, number: int, ctype: CType) -> Value:
    if ctype.pointer:
        m.param_sizes[number] = max(1, ctype.size)
        return Ptr("global", number, 0, ctype.pointee())
    return m.store.node("param", (), number, _KINDS.get(ctype.kind, "other"))


def _record(m: Machine, record: Record, prefix: str, position: int, span: tuple[int, int]) -> Record:
    """Every member of a struct that the caller fills is a parameter."""
    for name, member in record.fields.items():
        path = f"{prefix}.{name}"
        if isinstance(member, Record):
            _record(m, member, path, position, span)
        else:
            _members(m, member, path, position, span)
    return record


def _members(m: Machine, member: Cells, path: str, position: int, span: tuple[int, int]) -> None:
    for at in range(len(member.values)):
        number = _MEMBERS + len(m.parameters)
        if number >= _MOST_MEMBERS or len(member.dims) > 1:
            raise NotUnderstood(f"the parameter {path}, of a struct of very many members")
        text = f"{path}[{at}]" if member.dims else path
        shown = f"{member.ctype.name}{'*' * member.ctype.pointer}"
        m.parameters.append(Parameter(number, text, shown, position, span))
        member.values[at] = _value(m, number, member.ctype)

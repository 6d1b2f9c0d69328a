"""Reading a contract.toml, field by field: what is wrong in it is named (CB620, CB621). Its fields: `contract`."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ..diagnostics import Diagnostic, Span, make
from .contract import DTYPE_BYTES, EMPTY_ROWS, LSE_UNITS, MASKS, Contract, Instance, WidthRule
from .parameters import (
    IS_FLOAT,
    LAYOUTS,
    POINTER_DTYPES,
    SCALAR_TYPES,
    SCRATCH_ROLES,
    STRUCT,
    Field,
    Parameter,
    is_role,
)
from .size_text import SIZES, evaluate_size, is_condition
from .tensor_maps import SWIZZLES, TENSOR_MAP, BoxShape

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

_POINTER_ROLES = ("q", "k", "v", "o", "lse", *SCRATCH_ROLES)


class _Bad(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


def _get(table: Mapping[str, Any], where: str, key: str, kind: type | tuple[type, ...], default: object = None) -> Any:
    field = f"{where}.{key}" if where else key
    if key not in table:
        if default is not None:
            return default
        raise _Bad(field, "it is missing")
    value = table[key]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _Bad(field, f"expected {' or '.join(k.__name__ for k in kinds)}, found {type(value).__name__}")
    return value


def _items(table: Mapping[str, Any], where: str, key: str, kind: type, count: int | None = None) -> tuple[Any, ...]:
    values = cast("list[object]", _get(table, where, key, list))
    if any(not isinstance(v, kind) or isinstance(v, bool) for v in values):
        raise _Bad(f"{where}.{key}", f"expected a list of {kind.__name__}")
    if not values or (count is not None and len(values) != count):
        raise _Bad(f"{where}.{key}", f"expected {count or 'at least one'} entries, found {len(values)}")
    return tuple(values)


def _one_of(value: str, allowed: tuple[str, ...], field: str) -> str:
    if value not in allowed:
        raise _Bad(field, f"{value!r} is not one of {', '.join(allowed)}")
    return value


def _size_text(value: object, field: str) -> str:
    text = str(value)
    try:
        evaluate_size(text, dict.fromkeys(SIZES, 1))
    except (ValueError, ZeroDivisionError) as error:
        raise _Bad(field, str(error)) from error
    return text


def _parameter(row: Mapping[str, Any], where: str, inside: bool = False) -> Parameter:
    role = _get(row, where, "role", str)
    kind = _get(row, where, "type", str)
    name = _get(row, where, "name", str)
    if not is_role(role):
        raise _Bad(f"{where}.role", f"{role!r} is not a role")
    kinds = (*POINTER_DTYPES, *SCALAR_TYPES, TENSOR_MAP, *(() if inside else (STRUCT,)))
    if kind not in kinds:
        raise _Bad(f"{where}.type", f"{kind!r} is not one of {', '.join(kinds)}")
    if (kind == STRUCT) != (role == STRUCT):
        raise _Bad(f"{where}.role", f"a {STRUCT} has the role {STRUCT}, and its fields have their own")
    if kind == STRUCT:
        return _struct(row, where, name)
    if kind == TENSOR_MAP:
        return Parameter(name, role, kind, _box(row, where, role))
    pointer_role = role in _POINTER_ROLES or role.startswith("operand:")
    if pointer_role != (kind in POINTER_DTYPES):
        raise _Bad(f"{where}.type", f"role {role} is {'a pointer' if pointer_role else 'a number'}, {kind} is not")
    elements = _get(row, where, "elements", (int, str)) if role in SCRATCH_ROLES else ""
    elements = _size_text(elements, f"{where}.elements") if role in SCRATCH_ROLES else ""
    optional = _get(row, where, "optional", bool, False)
    if optional and not role.startswith(("operand:", "scalar:", "stride:")):
        raise _Bad(f"{where}.optional", f"every launch has {role}")
    value, fill, layout = _value(row, where, role), _fill(row, where, role), _layout(row, where, role)
    return Parameter(name, role, kind, None, elements, optional, value, fill, layout)


def _struct(row: Mapping[str, Any], where: str, name: str) -> Parameter:
    size = _get(row, where, "bytes", int)
    fields: list[Field] = []
    end = 0
    for n, item in enumerate(_items(row, where, "fields", dict)):
        place = f"{where}.fields[{n}]"
        offset = _get(item, place, "offset", int)
        leaf = _parameter(item, place, inside=True)
        if not end <= offset <= size - leaf.width:
            raise _Bad(f"{place}.offset", f"{leaf.width} bytes at {offset} do not lie behind {end} and before {size}")
        end = offset + leaf.width
        fields.append(Field(offset, leaf))
    return Parameter(name, STRUCT, STRUCT, fields=tuple(fields), size=size)


def _value(row: Mapping[str, Any], where: str, role: str) -> str:
    if role != "value":
        return ""
    text = str(_get(row, where, "value", (int, float, str)))
    return text if IS_FLOAT.match(text) else _size_text(text, f"{where}.value")


def _fill(row: Mapping[str, Any], where: str, role: str) -> float | None:
    if "fill" not in row:
        return None
    if role not in ("o", "lse", "scratch"):
        raise _Bad(f"{where}.fill", f"{role} is not memory that is filled before a launch")
    value = _get(row, where, "fill", (int, float, str))
    try:
        number = float(value)
    except ValueError as error:
        raise _Bad(f"{where}.fill", f"{value!r} is not a number") from error
    if math.isnan(number):
        raise _Bad(f"{where}.fill", "memory of any contents needs no fill")
    return number


def _layout(row: Mapping[str, Any], where: str, role: str) -> str:
    layout = _get(row, where, "layout", str, "bhsd")
    if "layout" in row and role not in ("q", "k", "v", "o"):
        raise _Bad(f"{where}.layout", f"{role} has no layout")
    return _one_of(layout, LAYOUTS, f"{where}.layout")


def _box(row: Mapping[str, Any], where: str, role: str) -> BoxShape:
    if role not in ("q", "k", "v"):
        raise _Bad(f"{where}.role", f"a {TENSOR_MAP} describes q, k or v, not {role}")
    columns, rows = (_size_text(text, f"{where}.box") for text in _items(row, where, "box", str, 2))
    swizzle = _get(row, where, "swizzle", int)
    if swizzle not in SWIZZLES:
        raise _Bad(f"{where}.swizzle", f"{swizzle} is not one of {', '.join(map(str, SWIZZLES))}")
    return BoxShape(columns, rows, swizzle)


def _instance(row: Mapping[str, Any], index: int) -> Instance:
    where = f"instances[{index}]"
    dtype = _one_of(_get(row, where, "dtype", str), tuple(DTYPE_BYTES), f"{where}.dtype")
    head_dim = _get(row, where, "head_dim", int)
    value_dim = _get(row, where, "value_dim", int, head_dim)
    return Instance(_get(row, where, "expression", str), dtype, head_dim, value_dim, _get(row, where, "rows", int, 0))


def _rule(table: Mapping[str, Any]) -> WidthRule | None:
    if "widths" not in table:
        return None
    row, where = _get(table, "", "widths", dict), "widths"
    d, dv = (_get(row, where, f"{name}_multiple", int) for name in ("d", "dv"))
    if min(d, dv) < 1:
        raise _Bad("widths", "a width is a multiple of 1 at least")
    rule = WidthRule(_get(row, where, "expression", str), d, dv, _get(row, where, "largest", int))
    try:
        rule.instance("float32", (1, 1))
    except (KeyError, IndexError, ValueError) as error:
        raise _Bad(f"{where}.expression", "only {T}, {D} and {Dv} are known in it") from error
    return rule


def _requires(limits: Mapping[str, Any]) -> tuple[str, ...]:
    if "requires" not in limits:
        return ()
    found = _items(limits, "limits", "requires", str)
    wrong = next((text for text in found if not is_condition(text)), None)
    if wrong is not None:
        raise _Bad("limits.requires", f"{wrong!r} is not two size expressions with ==, <= or < between them")
    return found


def _build(table: Mapping[str, Any], path: str) -> Contract:
    if _get(table, "", "schema", int) != 1:
        raise _Bad("schema", "only schema 1 is known")
    launch, tiles = _get(table, "", "launch", dict), _get(table, "", "tiles", dict)
    semantics, limits = _get(table, "", "semantics", dict), _get(table, "", "limits", dict)
    parameters = tuple(
        _parameter(row, f"parameters[{i}]") for i, row in enumerate(_items(table, "", "parameters", dict))
    )
    for needed in ("q", "k", "v", "o"):
        if sum(leaf.role == needed for p in parameters for leaf in p.leaves) != 1:
            raise _Bad("parameters", f"exactly one parameter must have the role {needed}")
    grid = tuple(_size_text(text, "launch.grid") for text in _items(launch, "launch", "grid", str, 3))
    masks = _items(semantics, "semantics", "masks", str)
    return Contract(
        path=path,
        name=_get(table, "", "name", str),
        source=_get(table, "", "source", str),
        summary=_get(table, "", "summary", str, ""),
        parameters=parameters,
        grid=cast("tuple[str, str, str]", grid),
        block=cast("tuple[int, int, int]", _items(launch, "launch", "block", int, 3)),
        dynamic_shared_bytes=_size_text(
            _get(launch, "launch", "dynamic_shared_bytes", (str, int)), "launch.dynamic_shared_bytes"
        ),
        br=_get(tiles, "tiles", "br", int),
        bc=_get(tiles, "tiles", "bc", int),
        stages=_get(tiles, "tiles", "stages", int, 1),
        masks=tuple(_one_of(mask, MASKS, "semantics.masks") for mask in masks),
        gqa=_get(semantics, "semantics", "gqa", bool),
        scale=_get(semantics, "semantics", "scale", str, ""),
        lse=_one_of(_get(semantics, "semantics", "lse", str), LSE_UNITS, "semantics.lse"),
        empty_rows=_one_of(_get(semantics, "semantics", "empty_rows", str), EMPTY_ROWS, "semantics.empty_rows"),
        archs=_items(limits, "limits", "archs", str),
        alignment_bytes=_get(limits, "limits", "alignment_bytes", int),
        scale_positive=_get(limits, "limits", "scale_positive", bool),
        grid_max=cast("tuple[int, int, int]", _items(limits, "limits", "grid_max", int, 3)),
        instances=tuple(_instance(row, i) for i, row in enumerate(_items(table, "", "instances", dict))),
        rule=_rule(table),
        adaptable=_get(table, "", "adaptable", bool, True),
        persistent=_get(launch, "launch", "persistent", bool, False),
        requires=_requires(limits),
    )


def parse_contract(text: str, path: str) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """Read the text of a contract.toml. Never raises: a bad contract is None and a diagnostic (CB620, CB621)."""
    start = Span(path, 0, 0, 0, 0, 0, 0)
    try:
        return _build(tomllib.loads(text), path), ()
    except tomllib.TOMLDecodeError as error:
        return None, (make("CB620", start, reason=str(error)),)
    except _Bad as bad:
        where = "cubridge_engine/compile/contract.py"
        return None, (make("CB621", start, field=bad.field, reason=bad.reason, where=where),)


def read_contract(path: Path) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """Read a contract.toml file; see `parse_contract`."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
        return None, (make("CB620", Span(str(path), 0, 0, 0, 0, 0, 0), reason=reason),)
    return parse_contract(text, str(path))


def contract_beside(kernel: Path) -> Path | None:
    """The contract.toml in the folder of a kernel file whose `source` it is, if there is one."""
    candidate = kernel.parent / "contract.toml"
    if not candidate.is_file():
        return None
    contract, _ = read_contract(candidate)
    return candidate if contract is None or contract.source_path.name == kernel.name else None

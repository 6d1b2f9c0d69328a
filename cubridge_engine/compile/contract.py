"""contract.toml: how to compile and call a kernel, and what it promises.

Fields of the file (schema 1)::

    schema = 1
    name, source, summary          texts; `source` is relative to the contract
    adaptable    false for a kernel that lifting does not read: it is not offered to start an adaptation from
    parameters = [{name, role, type}, ...]   every argument of the kernel, by position
    [launch]     grid (3 expressions), block (3 integers), dynamic_shared_bytes (expression or integer), persistent
                 (true where CTAs take work items until none is left, so that any number of them along x is right)
    [tiles]      br, bc, stages    query rows and keys per tile, stages of the K/V ring
    [semantics]  masks (full | causal_bottom_right | causal_top_left), gqa, scale, lse (natural | log2 | none),
                 empty_rows (zero | nan | undefined)
    [limits]     archs, alignment_bytes, scale_positive, grid_max
    [widths]     optional, for a template over the widths: expression (the C++ name with {T}, {D} and {Dv} for the
                 template arguments), d_multiple, dv_multiple, largest: what D and Dv may be besides the instances
    [[instances]]  expression (a C++ name expression, or a plain name), dtype, head_dim (D, the width of Q and K),
                 value_dim (Dv, the width of V and O; head_dim where it is not given), rows (for kernels that pack
                 query heads: the most rows H / Hkv * Sq that it is for; any number where it is not given)

Types: ``T*`` (pointer to the dtype of the instance), ``float*``, ``half*``, ``bfloat16*``, ``int32*``, ``int64*``,
``bool*``, ``int32``, ``int64``, ``float32``, and ``tensor_map`` with ``box = [columns, rows]`` and ``swizzle`` for a
TMA descriptor of q, k or v (compile/tensor_maps.py). Roles: compile/parameters.py. A ``workspace`` or ``scratch`` names
its number of ``elements`` (an expression). ``optional = true`` on an operand, a scalar or a stride of an operand: null,
or 0, where the caller gives none.
Expressions use the sizes B, H, Hkv, Sq, Sk, D, Dv and element_bytes, integers, + - * // % and cdiv, min, max.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ..diagnostics import Diagnostic, Span, make
from .parameters import POINTER_DTYPES, SCALAR_TYPES, SCRATCH_ROLES, Parameter, is_role
from .size_text import SIZES, cdiv, evaluate_size
from .tensor_maps import SWIZZLES, TENSOR_MAP, BoxShape

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ELEMENT_NAMES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}  # in C++
MASKS = ("full", "causal_bottom_right", "causal_top_left")
LSE_UNITS = ("natural", "log2", "none")
EMPTY_ROWS = ("zero", "nan", "undefined")
Widths = tuple[int, int]  # (D, Dv)


@dataclass(frozen=True, slots=True)
class Instance:
    """One compiled form of the kernel: a name expression for NVRTC, the dtype of T, the widths, and the most rows
    H / Hkv * Sq that it is for (0: any number).
    """

    expression: str
    dtype: str
    head_dim: int
    value_dim: int
    rows: int = 0

    @property
    def widths(self) -> Widths:
        """(D, Dv)."""
        return self.head_dim, self.value_dim


@dataclass(frozen=True, slots=True)
class WidthRule:
    """What D and Dv of a template may be besides the instances: multiples, up to `largest`.

    `expression` is the C++ name with ``{T}``, ``{D}`` and ``{Dv}`` in the place of template arguments.
    """

    expression: str
    d_multiple: int
    dv_multiple: int
    largest: int

    def at_least(self, widths: Widths) -> Widths | None:
        """The smallest widths that hold these; None where they are too large."""
        found = (
            cdiv(widths[0], self.d_multiple) * self.d_multiple,
            cdiv(widths[1], self.dv_multiple) * self.dv_multiple,
        )
        return found if max(found) <= self.largest else None

    def instance(self, dtype: str, widths: Widths) -> Instance:
        """The kernel at these widths."""
        d, dv = widths
        return Instance(self.expression.format(T=ELEMENT_NAMES[dtype], D=d, Dv=dv), dtype, d, dv)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Grid and block (x, y, z), and dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract.toml, checked. See the module's text for the fields."""

    path: str
    name: str
    source: str
    summary: str
    parameters: tuple[Parameter, ...]
    grid: tuple[str, str, str]
    block: tuple[int, int, int]
    dynamic_shared_bytes: str
    br: int
    bc: int
    stages: int
    masks: tuple[str, ...]
    gqa: bool
    scale: str
    lse: str
    empty_rows: str
    archs: tuple[str, ...]
    alignment_bytes: int
    scale_positive: bool
    grid_max: tuple[int, int, int]
    instances: tuple[Instance, ...]
    rule: WidthRule | None = None
    adaptable: bool = True
    persistent: bool = False

    @property
    def source_path(self) -> Path:
        """The kernel's file."""
        return Path(self.path).parent / self.source

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its instances, in order, each once."""
        return tuple(dict.fromkeys(instance.dtype for instance in self.instances))

    @property
    def head_dims(self) -> tuple[int, ...]:
        """The head dimensions of its instances, in order, each once."""
        return tuple(dict.fromkeys(instance.head_dim for instance in self.instances))

    @property
    def widths(self) -> tuple[Widths, ...]:
        """(D, Dv) of its instances, in order, each once."""
        return tuple(dict.fromkeys(instance.widths for instance in self.instances))

    @property
    def largest(self) -> int:
        """The largest head dimension."""
        return max((*self.head_dims, self.rule.largest if self.rule is not None else 0))

    def candidates(self, widths: Widths) -> tuple[Widths, ...]:
        """Widths of the kernel that hold these, the least wasteful first: those of an instance, and by the rule."""
        ruled = self.rule.at_least(widths) if self.rule is not None else None
        listed = [w for w in self.widths if w[0] >= widths[0] and w[1] >= widths[1]]
        return tuple(sorted({*listed, *([ruled] if ruled is not None else [])}, key=lambda w: (sum(w), w)))

    def for_widths(self, widths: Widths) -> Contract:
        """The contract for a spec of these widths: all instances with one width for all where that is what it has and
        what is listed, else those of these widths, made by the rule where none is listed.
        """
        alike = tuple(i for i in self.instances if i.head_dim == i.value_dim)
        own = tuple(i for i in self.instances if i.widths == widths)
        if own and widths[0] == widths[1]:
            return replace(self, instances=alike)
        if not own and self.rule is not None:
            own = tuple(self.rule.instance(dtype, widths) for dtype in self.dtypes)
        return replace(self, instances=own)

    @property
    def expressions(self) -> tuple[str, ...]:
        """The name expressions of all instances, for ``compile_source``."""
        return tuple(instance.expression for instance in self.instances)

    def instance(self, dtype: str, head_dim: int, value_dim: int | None = None, rows: int = 1) -> Instance | None:
        """The first instance for a dtype (``float16``, ``bfloat16``, ``float32``), its widths (None: as the head
        dimension) and H / Hkv * Sq rows.
        """
        widths = (head_dim, head_dim if value_dim is None else value_dim)
        fitting = (i for i in self.instances if i.dtype == dtype and i.widths == widths)
        return next((i for i in fitting if not i.rows or rows <= i.rows), None)

    def missing_instance(self, dtype: str, head_dim: int) -> Diagnostic:
        """The diagnostic for a dtype and head dimension that no instance has."""
        available = ", ".join(dict.fromkeys(f"{i.dtype} D={i.head_dim}" for i in self.instances))
        return make("CB622", None, dtype=dtype, head_dim=head_dim, available=available)

    def launch(self, sizes: Mapping[str, int], dtype: str) -> LaunchShape:
        """Grid, block and shared bytes for `sizes` (B, H, Hkv, Sq, Sk, D, Dv if other). KeyError: one is missing."""
        values = {**_widths(sizes), "element_bytes": DTYPE_BYTES[dtype]}
        x, y, z = (evaluate_size(text, values) for text in self.grid)
        return LaunchShape((x, y, z), self.block, evaluate_size(self.dynamic_shared_bytes, values))

    def scratch(self, sizes: Mapping[str, int]) -> dict[Parameter, int]:
        """The scratch parameters and their numbers of elements. Raises KeyError when a size they need is missing."""
        return {p: evaluate_size(p.elements, _widths(sizes)) for p in self.parameters if p.is_scratch}

    def dynamic_shared(self, instance: Instance) -> int:
        """Dynamic shared bytes of `instance`, whatever the lengths. Raises KeyError when they depend on a length."""
        return self.shared_at(instance.widths, instance.dtype)

    def shared_at(self, widths: Widths, dtype: str) -> int:
        """Dynamic shared bytes at these widths. Raises KeyError when they depend on a length."""
        sizes = {"D": widths[0], "Dv": widths[1], "element_bytes": DTYPE_BYTES[dtype]}
        return evaluate_size(self.dynamic_shared_bytes, sizes)

    def with_parameters(self, extra: tuple[Parameter, ...]) -> Contract:
        """The contract of an adapted kernel, whose edit appended `extra` to the parameter list."""
        return replace(self, parameters=(*self.parameters, *extra))


def _widths(sizes: Mapping[str, int]) -> dict[str, int]:
    """`sizes`, with Dv."""
    return {**({"Dv": sizes["D"]} if "D" in sizes else {}), **sizes}


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


def _parameter(row: Mapping[str, Any], index: int) -> Parameter:
    where = f"parameters[{index}]"
    role = _get(row, where, "role", str)
    kind = _get(row, where, "type", str)
    if not is_role(role):
        raise _Bad(f"{where}.role", f"{role!r} is not a role")
    if kind not in (*POINTER_DTYPES, *SCALAR_TYPES, TENSOR_MAP):
        raise _Bad(f"{where}.type", f"{kind!r} is not one of {', '.join((*POINTER_DTYPES, *SCALAR_TYPES, TENSOR_MAP))}")
    if kind == TENSOR_MAP:
        return Parameter(_get(row, where, "name", str), role, kind, _box(row, where, role))
    pointer_role = role in ("q", "k", "v", "o", "lse", *SCRATCH_ROLES) or role.startswith("operand:")
    if pointer_role != (kind in POINTER_DTYPES):
        raise _Bad(f"{where}.type", f"role {role} is {'a pointer' if pointer_role else 'a number'}, {kind} is not")
    elements = _get(row, where, "elements", (int, str)) if role in SCRATCH_ROLES else ""
    elements = _size_text(elements, f"{where}.elements") if role in SCRATCH_ROLES else ""
    optional = _get(row, where, "optional", bool, False)
    if optional and not role.startswith(("operand:", "scalar:", "stride:")):
        raise _Bad(f"{where}.optional", f"every launch has {role}")
    return Parameter(_get(row, where, "name", str), role, kind, None, elements, optional)


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


def _build(table: Mapping[str, Any], path: str) -> Contract:
    if _get(table, "", "schema", int) != 1:
        raise _Bad("schema", "only schema 1 is known")
    launch, tiles = _get(table, "", "launch", dict), _get(table, "", "tiles", dict)
    semantics, limits = _get(table, "", "semantics", dict), _get(table, "", "limits", dict)
    parameters = tuple(_parameter(row, i) for i, row in enumerate(_items(table, "", "parameters", dict)))
    for needed in ("q", "k", "v", "o"):
        if sum(p.role == needed for p in parameters) != 1:
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

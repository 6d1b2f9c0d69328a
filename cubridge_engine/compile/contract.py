"""contract.toml: how to compile and call a kernel, and what it promises.

Fields of the file (schema 1)::

    schema = 1
    name, source, summary          texts; `source` is relative to the contract
    parameters = [{name, role, type}, ...]   every argument of the kernel, by position
    [launch]     grid (3 expressions), block (3 integers), dynamic_shared_bytes (expression or integer)
    [tiles]      br, bc, stages    query rows and keys per tile, stages of the K/V ring
    [semantics]  masks (full | causal_bottom_right | causal_top_left), gqa, scale, lse (natural | log2 | none),
                 empty_rows (zero | nan | undefined)
    [limits]     archs, alignment_bytes, scale_positive, grid_max
    [[instances]]  expression (a C++ name expression, or a plain name), dtype, head_dim

Types: ``T*`` (pointer to the dtype of the instance), ``float*``, ``half*``, ``bfloat16*``, ``int32*``, ``int64*``,
``bool*``, ``int32``, ``int64``, ``float32``.
Expressions use the sizes B, H, Hkv, Sq, Sk, D and element_bytes, integers, + - * // % and cdiv, min, max.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ..diagnostics import Diagnostic, Span, make

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

# Roles with a fixed name: what the argument is. The vocabulary is that of CuIR's kernel parameters.
ROLES = {
    "q": "pointer to Q [B, H, Sq, D]",
    "k": "pointer to K [B, Hkv, Sk, D]",
    "v": "pointer to V [B, Hkv, Sk, D]",
    "o": "pointer to O [B, H, Sq, D], written",
    "lse": "pointer to LSE [B, H, Sq], fp32, written",
    "B": "batch size",
    "H": "query heads",
    "Hkv": "key/value heads",
    "Sq": "query length",
    "Sk": "key length",
    "D": "head dimension",
    "group": "H / Hkv",
    "scale": "factor of the scores, natural units",
    "scale_log2": "scale * log2(e), for kernels that use exp2",
    "flag:causal": "1 to mask bottom-right causally, else 0",
}
# Roles with a parameter, by their prefix.
PREFIX_ROLES = {
    "operand:": "pointer to an extra tensor of the spec, bound by that name (bias, slopes, sinks, ...)",
    "scalar:": "an extra number, bound by that name (softcap, window, ...)",
    "stride:": "elements from one index to the next: stride:<q|k|v|o|operand name>.<b|h|row|col>",
}
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
POINTER_DTYPES = {
    "T*": None,
    "float*": "float32",
    "half*": "float16",
    "bfloat16*": "bfloat16",
    "int32*": "int32",
    "int64*": "int64",
    "bool*": "bool",
}
SCALAR_TYPES = ("int32", "int64", "float32")
MASKS = ("full", "causal_bottom_right", "causal_top_left")
LSE_UNITS = ("natural", "log2", "none")
EMPTY_ROWS = ("zero", "nan", "undefined")
_SIZES = ("B", "H", "Hkv", "Sq", "Sk", "D", "element_bytes")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel argument: its name in the source, its role and its type."""

    name: str
    role: str
    type: str

    @property
    def is_pointer(self) -> bool:
        """True for a device pointer."""
        return self.type in POINTER_DTYPES


@dataclass(frozen=True, slots=True)
class Instance:
    """One compiled form of the kernel: a name expression for NVRTC, the dtype of T and the head dimension."""

    expression: str
    dtype: str
    head_dim: int


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
    def expressions(self) -> tuple[str, ...]:
        """The name expressions of all instances, for ``compile_source``."""
        return tuple(instance.expression for instance in self.instances)

    def instance(self, dtype: str, head_dim: int) -> Instance | None:
        """The instance for a dtype (``float16``, ``bfloat16``, ``float32``) and a head dimension."""
        return next((i for i in self.instances if i.dtype == dtype and i.head_dim == head_dim), None)

    def missing_instance(self, dtype: str, head_dim: int) -> Diagnostic:
        """The diagnostic for a dtype and head dimension that no instance has."""
        available = ", ".join(f"{i.dtype} D={i.head_dim}" for i in self.instances)
        return make("CB622", None, dtype=dtype, head_dim=head_dim, available=available)

    def launch(self, sizes: Mapping[str, int], dtype: str) -> LaunchShape:
        """Grid, block and shared bytes for `sizes` (B, H, Hkv, Sq, Sk, D). Raises KeyError when a size is missing."""
        values = {**sizes, "element_bytes": DTYPE_BYTES[dtype]}
        x, y, z = (evaluate_size(text, values) for text in self.grid)
        return LaunchShape((x, y, z), self.block, evaluate_size(self.dynamic_shared_bytes, values))

    def dynamic_shared(self, instance: Instance) -> int:
        """Dynamic shared bytes of `instance`, whatever the lengths. Raises KeyError when they depend on a length."""
        return evaluate_size(
            self.dynamic_shared_bytes, {"D": instance.head_dim, "element_bytes": DTYPE_BYTES[instance.dtype]}
        )

    def with_parameters(self, extra: tuple[Parameter, ...]) -> Contract:
        """The contract of an adapted kernel, whose edit appended `extra` to the parameter list."""
        return replace(self, parameters=(*self.parameters, *extra))


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"cdiv": _cdiv, "min": min, "max": max}


def evaluate_size(text: str, values: Mapping[str, int]) -> int:
    """Evaluate a size expression.

    Raises ValueError when it is not one (syntax, operator, unknown name), KeyError when `values` lacks a known size.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an expression") from error
    return _evaluate(tree, values)


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in _SIZES:
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and len(args) == 2:
            return _CALLS[name](*(_evaluate(arg, values) for arg in args))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed in a size expression")


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
        evaluate_size(text, dict.fromkeys(_SIZES, 1))
    except (ValueError, ZeroDivisionError) as error:
        raise _Bad(field, str(error)) from error
    return text


def is_role(role: str) -> bool:
    """True for a role of the vocabulary (`ROLES`, `PREFIX_ROLES`)."""
    if role in ROLES:
        return True
    prefix, _, rest = role.partition(":")
    if prefix == "stride":
        tensor, _, axis = rest.rpartition(".")
        return bool(tensor) and axis in ("b", "h", "row", "col")
    return f"{prefix}:" in PREFIX_ROLES and rest.isidentifier()


def _parameter(row: Mapping[str, Any], index: int) -> Parameter:
    where = f"parameters[{index}]"
    role = _get(row, where, "role", str)
    kind = _get(row, where, "type", str)
    if not is_role(role):
        raise _Bad(f"{where}.role", f"{role!r} is not a role")
    if kind not in POINTER_DTYPES and kind not in SCALAR_TYPES:
        raise _Bad(f"{where}.type", f"{kind!r} is not one of {', '.join((*POINTER_DTYPES, *SCALAR_TYPES))}")
    pointer_role = role in ("q", "k", "v", "o", "lse") or role.startswith("operand:")
    if pointer_role != (kind in POINTER_DTYPES):
        raise _Bad(f"{where}.type", f"role {role} is {'a pointer' if pointer_role else 'a number'}, {kind} is not")
    return Parameter(_get(row, where, "name", str), role, kind)


def _instance(row: Mapping[str, Any], index: int) -> Instance:
    where = f"instances[{index}]"
    dtype = _one_of(_get(row, where, "dtype", str), tuple(DTYPE_BYTES), f"{where}.dtype")
    return Instance(_get(row, where, "expression", str), dtype, _get(row, where, "head_dim", int))


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

"""The arguments of a kernel as a contract names them: roles, types, and one parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .size_text import evaluate_size
from .tensor_maps import TENSOR_MAP, BoxShape

POINTER_BYTES = 8
MAP_BYTES = 128  # of a CUtensorMap

# Roles with a fixed name: what the argument is. The vocabulary is that of CuIR's kernel parameters.
ROLES = {
    "q": "pointer to Q [B, H, Sq, D]",
    "k": "pointer to K [B, Hkv, Sk, D]",
    "v": "pointer to V [B, Hkv, Sk, Dv]",
    "o": "pointer to O [B, H, Sq, Dv], written",
    "lse": "pointer to LSE [B, H, Sq], fp32, written",
    "B": "batch size",
    "H": "query heads",
    "Hkv": "key/value heads",
    "Sq": "query length",
    "Sk": "key length",
    "D": "head dimension",
    "Dv": "width of V and O",
    "group": "H / Hkv",
    "scale": "factor of the scores, natural units",
    "scale_log2": "scale * log2(e), for kernels that use exp2",
    "flag:causal": "1 to mask bottom-right causally, else 0",
    "workspace": "pointer to scratch memory, zero before the first launch and after each",
    "scratch": "pointer to scratch memory, of any contents or filled with one number before each launch",
    "value": "a number that the host works out of the sizes, or a constant",
    "struct": "a struct passed by value; its fields have roles",
}
SCRATCH_ROLES = ("workspace", "scratch")
# Roles with a parameter, by their prefix.
PREFIX_ROLES = {
    "operand:": "pointer to an extra tensor of the spec, bound by that name (bias, slopes, sinks, ...)",
    "scalar:": "an extra number, bound by that name (softcap, window, ...)",
    "stride:": "elements from one index to the next: stride:<q|k|v|o|operand name>.<b|h|row|col>",
}
POINTER_DTYPES = {
    "T*": None,
    "float*": "float32",
    "half*": "float16",
    "bfloat16*": "bfloat16",
    "int32*": "int32",
    "int64*": "int64",
    "bool*": "bool",
}
SCALAR_BYTES = {"int32": 4, "int64": 8, "float32": 4, "float64": 8, "bool": 1}
SCALAR_TYPES = tuple(SCALAR_BYTES)
IS_FLOAT = re.compile(r"-?(\d+\.\d*(e[+-]?\d+)?|inf)$")  # a number of a ``value``; all else is a size expression
STRUCT = "struct"  # the word for both the type and the role
# axes in memory, the outermost first: s rows, d columns; or the tensor whose strides serve for this one too
LAYOUTS = ("bhsd", "bshd", "q", "k")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel argument: its name in the source, its role and its type.

    `box` is there for a tensor map, `elements` (a size expression) for scratch memory. An `optional` one is null, or 0,
    where the caller gives nothing. `value` (a size expression or a number) is that of a number with the role ``value``;
    `fill` what memory holds before each launch; `layout` how a tensor without stride parameters lies in memory.
    `fields` and `size` (bytes) are there for a struct.
    """

    name: str
    role: str
    type: str
    box: BoxShape | None = None
    elements: str = ""
    optional: bool = False
    value: str = ""
    fill: float | None = None
    layout: str = "bhsd"
    fields: tuple[Field, ...] = ()
    size: int = 0

    @property
    def leaves(self) -> tuple[Parameter, ...]:
        """The fields of a struct, else the parameter itself."""
        return tuple(field.parameter for field in self.fields) if self.type == STRUCT else (self,)

    @property
    def width(self) -> int:
        """Bytes among the kernel's arguments."""
        if self.type == STRUCT:
            return self.size
        return MAP_BYTES if self.type == TENSOR_MAP else SCALAR_BYTES.get(self.type, POINTER_BYTES)

    def number(self, sizes: Mapping[str, int]) -> int | float:
        """What a ``value`` is for these sizes. Raises KeyError when one that it needs is missing."""
        if IS_FLOAT.match(self.value):
            return float(self.value)
        widths = {"Dv": sizes["D"], **sizes} if "D" in sizes else sizes
        return evaluate_size(self.value, widths)

    @property
    def is_pointer(self) -> bool:
        """True for a device pointer."""
        return self.type in POINTER_DTYPES

    @property
    def is_scratch(self) -> bool:
        """True for memory that belongs to the launch alone, of any contents or of zeros."""
        return self.role in SCRATCH_ROLES


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a struct that is passed by value, at its byte offset."""

    offset: int
    parameter: Parameter


def is_role(role: str) -> bool:
    """True for a role of the vocabulary (`ROLES`, `PREFIX_ROLES`)."""
    if role in ROLES:
        return True
    prefix, _, rest = role.partition(":")
    if prefix == "stride":
        tensor, _, axis = rest.rpartition(".")
        return bool(tensor) and axis in ("b", "h", "row", "col")
    return f"{prefix}:" in PREFIX_ROLES and rest.isidentifier()

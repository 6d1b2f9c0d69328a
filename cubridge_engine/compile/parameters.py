"""The arguments of a kernel as a contract names them: roles, types, and one parameter."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor_maps import BoxShape

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
    "scratch": "pointer to scratch memory of any contents",
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
SCALAR_TYPES = ("int32", "int64", "float32")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel argument: its name in the source, its role and its type.

    `box` is there for a tensor map, `elements` (a size expression) for scratch memory. An `optional` one is null, or 0,
    where the caller gives nothing.
    """

    name: str
    role: str
    type: str
    box: BoxShape | None = None
    elements: str = ""
    optional: bool = False

    @property
    def is_pointer(self) -> bool:
        """True for a device pointer."""
        return self.type in POINTER_DTYPES

    @property
    def is_scratch(self) -> bool:
        """True for memory that belongs to the launch alone, of any contents or of zeros."""
        return self.role in SCRATCH_ROLES


def is_role(role: str) -> bool:
    """True for a role of the vocabulary (`ROLES`, `PREFIX_ROLES`)."""
    if role in ROLES:
        return True
    prefix, _, rest = role.partition(":")
    if prefix == "stride":
        tensor, _, axis = rest.rpartition(".")
        return bool(tensor) and axis in ("b", "h", "row", "col")
    return f"{prefix}:" in PREFIX_ROLES and rest.isidentifier()

"""C and CUDA types by name, and reading a type from syntax."""

from __future__ import annotations

from .syntax import Syn
from .values import CType

_ROWS: tuple[tuple[str, int, str, bool], ...] = (
    ("void", 1, "void", True),
    ("bool", 1, "bool", False),
    ("char", 1, "int", True),
    ("signed char", 1, "int", True),
    ("unsigned char", 1, "int", False),
    ("short", 2, "int", True),
    ("unsigned short", 2, "int", False),
    ("int", 4, "int", True),
    ("signed", 4, "int", True),
    ("unsigned", 4, "int", False),
    ("unsigned int", 4, "int", False),
    ("long", 8, "int", True),
    ("long int", 8, "int", True),
    ("unsigned long", 8, "int", False),
    ("long long", 8, "int", True),
    ("long long int", 8, "int", True),
    ("unsigned long long", 8, "int", False),
    ("size_t", 8, "int", False),
    ("ptrdiff_t", 8, "int", True),
    *((f"{u}int{8 * n}_t", n, "int", not u) for u in ("", "u") for n in (1, 2, 4, 8)),
    ("uintptr_t", 8, "int", False),
    ("intptr_t", 8, "int", True),
    ("uint", 4, "int", False),
    ("ushort", 2, "int", False),
    ("uchar", 1, "int", False),
    ("float", 4, "float", True),
    ("double", 8, "float", True),
    ("__half", 2, "half", True),
    ("half", 2, "half", True),
    ("__nv_bfloat16", 2, "bf16", True),
    ("nv_bfloat16", 2, "bf16", True),
    ("__half2", 4, "wide", True),
    ("half2", 4, "wide", True),
    ("__nv_bfloat162", 4, "wide", True),
    ("nv_bfloat162", 4, "wide", True),
    ("auto", 0, "auto", True),
)
TYPES: dict[str, CType] = {name: CType(name, size, kind, 0, signed) for name, size, kind, signed in _ROWS}
# Vector types: element type and number of elements.
VECTORS: dict[str, tuple[str, int]] = {
    **{
        f"{base}{n}": (name, n)
        for base, name in (("float", "float"), ("int", "int"), ("uint", "unsigned"))
        for n in (2, 3, 4)
    },
    "__half2": ("__half", 2),
    "half2": ("half", 2),
    "__nv_bfloat162": ("__nv_bfloat16", 2),
    "nv_bfloat162": ("nv_bfloat16", 2),
}
for _name, (_element, _count) in VECTORS.items():
    TYPES.setdefault(_name, CType(_name, TYPES[_element].size * _count, "wide"))

OTHER = CType("?", 4, "other")


def named(name: str) -> CType | None:
    """The built-in type of that name, qualifiers and namespaces ignored."""
    words = [w for w in name.replace("::", " ").split() if w not in ("const", "volatile", "std", "struct", "constexpr")]
    text = " ".join(words)
    return TYPES.get(text)


def stars(declarator: Syn | None) -> int:
    """The number of pointer levels of an abstract or named declarator."""
    count = 0
    while declarator is not None:
        if "pointer_declarator" in declarator.type:
            count += 1
        declarator = declarator.get("declarator") or next((k for k in declarator.kids if "declarator" in k.type), None)
    return count

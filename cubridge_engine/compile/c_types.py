"""C++ types of parameters as the contract's words for them."""

from __future__ import annotations

import re
from collections.abc import Collection

from .parameters import STRUCT

# Element words of a pointer -> contract type; the first that occurs counts.
_POINTERS = (
    (r"bfloat16|bf16|BFloat16", "bfloat16*"),
    (r"half|Half|float16|fp16", "half*"),
    (r"float", "float*"),
    (r"bool|unsigned char|uint8_t", "bool*"),
    (r"int64_t|long long|\blong\b", "int64*"),
    (r"int|unsigned|uint32_t", "int32*"),
)
_SCALARS = (
    (r"(unsigned )?long long( int)?|u?int64_t|size_t|ptrdiff_t|(unsigned )?long( int)?|index_t", "int64"),
    (r"float", "float32"),
    (r"double", "float64"),
    (r"bool", "bool"),
    (r"(unsigned |signed )?int|unsigned|u?int32_t|uint", "int32"),
)


def is_pointer(ctype: str) -> bool:
    """True for a type written with ``*``."""
    return "*" in ctype


def contract_type(ctype: str, templates: Collection[str] = ()) -> str:
    """``const float *`` -> ``float*``; a pointer to a template parameter, or to a type of unknown name, is ``T*``; what
    is passed by value and no number is ``struct``.
    """
    plain = " ".join(re.sub(r"\b(const|volatile|__restrict__|restrict)\b", " ", ctype).split()).replace("std::", "")
    if is_pointer(plain):
        words = plain.split("*")[0].strip()
        if words in templates:
            return "T*"
        return next((kind for pattern, kind in _POINTERS if re.search(pattern, words)), "T*")
    base = plain.rstrip("& ")
    found = next((kind for pattern, kind in _SCALARS if re.fullmatch(pattern, base)), "")
    return found or STRUCT

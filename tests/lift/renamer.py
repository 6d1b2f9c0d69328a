"""Rename every identifier of a source that is not CUDA's own."""

from __future__ import annotations

import re

from cubridge_engine.lift.ctypes_table import TYPES
from cubridge_engine.lift.intrinsics import TABLE

_WORDS = """
threadIdx blockIdx blockDim gridDim x y z w dim3 extern shared __shared__ __global__ __device__ __host__ __restrict__
__forceinline__ inline __launch_bounds__ __align__ template typename class const constexpr static for if else while
return asm volatile reinterpret_cast static_cast void true false namespace using struct typedef sizeof INFINITY unroll
pragma include define FLT_MAX ifdef ifndef endif else undef cudaError_t
nvcuda wmma fragment matrix_a matrix_b accumulator row_major col_major mem_row_major mem_col_major
load_matrix_sync store_matrix_sync mma_sync fill_fragment num_elements cudaSuccess cudaStream_t cudaFuncSetAttribute
cudaGetLastError cudaFuncAttributeMaxDynamicSharedMemorySize __CUDACC_RTC__ C auto alignas __grid_constant__
"""
_KEEP = set(TABLE) | {word for name in TYPES for word in name.split()} | set(_WORDS.split())
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|#include[^\n]*|\b\d[\w.+-]*|[A-Za-z_]\w*', re.S)


def renamed(text: str) -> tuple[str, dict[str, str]]:
    """(text with identifiers replaced by meaningless ones, old name -> new name). Comments are dropped."""
    names: dict[str, str] = {}

    def swap(match: re.Match[str]) -> str:
        word = match.group(0)
        if word.startswith(("//", "/*")):
            return " "
        if not re.match(r"[A-Za-z_]\w*$", word) or word in _KEEP:
            return word
        return names.setdefault(word, f"zz{(len(names) * 7919) % 10007}")

    return _TOKEN.sub(swap, text), names

"""What the calls of a tensor library do, by the last part of their name. Data only."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Their result is the same storage in another layout: that of the first argument, or of the object before the dot.
VIEWS = _words(
    "local_tile local_partition recast as_position_independent_swizzle_tensor flat_divide zipped_divide tiled_divide "
    "logical_divide group_modes coalesce flatten filter filter_zeros composition tensor domain_offset slice "
    "partition_S partition_D partition_A partition_B partition_C retile_S retile_D retile data layout with "
    "make_gmem_ptr make_smem_ptr make_rmem_ptr reinterpret_cast const_cast raw_pointer_cast "
    "recast_ptr begin get"
)
# Of these the last argument is the tensor.
VIEWS_OF_LAST = frozenset({"retile", "partition_S", "partition_D", "partition_A", "partition_B", "partition_C"})
# New registers; nothing is in them yet.
FRESH = _words(
    "make_fragment_like make_tensor_like partition_fragment_A partition_fragment_B partition_fragment_C "
    "make_fragment_A make_fragment_B make_fragment_C partition_shape_C make_identity_tensor"
)
# The same numbers in another type.
CONVERSIONS = frozenset({"convert_type", "static_cast", "float", "half_t", "__float2half", "__half2float", "Element"})
CONVERTERS = frozenset({"NumericArrayConverter", "NumericConverter"})  # objects that convert what they are called with
# Pointers to a memory, with the letter of the memory.
POINTERS = {"make_gmem_ptr": "g", "make_smem_ptr": "s"}
COPIES = frozenset({"copy", "copy_aligned"})  # (.., source, destination)
PREDICATED_COPIES = frozenset({"copy_if"})
PRODUCTS = frozenset({"gemm"})  # (mma, [D,] A, B, C) or (A, B, C)
CLEARS = frozenset({"clear", "fill"})
WAITS = {
    "cp_async_wait": "waits for asynchronous copies",
    "cp_async_fence": "ends a group of asynchronous copies",
    "__syncthreads": "barrier of the CTA",
    "tma_store_wait": "waits for TMA stores",
    "warpgroup_wait": "waits for products of the warpgroup",
    "warpgroup_arrive": "begins products of the warpgroup",
    "warpgroup_commit_batch": "ends a group of products of the warpgroup",
}
EXPONENTIALS = _words("exp expf exp2 exp2f __expf ex2_approx_ftz fast_exp fast_exp2 ptx_exp2")
LOGARITHMS = _words("log logf log2 log2f __logf __log2f fast_log")
MAXIMA = _words("max fmax fmaxf")
CAPS = _words("tanh tanhf fast_tanh")
SHUFFLES = _words("__shfl_xor_sync __shfl_sync __shfl_down_sync __shfl_up_sync")
RECIPROCALS = _words("__frcp_rn frcp rcp __fdividef")
# Arithmetic that is spelled as a call: the operator that it is.
OPERATORS = {"__fmul_rn": "*", "__fadd_rn": "+", "__fsub_rn": "-", "__fdividef": "/", "fmaf": "fma", "__fmaf_rn": "fma"}
# Calls that read tensors or sizes and change none.
HARMLESS = _words(
    "size rank cosize shape stride make_shape make_stride make_layout make_coord make_tile print printf is_same "
    "get_slice get_thread_slice make_tiled_copy make_tiled_copy_A make_tiled_copy_B make_tiled_copy_C "
    "make_tiled_copy_D make_tiled_mma "
    "static_assert CUTE_STATIC_ASSERT_V CUTE_STATIC_ASSERT assert min ceil_div sizeof elem_less layout_left shape_div "
    "warpgroup_fence_operand isinf isnan __builtin_expect abs fabsf sqrtf tile_to_shape depth __ldg declval prefetch"
)
NEGATIVE = re.compile(r"^\(?\s*-\s*(?:\w+::)*(?:INFINITY|HUGE_VALF?|CUDART_INF_F?|FLT_MAX|1\.?0?e(?:30|20|9)f?)\s*\)?$")
# Folders of the library itself: what lies in them is never followed.
LIBRARY_FOLDERS = ("/cute/", "/cutlass/")
# Calls that have an effect on tensors, or none, by this table.
CALLS = (
    VIEWS | VIEWS_OF_LAST | FRESH | CONVERSIONS | frozenset(POINTERS) | COPIES | PREDICATED_COPIES | PRODUCTS | CLEARS
    | frozenset(WAITS) | HARMLESS | {"make_tensor"}
)  # fmt: skip

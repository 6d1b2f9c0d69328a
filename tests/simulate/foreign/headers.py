"""Kernels of libraries, compiled with nvcc from the headers of their wheels when needed; the PTX is kept in the cache.

CuTe's tutorial GEMMs, CUTLASS's Hopper attention (example 88: warp-specialised, two consumer warpgroups in ping-pong,
persistent), and FlashInfer's decode and prefill kernels.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cubridge_engine.simulate import Schedule
from tests.one_at_a_time import one_at_a_time

from . import launches
from .launches import Case
from .wheels import CUTLASS, FLASHINFER, Missing, Wheel, unpacked

DECODE = """
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/variants.cuh>
using namespace flashinfer;
using P = SingleDecodeParams<half, half, half>;
using V = DefaultAttention<false, false, false, false>;
template __global__ void flashinfer::SingleDecodeWithKVCacheKernel<PosEncodingMode::kNone, 2, 2, 8, 8, 2, 8, V, P>(
    const __grid_constant__ P);
"""
# Causal, Q tile 64, KV tile 64, D = 64, four warps along Q.
PREFILL = """
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/variants.cuh>
using namespace flashinfer;
using P = SinglePrefillParams<half, half, half>;
using V = DefaultAttention<false, false, false, false>;
using T = KernelTraits<MaskMode::kCausal, 64, 1, 4, 4, 4, 4, 1, PosEncodingMode::kNone, half, half, half, float,
                       int32_t, V>;
template __global__ void flashinfer::SinglePrefillWithKVCacheKernel<T, P>(const __grid_constant__ P);
"""
FMHA = """
#include "cutlass/cutlass.h"
#include "cute/tensor.hpp"
#include "cutlass/device_kernel.h"
#include "cutlass/kernel_hardware_info.h"
#include "collective/fmha_fusion.hpp"
#include "kernel/fmha_kernel_builder.hpp"
using namespace cute;
using Rows = cute::tuple<int, _1, cute::tuple<int, int>>;
using Kernel = cutlass::fmha::kernel::FmhaBuilder<
    cutlass::half_t, float, float, Shape<_128, _64, _64>, Rows, Rows, Rows, cutlass::fmha::collective::CausalFusion,
    cutlass::gemm::KernelTmaWarpSpecializedPingpong>::Kernel;
template __global__ void cutlass::device_kernel<Kernel>(const __grid_constant__ Kernel::Params);
"""


@dataclass(frozen=True)
class Header:
    """A kernel: its wheel, source (a path in the wheel, or text), architecture, include folders, and its launch.

    `launch` takes what has ``kernels`` and ``launch`` like a ``simulate.Module``, and the schedule. `mend` puts right
    in the PTX what the simulator finds wrong with the kernel as shipped.
    """

    wheel: Wheel
    source: str
    arch: str
    includes: tuple[str, ...]
    launch: Callable[[Any, Schedule], Case]
    mend: Callable[[str], str] = str


def ptx_of(name: str, cache: Path) -> str:
    """The PTX of one of HEADERS, compiled once. Raises Missing."""
    header = HEADERS[name]
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise Missing("there is no nvcc")
    root = unpacked(header.wheel, cache)
    key = hashlib.sha256(repr((header.wheel, header.source, header.arch, nvcc)).encode()).hexdigest()[:12]
    target = cache / f"{name}-{key}.ptx"
    with one_at_a_time(cache):
        if not target.exists():
            _compile(nvcc, name, root, target)
    return target.read_text()


def _compile(nvcc: str, name: str, root: Path, target: Path) -> None:
    header, cache = HEADERS[name], target.parent
    source = root / header.source
    if "\n" in header.source:
        source = cache / f"{name}.cu"
        source.write_text(header.source)
    flags = ["-ptx", "-lineinfo", "-std=c++17", "-O2", "--expt-relaxed-constexpr", f"-arch={header.arch}"]
    unfinished = target.with_suffix(".part")
    command = [nvcc, *flags, *(f"-I{root / i}" for i in header.includes), "-o", str(unfinished), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise Missing(f"nvcc does not compile {name}: {done.stderr.strip()[-200:]}")
    unfinished.rename(target)


def with_a_warp_barrier(text: str) -> str:
    """FlashInfer's prefill with the ``__syncwarp()`` that its epilogue lacks, behind its last store to shared memory.

    ``write_o_reg_gmem`` writes O to shared memory and reads rows that other lanes of the warp wrote.
    """
    last = list(re.finditer(r"st\.shared\.u32\s[^;]*;", text))[-1]
    return f"{text[: last.end()]}\n\tbar.warp.sync \t-1;{text[last.end() :]}"


def with_a_fence(text: str) -> str:
    """CuTe's tutorial with the fence that it lacks between the initialisation of its mbarriers and the first copies."""
    return re.sub(r"barrier\.cluster\.arrive\.aligned;", r"fence.mbarrier_init.release.cluster;\n\t\g<0>", text)


_CUTLASS = ("include", "tools/util/include")
_FLASHINFER = ("cccl/libcudacxx/include", "cccl/cub", "cccl/thrust", "include")
HEADERS = {
    "cute_sgemm_sm80": Header(
        CUTLASS, "examples/cute/tutorial/sgemm_sm80.cu", "sm_80", _CUTLASS, launches.cute_sgemm
    ),
    "cute_wgmma_tma_sm90": Header(
        CUTLASS, "examples/cute/tutorial/hopper/wgmma_tma_sm90.cu", "sm_90a", _CUTLASS, launches.cute_wgmma,
        with_a_fence,
    ),
    "cutlass_fmha_sm90": Header(
        CUTLASS, FMHA, "sm_90a", (*_CUTLASS, "examples/88_hopper_fmha"), launches.cutlass_fmha
    ),
    "flashinfer_single_decode": Header(FLASHINFER, DECODE, "sm_80", _FLASHINFER, launches.flashinfer_decode),
    "flashinfer_single_prefill": Header(
        FLASHINFER, PREFILL, "sm_80", _FLASHINFER, launches.flashinfer_prefill, with_a_warp_barrier
    ),
}  # fmt: skip

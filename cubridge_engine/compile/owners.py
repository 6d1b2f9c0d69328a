"""Which package a header is from, and what a user does who lacks it: the way out of CB606."""

from __future__ import annotations

import re

from ..diagnostics import Diagnostic, Span, make

_NAME_IT = 'then name its folder in cubridge.toml: include = ["FOLDER"]'
# Pattern of a header -> whose it is, how to have it. The first that matches counts.
_OWNERS: tuple[tuple[str, str], ...] = (
    (r"(cute|cutlass)/", "It is of CUTLASS: pip install nvidia-cutlass, or set CUTLASS_HOME to a checkout of CUTLASS."),
    (r"(cub|thrust|cuda|nv)/", "It is of CCCL, a part of CUDA: pip install flashinfer-python, or install the toolkit."),
    (r"flashinfer/", "It is of FlashInfer: pip install flashinfer-python."),
    (r"(hip|rocblas|hipblas|hipcub|rocprim|rocwmma|ck|ck_tile|miopen)\b",
     "It is of ROCm: this is code for AMD; CuBridge compiles for NVIDIA. Open the file that it was made from."),
    (r"(ggml|llama)[\w-]*\.(h|cuh)", "It is of ggml (llama.cpp): unpack the sdist of llama-cpp-python, "
     + _NAME_IT + "."),
    (r"kittens\.cuh|prototype\.cuh", "It is of ThunderKittens: get a checkout, " + _NAME_IT + "."),
    (r"(raft|rmm|cuvs)/", "It is of RAPIDS: pip install its lib package (libraft, librmm), " + _NAME_IT + "."),
    (r"(paddle|phi)/", "It is of Paddle: its wheel has paddle/include; " + _NAME_IT + "."),
    (r"(tensorflow|xla|tsl)/", "It is of TensorFlow: its wheel has tensorflow/include; " + _NAME_IT + "."),
    (r"(tensorrt_llm/|NvInfer)", "It is of TensorRT-LLM: get a checkout, " + _NAME_IT + "."),
    (r"(nvshmem|mpi)", "It is of a library for several GPUs: guard the include, which one kernel alone does not need."),
    (r"(cuda|cooperative_groups|mma|device_|vector_|sm_)\w*(\.h|\.hpp)$",
     "It is of CUDA: pip install nvidia-cuda-runtime nvidia-cuda-crt."),
)  # fmt: skip
_ELSE = 'Name its folder in cubridge.toml: include = ["FOLDER"]; or guard the include with #ifndef __CUDACC_RTC__.'


def missing_header(header: str, span: Span | None) -> Diagnostic:
    """CB606, with the way to have the header."""
    way = next((text for pattern, text in _OWNERS if re.match(pattern, header)), _ELSE)
    return make("CB606", span, header=header, way=way)

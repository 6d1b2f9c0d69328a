"""Makes the PTX of this folder: ``python triton_kernels.py`` where Triton 3.9 is installed; no GPU is needed.

The Python is ours, the PTX is code nobody here wrote: Triton chooses layouts, swizzles, pipelines and fences.
Debug information is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, s, scale_log2, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, C: tl.constexpr
):
    """O = softmax(Q K^T) V over heads of [s, D]; C: causal."""
    m0 = tl.program_id(0) * BM
    base = tl.program_id(1) * s * D
    om, od, on = m0 + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    q = tl.load(q_ptr + base + om[:, None] * D + od[None, :], mask=om[:, None] < s, other=0.0)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)  # noqa: E741
    acc = tl.zeros([BM, D], tl.float32)
    end = s
    if C:
        end = tl.minimum(s, m0 + BM)
    for n in range(0, end, BN):
        key = n + on
        k = tl.load(k_ptr + base + key[:, None] * D + od[None, :], mask=key[:, None] < s, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale_log2
        seen = key[None, :] < s
        if C:
            seen = seen & (key[None, :] <= om[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(m, tl.max(scores, 1))
        p = tl.math.exp2(scores - new[:, None])
        correction = tl.math.exp2(m - new)
        l = l * correction + tl.sum(p, 1)  # noqa: E741
        acc = acc * correction[:, None]
        v = tl.load(v_ptr + base + key[:, None] * D + od[None, :], mask=key[:, None] < s, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m = new
    out = (acc / l[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + base + om[:, None] * D + od[None, :], out, mask=om[:, None] < s)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B."""
    om, on, ok = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, k, BK):
        inner = i + ok
        a = tl.load(a_ptr + om[:, None] * k + inner[None, :], mask=(om[:, None] < m) & (inner[None, :] < k), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + on[None, :], mask=(inner[:, None] < k) & (on[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + om[:, None] * n + on[None, :], acc, mask=(om[:, None] < m) & (on[None, :] < n))


def signature(dtype: str, out: str, numbers: dict[str, str], pointers: str) -> dict[str, str]:
    """Three pointers of one dtype or two and a result, then the scalars."""
    names = pointers.split()
    return {**dict.fromkeys(names[:-1], dtype), names[-1]: out, **numbers}


ATTENTION = {"numbers": {"s": "i32", "scale_log2": "fp32"}, "pointers": "q_ptr k_ptr v_ptr o_ptr"}
PRODUCT = {"numbers": {"m": "i32", "n": "i32", "k": "i32"}, "pointers": "a_ptr b_ptr c_ptr"}
KERNELS = [
    (
        "attention_f16_sm80",
        attention,
        80,
        signature("*fp16", "*fp16", **ATTENTION),
        {"BM": 64, "BN": 64, "D": 64, "C": True},
        3,
    ),
    (
        "attention_bf16_sm90",
        attention,
        90,
        signature("*bf16", "*bf16", **ATTENTION),
        {"BM": 128, "BN": 32, "D": 64, "C": False},
        2,
    ),
    ("product_f16_sm80", product, 80, signature("*fp16", "*fp32", **PRODUCT), {"BM": 64, "BN": 64, "BK": 32}, 3),
    ("product_tf32_sm90", product, 90, signature("*fp32", "*fp32", **PRODUCT), {"BM": 64, "BN": 64, "BK": 32}, 2),
]


def main() -> None:
    """Compile all kernels; the first line of each file says how much shared memory it needs."""
    for name, function, capability, types, constants, stages in KERNELS:
        attributes = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(types.values()) if t.startswith("*")}
        source = ASTSource(function, {**types, **dict.fromkeys(constants, "constexpr")}, constants, attributes)
        options = {"num_warps": 4, "num_stages": stages}
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        text = re.sub(r"^\s*\.section.*\Z", "", kernel.asm["ptx"], flags=re.M | re.S)
        text = re.sub(r"^\s*\.(loc|file).*\n|//.*$|^\$L__(tmp|func).*\n", "", text, flags=re.M)
        text = re.sub(r"\s*\n(\s*\n)*", "\n", text)
        head = f"// Triton {triton.__version__}, {name}: 128 threads, {kernel.metadata.shared} bytes of shared memory\n"
        (Path(__file__).parent / f"{name}.ptx").write_text(head + text.strip() + "\n")


if __name__ == "__main__":
    main()

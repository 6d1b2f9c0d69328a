"""Kernels that work their strides out from the sizes: tensors lie as they are addressed, and specs of another order are
refused by name.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from cubridge_engine.lift import lift
from cubridge_engine.pipeline.check import verify_kernel
from cubridge_engine.source import parse
from cubridge_engine.verify.placement import Placement, layout_problems, placement
from cubridge_engine.verify.subject import VerifyOptions
from tests.transfer.builders import make_attention

SCALAR = Path(__file__).parents[2] / "expert_kernels" / "flash_fwd_scalar"
SIZES = {"B": 2, "H": 4, "Hkv": 2, "Sq": 70, "Sk": 33}
SPEC = """
import torch
import torch.nn.functional as F


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def example_inputs():
    return tuple(torch.randn(2, 2, 70, 64) for _ in range(3))
"""
# Strides of batch, head and row in the places of the parameters: (heads, rows, width) of each tensor.
OF = {
    "q": ("heads", "sq", "D"),
    "k": ("kv_heads", "sk", "D"),
    "v": ("kv_heads", "sk", "DV"),
    "o": ("heads", "sq", "DV"),
}


def without_strides(order: str) -> str:
    """The scalar kernel for tensors without gaps, [B, H, S, D] or [B, S, H, D]."""
    text = (SCALAR / "kernel.cu").read_text()
    text = re.sub(r"long long [qkvo]_stride_(?:b|h|row),\s*", "", text)
    text = re.sub(r"(?<!long long )\b[qkvo]_stride_(?:b|h|row), ?", "", text.split("launcher")[0])
    for role, (heads, rows, width) in OF.items():
        by_row = order == "bshd"
        steps = {"b": f"(1ll * {heads} * {rows} * {width})", "h": width if by_row else f"({rows} * {width})"}
        steps["row"] = f"({heads} * {width})" if by_row else width
        for axis, step in steps.items():
            text = text.replace(f"{role}_stride_{axis}", step)
    return text


@cache
def kernel(order: str):
    found = lift(parse("kernel.cu", without_strides(order).encode()))
    assert found.kernel is not None, [d.message for d in found.diagnostics]
    return found.kernel


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize("wanted", ["bhsd", "bshd", "padded"])
def test_tensors_lie_as_the_kernel_addresses_them(order: str, wanted: str) -> None:
    assert placement(kernel(order), "q", wanted, (2, 4, 70, 64), SIZES) == Placement(order, 0)
    assert placement(kernel(order), "k", wanted, (2, 2, 33, 64), SIZES) == Placement(order, 0)


def test_one_head_lies_in_either_order() -> None:
    one = {**SIZES, "H": 1, "Hkv": 1}
    assert placement(kernel("bshd"), "q", "bhsd", (2, 1, 70, 64), one) == Placement("bhsd", 0)


def test_told_strides_may_be_any() -> None:
    own = lift(parse("kernel.cu", (SCALAR / "kernel.cu").read_bytes())).kernel
    assert placement(own, "q", "padded", (2, 4, 70, 64), SIZES) == Placement("padded", 2)
    assert placement(own, "q", "bshd", (2, 4, 70, 64), SIZES) == Placement("bshd", 1)
    assert layout_problems(own, make_attention(axes=("b", "i", "h", "d"))) == []


def test_strides_in_tensor_maps_may_be_any() -> None:
    own = lift(parse("kernel.cu", (SCALAR.parent / "flash_fwd_sm90_plain" / "kernel.cu").read_bytes())).kernel
    for role, shape in {"q": (2, 4, 70, 64), "k": (2, 2, 33, 64), "o": (2, 4, 70, 64)}.items():
        assert placement(own, role, "padded", shape, SIZES) == Placement("padded", 2)
    assert layout_problems(own, make_attention(axes=("b", "i", "h", "d"))) == []


def test_a_batch_stride_alone_separates_batches() -> None:
    text = without_strides("bhsd").replace("float scale)", "float scale, long long k_stride_b)", 1)
    text = text.replace("K + b * (1ll * kv_heads * sk * D)", "K + b * k_stride_b")
    found = lift(parse("kernel.cu", text.encode())).kernel
    assert placement(found, "k", "padded", (2, 2, 33, 64), SIZES) == Placement("bhsd", 1)
    assert placement(found, "v", "padded", (2, 2, 33, 64), SIZES) == Placement("bhsd", 0)


def test_gaps_that_no_test_makes_are_refused() -> None:
    text = without_strides("bhsd").replace("(kv0 + j) * D + d]", "(kv0 + j) * (D + 8) + d]")
    found = lift(parse("kernel.cu", text.encode())).kernel
    (problem,) = layout_problems(found, make_attention())
    assert problem.code == "CB727"
    assert "k is addressed" in problem.message
    with pytest.raises(LookupError):
        placement(found, "k", "bhsd", (2, 2, 33, 64), SIZES)


@pytest.mark.parametrize(("order", "axes"), [("bhsd", ("b", "i", "h", "d")), ("bshd", ("b", "h", "i", "d"))])
def test_a_spec_of_another_order_is_refused_once(order: str, axes: tuple[str, ...]) -> None:
    (problem,) = layout_problems(kernel(order), make_attention(axes=axes))
    assert problem.code == "CB728"
    assert f"({', '.join(axes)})" in problem.message
    own = ("b", "h", "i", "d") if order == "bhsd" else ("b", "i", "h", "d")
    assert layout_problems(kernel(order), make_attention(axes=own)) == []


@pytest.mark.slow
def test_it_is_simulated_without_a_finding(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(without_strides("bhsd"))
    contract = (SCALAR / "contract.toml").read_text().split("[widths]")[0].splitlines()
    own = [line for line in contract if '"stride:' not in line]
    own += ["[[instances]]", 'expression = "flash_fwd_scalar<64>"', 'dtype = "float32"', "head_dim = 64"]
    (tmp_path / "contract.toml").write_text("\n".join(own))
    (tmp_path / "spec.py").write_text(SPEC)
    paths = str(tmp_path / "kernel.cu"), str(tmp_path / "spec.py")
    done = verify_kernel(*paths, checks=VerifyOptions(archs=("sm_80",), use_gpu=False))
    assert [d["message"] for d in done.diagnostics if d["severity"] == "error"] == []
    assert done.level == "simulated"

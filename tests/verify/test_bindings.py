"""Parameters of a kernel are bound from the spec where nobody gives them; what cannot be is named."""

from __future__ import annotations

import math

import pytest

from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.spec.attention import TensorInput
from cubridge_engine.verify.bindings import Given, bind_kernel, indexed_operands

CAUSAL = "j <= i + (Sk - Sq)"


@pytest.mark.parametrize(("mask", "flag"), [(None, 0), (CAUSAL, 1), (f"({CAUSAL}) & (j > i - 9)", 1)])
def test_scale_and_flag_follow_from_the_spec(make_attention, flash: str, mask: str | None, flag: int) -> None:
    bound = bind_kernel(parse_kernel(flash), make_attention("s * 0.3", mask), Given())
    assert bound.diagnostics == ()
    assert bound.binding.values["causal"] == flag
    assert bound.binding.values["c"] == pytest.approx(0.3 / math.log(2))


def test_the_scale_inside_a_square_root(make_attention, flash: str) -> None:
    """The slope at zero grows with the root of the scale there, not with the scale."""
    natural = "(s * (c * 0.6931471805599453))"
    score = f"    score S = sign({natural}) * sqrt(abs({natural})) / (c * 0.6931471805599453)\n"
    kernel = parse_kernel(flash.replace("    mask S keep", f"{score}    mask S keep"))
    bound = bind_kernel(kernel, make_attention("sign(s * 0.3) * sqrt(abs(s * 0.3))"), Given())
    assert bound.diagnostics == ()
    assert bound.binding.values["c"] == pytest.approx(0.3 / math.log(2), rel=1e-6)


def test_the_scale_inside_a_cosine(make_attention, flash: str) -> None:
    """No slope at zero says anything: a usual scale that gives the same scores."""
    natural = "(s * (c * 0.6931471805599453))"
    score = f"    score S = cos(3 * {natural}) / (c * 0.6931471805599453)\n"
    kernel = parse_kernel(flash.replace("    mask S keep", f"{score}    mask S keep"))
    bound = bind_kernel(kernel, make_attention(f"cos(3 * (s * {kernel.D**-0.5}))"), Given())
    assert bound.diagnostics == ()
    assert bound.binding.values["c"] == pytest.approx(kernel.D**-0.5 / math.log(2), rel=1e-6)


def test_the_scale_behind_a_fill_that_an_operand_decides(make_attention, flash: str) -> None:
    """`s.masked_fill(drop, -1e4)`: seen on a key that is attended to, whichever value of the operand says so."""
    operand = TensorInput("drop", "operand", ("B", "Sq", "Sk"), "bool", 3)
    score = "    score S = where(drop[b, i, j], -10000.0 / (c * 0.6931471805599453), s)\n"
    kernel = parse_kernel(flash.replace("    mask S keep", f"{score}    mask S keep"))
    spec = make_attention("where(!drop[b, i, j], s * 0.3, -10000.0)", operands=(operand,))
    bound = bind_kernel(kernel, spec, Given())
    assert bound.binding.values["c"] == pytest.approx(0.3 / math.log(2), rel=1e-6)


def test_what_is_given_wins(make_attention, flash: str) -> None:
    bound = bind_kernel(parse_kernel(flash), make_attention("s * 0.3", CAUSAL), Given({"causal": 0, "c": 2.0}))
    assert bound.binding.values == {"causal": 0, "c": 2.0}


def test_a_parameter_without_a_value_is_named(make_attention, flash: str) -> None:
    text = flash.replace('param 6 causal : "int" : flag', 'param 6 causal : "int" : scalar')
    bound = bind_kernel(parse_kernel(text), make_attention("s * 0.3"), Given())
    assert [d.code for d in bound.diagnostics] == ["CB713"]
    assert "causal" in bound.diagnostics[0].message


def test_a_tensor_of_the_spec_that_no_parameter_reads_is_named(make_attention, flash: str) -> None:
    slopes = TensorInput("slopes", "operand", ("H",), "float32", 3)
    bound = bind_kernel(parse_kernel(flash), make_attention("s * 0.3 + slopes[h] * j", operands=(slopes,)), Given())
    assert "CB717" in [d.code for d in bound.diagnostics]


def with_bias(flash: str) -> str:
    """The flash program with a bias of one head axis left out, as text has it."""
    text = flash.replace(
        'param 6 causal : "int" : flag',
        'param 6 causal : "int" : flag\n  param 7 extra : "const float *" : operand:extra\n'
        '  param 8 step : "int" : scalar',
    ).replace("  grid q_tile = bx", "  strides extra = step | 1\n  grid q_tile = bx")
    return text.replace("    mask S keep", "    score S = s + extra[i, j] / (c * 0.6931471805599453)\n    mask S keep")


def test_axes_of_one_element_are_left_out_as_in_the_kernel(make_attention, flash: str) -> None:
    import numpy as np

    kernel = parse_kernel(with_bias(flash))
    bias = TensorInput("bias", "operand", ("1", "1", "Sq", "Sk"), "float32", 3)
    spec = make_attention("s * 0.3 + bias[0, 0, i, j]", operands=(bias,))
    bound = bind_kernel(kernel, spec, Given())
    assert bound.diagnostics == ()
    assert bound.binding.operands == {"extra": "bias"}
    assert bound.binding.stride_params == {"extra": {"step": 2}}
    array = np.arange(12.0).reshape(1, 1, 3, 4)
    assert indexed_operands(kernel, bound.binding, {"extra": array})["extra"].shape == (3, 4)


@pytest.mark.parametrize(
    ("axes", "index", "strides", "declared", "order"),
    [
        (("Sq", "H", "Sk"), "h, i, j", "along_h | along_i | 1", "along_i along_h", (1, 0, 2)),
        (("Sk", "Sq", "H"), "i, j, h", "along_i | along_j | 1", "along_j along_i", (1, 0, 2)),
        (("H", "1", "Sk", "Sq"), "h, j, i", "along_h | along_j | 1", "along_h along_j", (0, 2, 3)),
        (("Hkv", "Sq", "Sk"), "hk, i, j", "along_h | along_i | 1", "along_h along_i", (0, 1, 2)),
        # A kernel that swaps rows and keys gets the tensor as it is, and fails.
        (("H", "Sq", "Sk"), "h, j, i", "along_h | along_j | 1", "along_h along_j", (0, 1, 2)),
    ],
)
def test_axes_are_bound_by_the_order_of_the_stride_parameters(
    make_attention, flash: str, axes: tuple[str, ...], index: str, strides: str, declared: str, order: tuple[int, ...]
) -> None:
    """The indices of a lifted read are in an order of their own; strides are declared in the order of the axes."""
    import numpy as np

    letters = {"Sq": "i", "Sk": "j", "H": "h", "Hkv": "h // (H // Hkv)", "1": "0"}
    names = [s for s in strides.split(" | ") if s != "1"]
    params = "".join(f'\n  param {8 + n} {name} : "int" : scalar' for n, name in enumerate(declared.split()))
    text = with_bias(flash).replace('\n  param 8 step : "int" : scalar', params)
    text = text.replace("strides extra = step | 1", f"strides extra = {strides}").replace("[i, j]", f"[{index}]")
    bias = TensorInput("bias", "operand", axes, "float32", 3)
    spec = make_attention(f"s * 0.3 + bias[{', '.join(letters[a] for a in axes)}]", operands=(bias,))
    kernel = parse_kernel(text)
    binding = bind_kernel(kernel, spec, Given()).binding
    assert binding.kept == {"extra": order}
    assert binding.stride_params == {"extra": dict(zip(names, order, strict=False))}
    extents = {"Sq": 3, "Sk": 4, "H": 2, "Hkv": 2, "1": 1}
    array = np.arange(24.0).reshape([extents[a] for a in axes])
    seen = indexed_operands(kernel, binding, {"extra": array})["extra"]
    assert seen.shape == tuple(extents[axes[n]] for n in order)
    assert seen[1, 0, 1] == array[tuple({order[0]: 1, order[2]: 1}.get(n, 0) for n in range(len(axes)))]

"""Read-back: a wrong lowering of any kind is named. The near misses are made on the text form of the target itself."""

from __future__ import annotations

import pytest

from cubridge_engine.diagnostics import make
from cubridge_engine.ir.text import parse_kernel, print_kernel
from cubridge_engine.lower import differences, read_back
from cubridge_engine.transfer import transfer
from tests.lower.builders import sm80_program
from tests.transfer.builders import make_attention

CAUSAL = "j <= i + (Sk - Sq)"
SPEC = {
    "score": "5.0 * tanh((s * 0.125 + slopes[h] * float(j - i) + bias[0, h, i, j]) / 5.0)",
    "mask": f"{CAUSAL} & j > i + (Sk - Sq) - 100",
    "sink": "sinks[h]",
    "operands": ("slopes:H", "bias:1,H,Sq,Sk:float16", "sinks:H"),
    "empty_rows": "computed",
}


@pytest.fixture(scope="module")
def result():
    found = transfer(sm80_program(), make_attention(**SPEC))
    assert found.target is not None
    return found


def test_the_target_reads_back_as_itself(result):
    text = print_kernel(result.target).encode()
    kernel, diagnostics = read_back(text, result.target, result.bindings, lambda b: (parse_kernel(b.decode()), ()))
    assert kernel == result.target
    assert diagnostics == ()


def test_flat_reads_equal_logical_ones(result):
    text = print_kernel(result.target)
    flat = text.replace("bias[0, h, i, j]", "bias[h * bias_stride_h + i * bias_stride_row + j]")
    assert flat != text
    assert differences(result.target, parse_kernel(flat), result.bindings) == []


def test_reads_predicated_by_the_tensor_equal_plain_ones(result):
    text = print_kernel(result.target)
    inside = text.replace("bias[0, h, i, j]", "where(i < Sq & j < Sk, bias[0, h, i, j], 0.0)")
    assert differences(result.target, parse_kernel(inside), result.bindings) == []


MISSES = {
    "window off by one": ("- 100", "- 101", "mask"),
    "slope sign": ("float(j - i)", "float(i - j)", "score"),
    "cap": ("/ 5.0", "/ 6.0", "score"),
    "bias of another head": ("bias[0, h, i, j]", "bias[0, hk, i, j]", "score"),
    "bias transposed": ("bias[0, h, i, j]", "bias[0, h, j, i]", "score"),
    "head map": ("h // (H // Hkv)", "h % Hkv", "KV head"),
    "sink on every lane": ("where(lane == 0, 1.0, 0.0)", "1.0", "row sum"),
    "sink unit": ("sinks[h] / (scale_log2 * 0.6931471805599453)", "sinks[h]", "row maximum"),
    "prologue tile": ("k[kv_begin * 64", "k[0", "prologue-matches-lo"),
    "prologue slot": ("Vs[kv_begin % 2]", "Vs[0]", "prologue-matches-lo"),
    "loop start": ("for t in kv_begin", "for t in 0", "visits keys"),
    "range too short": ("max(0, q0 + Sk - Sq - 99)", "max(0, q0 + Sk - Sq + 64)", "range-covers-mask"),
    "guard": (" | kv0 <= q0 + Sk - Sq - 37", "", "mask-guard-covers"),
    "fill": ("fill=-inf; guard", "fill=-10.0; guard", "masked elements"),
    "top-left": ("j <= i + (Sk - Sq)", "j <= i", "mask"),
    "lse": ("+ log(l)", "+ log2(l)", "LSE"),
    "empty rows": ("where(l == 0.0, 0.0, 1.0 / l)", "1.0 / l", "without a key"),
    "unsafe": ("where(mn == -inf, 0.0, mn * scale_log2)", "mn * scale_log2", "NaN"),
    "parameter type": ('param 23 slopes : "const float', 'param 23 slopes : "const int', "parameters"),
}


@pytest.mark.parametrize("name", MISSES)
def test_a_near_miss_is_named(name, result):
    old, new, word = MISSES[name]
    text = print_kernel(result.target)
    assert old in text
    found = differences(result.target, parse_kernel(text.replace(old, new)), result.bindings)
    assert any(word in clause for clause in found), found


def test_softcap_after_the_mask_is_named():
    small = transfer(sm80_program(), make_attention(score="50.0 * tanh(s * 0.125 / 50.0)", mask=CAUSAL))
    lines = print_kernel(small.target).splitlines()
    at = next(n for n, line in enumerate(lines) if line.strip().startswith("score"))
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    found = differences(small.target, parse_kernel("\n".join(lines)), small.bindings)
    assert any("after a mask" in clause for clause in found)


def test_what_cannot_be_lifted_is_an_error(result):
    problem = make("CB403", None, start=1)
    kernel, diagnostics = read_back(b"", result.target, result.bindings, lambda b: (None, (problem,)))
    assert kernel is None
    assert [d.code for d in diagnostics] == ["CB406"]


def test_a_parameter_that_cuir_renamed_is_the_same(result):
    import re

    text = re.sub(r"\bslopes\b", "p_slopes", print_kernel(result.target))
    assert differences(result.target, parse_kernel(text), result.bindings) == []
    text = re.sub(r"\bscale_log2(?= :|\b(?!\"))", "p_scale", print_kernel(result.target)).replace(
        ": p_scale", ": scale_log2"
    )
    assert differences(result.target, parse_kernel(text), result.bindings) == []


def test_a_lost_tail_is_named_where_nothing_else_masks_it():
    wide = transfer(sm80_program(), make_attention(mask="abs(i - j) <= 100"))
    text = print_kernel(wide.target)
    found = differences(wide.target, parse_kernel(text.replace("keep j < Sk & ", "keep ")), wide.bindings)
    assert any("beyond Sk" in clause for clause in found), found

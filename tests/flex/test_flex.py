"""FlexAttention users: their modifications are read as they are, mean what flex_attention computes, and are adapted."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.text_expr import parse_expr, print_expr
from cubridge_engine.lower import read_back
from cubridge_engine.spec import evaluate_attention, read_spec
from cubridge_engine.spec.formula import environment
from cubridge_engine.spec.inputs import make_inputs
from cubridge_engine.verify.bindings import Given, bind_kernel, extra_tensors, indexed_operands
from cubridge_engine.verify.derive import choose_heads, fitted
from cubridge_engine.verify.grid import Case
from cubridge_engine.verify.inputs import roles, to_numpy
from cubridge_engine.verify.ir_level import element_strides
from cubridge_engine.verify.prepare import formula
from tests.examples.adapted import adapt_to

SPECS = Path(__file__).parent / "specs"

# file -> score, mask, axes of operands; "" for no mask. Every file's D is 64.
MEANS: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    "alibi": ("s * 0.125 + exp2(-((h + 1) * 8.0 / 4.0)) * (j - i)", "", {}),
    "softcap": ("tanh(s * 0.125 / 30.0) * 30.0", "", {}),
    "relative_bias": ("s * 0.125 + BIAS[h, min(max(j - i, -32), 32) + 32]", "", {"BIAS": ("H", "65")}),
    "causal": ("s * 0.125", "j <= i", {}),
    "sliding_window": ("s * 0.125", "j <= i & i - j <= 48", {}),
    "prefix_lm": ("s * 0.125", "j < LENGTHS[b] | j <= i", {"LENGTHS": ("B",)}),
    "document": (
        "s * 0.125",
        "ids[i] == ids[j] & i - offsets[ids[i]] >= j - offsets[ids[j]]",
        {"ids": ("Sq",), "offsets": ("4",)},
    ),
    "natten": (
        "s * 0.125",
        "abs(min(max(i // 12, 2), 9) - j // 12) <= 2 & abs(min(max(i % 12, 2), 9) - j % 12) <= 2",
        {},
    ),
    "dilated": ("s * 0.125", "abs(i - j) <= 24 & (i - j) % 3 == 0", {}),
    "global_local": ("s * 0.125", "abs(i - j) <= 16 | GLOBAL[i] | GLOBAL[j]", {"GLOBAL": ("Sq",)}),
    "coordinates": (
        "s * 0.125",
        "abs(COORDS[i, 0] - COORDS[j, 0]) + abs(COORDS[i, 1] - COORDS[j, 1]) <= 4",
        {"COORDS": ("Sq", "2")},
    ),
    "call": (
        "s * 0.1 - SLOPES[h] * abs(i + (Sk - Sq) - j)",
        "j <= i + (Sk - Sq) & (i + (Sk - Sq) - j < 32 | j < 4)",
        {"SLOPES": ("H",)},
    ),
    "block_mask_argument": ("s * 0.125", "j <= i & i // 40 == j // 40", {}),
    "module": ("s * 0.125", "j <= i", {}),
}
# What holds at equal lengths only: it reads one captured tensor at rows and at keys.
SQUARE = {"document", "global_local", "coordinates", "module"}


@cache
def read(name: str):
    result = read_spec(str(SPECS / f"{name}.py"), time_limit=60.0)
    assert result.attention is not None, [d.message for d in result.diagnostics]
    return result


def codes(name: str) -> set[str]:
    return {d.code for d in read(name).diagnostics}


@pytest.mark.parametrize("name", MEANS)
def test_a_modification_is_read_as_its_formula(name):
    score, mask, axes = MEANS[name]
    attention = read(name).attention
    assert (attention.mask is None) == (mask == "")
    assert {item.name: item.axes for item in attention.operands} == axes
    sizes = {"B": 2, "H": 4, "Hkv": 4, "Sq": 41, "Sk": 41 if name in SQUARE else 67}
    env = environment(sizes)
    random = np.random.default_rng(0)
    env["s"] = random.normal(size=(2, 4, 41, sizes["Sk"]))
    extent = {**sizes, "65": 65, "2": 2, "4": 4}
    tensors = {n: random.integers(0, 4, size=[extent[a] for a in shape]) for n, shape in axes.items()}
    for got, text in ((attention.score, score), (attention.mask, mask)):
        if got is not None:
            x, y = (np.asarray(evaluate(e, env, tensors), dtype=float) for e in (got, parse_expr(text)))
            np.testing.assert_allclose(*np.broadcast_arrays(x, y), rtol=1e-12, err_msg=print_expr(got))


def test_empty_rows_are_those_of_flex_attention():
    assert read("sliding_window").attention.empty_rows == "zero"
    assert read("causal").attention.empty_rows == "none"


def test_what_is_captured_is_an_argument_and_said():
    note = next(d for d in read("document").diagnostics if d.code == "CB248")
    assert "`ids`" in note.message
    assert "768 bytes" in note.message
    assert note.span is not None
    assert note.span.line == 9
    assert "CB248" not in codes("natten")


def test_example_shapes_follow_from_what_is_captured():
    shapes = {n: read(n).program.example[0].shape for n in ("alibi", "document", "prefix_lm", "relative_bias")}
    assert shapes["alibi"] == (2, 4, 128, 64)
    assert shapes["document"][2] == 96
    assert shapes["prefix_lm"][0] == 2
    assert shapes["relative_bias"][1] == 4
    assert "CB209" in codes("alibi")
    assert "CB209" not in codes("natten")


def test_a_block_mask_made_for_one_length_is_read_for_all():
    attention = read("block_mask_argument").attention
    assert "CB249" in codes("block_mask_argument")
    assert attention.allows({"Sq": 17, "Sk": 90})
    assert "CB249" in codes("module")


def test_the_lines_are_those_of_the_modifications():
    spans = read("call").attention.spans
    assert [spans[part].line + 1 for part in ("score", "mask", "normaliser")] == [14, 18, 21]
    assert read("document").attention.spans["mask"].line + 1 == 11


# Against the library itself: its public function, outside of every mode of ours.
def as_written(name: str) -> Any:
    path = SPECS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"flex_as_written_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["alibi", "capped", "sliding_window", "document", "prefix_lm"])
def test_outputs_are_those_of_flex_attention(name, monkeypatch):
    from torch.nn.attention import flex_attention as flex

    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    file = "softcap" if name == "capped" else name
    module = as_written(file)
    score = getattr(module, "score_mod", None) or getattr(module, "capped_score_mod", None)
    mask = getattr(module, "mask_mod", None)
    attention = read(file).attention
    lengths = (96, 96) if file in SQUARE else (40, 24)
    sizes = {"B": 2, "H": 4, "Hkv": 2, "Sq": lengths[0], "Sk": lengths[1], "D": 64}
    q, k, v = (t.double() for t in make_inputs(attention, sizes, seed=3)[:3])
    captured = {"document": lambda: [c.cell_contents for c in mask.__closure__ if torch.is_tensor(c.cell_contents)]}
    operands = captured.get(file, lambda: [getattr(module, i.name) for i in attention.operands])()
    operands = sorted(operands, key=lambda t: -t.numel()) if file == "document" else operands
    blocks = flex.create_block_mask(mask, 2, 4, *lengths, device="cpu") if mask else None
    want = flex.flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True)
    got = evaluate_attention(attention, [t.numpy() for t in (q, k, v, *operands)])[0]
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-9)


# Two numbers of one row of a table: reading the adapted text back does not tell them apart, and it is refused (CB405).
# What a module computes before its attention is another test's.
NOT_ADAPTED = {"coordinates", "module"}


@pytest.mark.parametrize("name", [n for n in MEANS if n not in NOT_ADAPTED])
def test_it_is_adapted_and_the_text_computes_it(name):
    result = read(name)
    attention = result.attention
    one = adapt_to(attention, result.program, "flash_fwd_scalar")

    def lift(text: bytes):
        again = one.lift(text.decode())
        return again.kernel, again.diagnostics

    kernel, problems = read_back(one.text.encode(), one.result.target, one.result.bindings, lift)
    assert problems == (), [d.message for d in problems]
    operands = {op.param: op.name for op in one.result.operands}
    binding = bind_kernel(kernel, attention, Given(one.result.bindings, operands)).binding
    h, hkv = choose_heads(attention).few
    case = fitted(Case("ragged", "", 2, h, hkv, 2 * kernel.Br + 5, 2 * kernel.Bc + 9, kernel.D), attention)
    assert case is not None
    tensors = make_inputs(attention, case.sizes, "float32", seed=1)
    by_role = roles(attention, tensors)
    extra = extra_tensors(binding, by_role, case.sizes)
    values = {**binding.values, **element_strides(binding, extra)}
    given = {r: by_role[r] for r in "qkv"} | indexed_operands(kernel, binding, extra)
    out = execute(kernel, given, case.sizes, values)
    assert not out.findings
    want, lse = formula(attention, [to_numpy(t) for t in tensors])
    live = ~np.isneginf(lse)
    np.testing.assert_allclose(out.o[live], want[live], rtol=1e-6, atol=1e-8)
    assert (out.o[~live] == 0).all()


# refusals ----------------------------------------------------------------------------------------------------------
HEADER = "import torch\nfrom torch.nn.attention.flex_attention import *\n"
MASKED = """
def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


MASK = create_block_mask(causal, None, None, 512, 512, device="cpu")
{change}


def attention(q, k, v):
    return flex_attention(q, k, v, block_mask=MASK)


def example_inputs():
    return tuple(torch.randn(1, 2, 512, 64) for _ in range(3))
"""
TWO = "def a_mask_mod(b, h, i, j):\n    return i >= j\n\n\ndef b_mask_mod(b, h, i, j):\n    return i - j < 9\n"
REFUSED = {
    "blocks left out": (
        MASKED.format(change="MASK = BlockMask.from_kv_blocks(MASK.kv_num_blocks, MASK.kv_indices, mask_mod=causal)"),
        "attention",
        "CB250",
    ),
    "two of a kind": (TWO, "attention", "CB252"),
    "no such function": (TWO, "mask_mod=window", "CB251"),
    "wrong arguments": (TWO, "score_mod=a_mask_mod", "CB251"),
    "too long to make up": (
        "LONG = torch.zeros(9000)\n\n\ndef score_mod(s, b, h, i, j):\n    return s + LONG[j]\n",
        "attention",
        "CB206",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_reason(name, tmp_path):
    text, entry, code = REFUSED[name]
    path = tmp_path / "spec.py"
    path.write_text(HEADER + text)
    result = read_spec(str(path), entry=entry)
    assert result.attention is None
    assert [d.code for d in result.diagnostics] == [code]


def test_one_of_several_is_chosen_by_name(tmp_path):
    path = tmp_path / "spec.py"
    path.write_text(HEADER + TWO)
    result = read_spec(str(path), entry="mask_mod=b_mask_mod")
    assert result.attention is not None
    assert print_expr(result.attention.mask) == "i - j < 9"

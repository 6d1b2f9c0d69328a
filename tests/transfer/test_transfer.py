"""Targets executed against the definition of attention; rules against their own examples; refusals with their codes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cubridge_engine.diagnostics import CATALOGUE
from cubridge_engine.ir.expr import Const
from cubridge_engine.ir.interp import execute
from cubridge_engine.ir.text import parse_kernel, print_kernel
from cubridge_engine.transfer import RULES, describe, semantics_of, transfer
from cubridge_engine.transfer.model import StateEdit
from cubridge_engine.transfer.tile_lists import build_tile_list
from tests.transfer.builders import FLASH, STRIDED, formula, make_attention, tensors_for

OFF = "(Sk - Sq)"
CAUSAL = f"j <= i + {OFF}"
SIZES = [(2, 4, 2, 40, 40), (1, 2, 2, 17, 70), (1, 4, 1, 70, 33), (1, 2, 1, 1, 50)]

WEIGHTS = {"normaliser": "none", "fill": "0.0", "empty_rows": "computed"}

CASES = {
    "full": {},
    "scale 1": {"score": "s"},
    "scale over D": {"score": "s / sqrt(float(D))"},
    "causal": {"mask": CAUSAL},
    "top-left": {"mask": "j <= i"},
    "window": {"mask": f"{CAUSAL} & j > i + {OFF} - 8"},
    "two-sided": {"mask": "abs(i - j) <= 9"},
    "left only": {"mask": "i - j < 11"},
    "prefix": {"mask": f"{CAUSAL} | j < 20"},
    "dilated": {"mask": "(i - j) % 3 == 0"},
    "chunked": {"mask": "i // 24 == j // 24"},
    "global and window": {"mask": f"{CAUSAL} & (j < 3 | j > i + {OFF} - 10)"},
    "softcap": {"score": "5.0 * tanh(s * 0.125 / 5.0)"},
    "softcap folded": {"score": "tanh(s * 0.025) * 5.0"},
    "gemma": {"score": "5.0 * tanh(s * 0.125 / 5.0)", "mask": f"{CAUSAL} & j > i + {OFF} - 8"},
    "alibi": {"score": "s * 0.125 + slopes[h] * float(j - i)", "operands": ("slopes:H",), "mask": CAUSAL},
    "alibi distance": {"score": "s * 0.125 - slopes[h] * float(abs(i - j))", "operands": ("slopes:H",)},
    "bias": {"score": "s * 0.125 + bias[0, h, i, j]", "operands": ("bias:1,H,Sq,Sk",)},
    "bias then softcap": {"score": "5.0 * tanh((s * 0.125 + bias[b, 0, i, j]) / 5.0)", "operands": ("bias:B,1,Sq,Sk",)},
    "bias in a table": {"score": "s * 0.125 + t[h, min(max(j - i, -3), 3) + 3]", "operands": ("t:H,7",)},
    "bool mask": {"mask": "ok[b, 0, i, j]", "operands": ("ok:B,1,Sq,Sk:bool",)},
    "padding": {"mask": "j < lens[b]", "operands": ("lens:B:int32",)},
    "documents": {"mask": "doc[b, i] == doc[b, j]", "operands": ("doc:B,Sk:int32",)},
    "sink": {"sink": "sinks[h]", "operands": ("sinks:H",), "mask": CAUSAL, "empty_rows": "computed"},
    "off by one": {"sink": "0.0", "empty_rows": "computed"},
    "finite fill": {"mask": "j <= i", "fill": "-10000.0", "empty_rows": "computed"},
    "finite padding": {
        "mask": "ok[b, 0, 0, j]",
        "fill": "-10000.0",
        "operands": ("ok:B,1,1,Sk:bool",),
        "empty_rows": "computed",
    },
    "smallest float": {"mask": "j > i", "fill": "-3.4028234663852886e38", "empty_rows": "computed"},
    "negative scale": {"score": "-0.125 * s"},
    "temperature": {"score": "s * t[h]", "operands": ("t:H",)},
    "per head window": {"mask": "j > i - w[h]", "operands": ("w:H:int32",)},
    "sigmoid": {"score": "sigmoid(s * 0.125 - log(float(Sk)))", **WEIGHTS},
    "sigmoid causal": {"score": "sigmoid(s * 0.125 + bias[h])", "mask": CAUSAL, "operands": ("bias:H",), **WEIGHTS},
    "relu": {"score": "relu(s * 0.125)", "mask": "j <= i", "divisor": "float(Sk)", **WEIGHTS},
    "relu squared": {"score": "relu(s * 0.125) * relu(s * 0.125)", **WEIGHTS},
    "relu over its sum": {"score": "relu(s * 0.125)", **WEIGHTS, "normaliser": "sum", "divisor": "l + 1.0e-6"},
    "exp": {"score": "exp(s * 0.125)", **WEIGHTS},
    "linear": {"score": "s * 0.125", "mask": CAUSAL, **WEIGHTS},
    "polynomial": {"score": "1.0 + s * 0.125 + s * 0.125 * (s * 0.125) * 0.5", "mask": CAUSAL, **WEIGHTS},
    "retention": {
        "score": "s * 0.125 * pow(1.0 - pow(2.0, -5.0 - float(h)), float(i - j))",
        "mask": "j <= i",
        **WEIGHTS,
        "normaliser": "sum",
        "divisor": "max(abs(l), 1.0)",
    },
    "retention, absolute sum": {
        "score": "s * 0.125 * pow(0.96875, float(i - j))",
        "mask": "j <= i",
        **WEIGHTS,
        "normaliser": "abs_sum",
        "divisor": "min(max(l, 1.0), 50000.0)",
    },
}


def problem(attention, shape):
    sizes = dict(zip(("B", "H", "Hkv", "Sq", "Sk"), shape, strict=True)) | {"D": 8}
    if any(item.name == "doc" for item in attention.operands):
        sizes["Sq"] = sizes["Sk"]
    return sizes, tensors_for(attention, sizes)


def run(target, result, attention, shape, mode="early"):
    sizes, tensors = problem(attention, shape)
    plain = {n: v for n, v in sizes.items() if n != "D"}
    lists = {o.name: build_tile_list(o.tiles, sizes, tensors) for o in result.operands if o.tiles is not None}
    out = execute(target, {**tensors, **lists}, plain, result.bindings, async_mode=mode)
    return out, formula(attention, tensors, sizes)


@pytest.mark.parametrize("name", CASES)
def test_target_equals_the_spec(name, flash):
    attention = make_attention(**CASES[name])
    result = transfer(flash, attention)
    assert result.target is not None, result.diagnostics
    for n, shape in enumerate(SIZES):
        out, (o, lse, dead) = run(result.target, result, attention, shape, "late" if n % 2 else "early")
        assert not out.findings
        live = ~dead
        np.testing.assert_allclose(out.o[live], o[live], rtol=1e-6, atol=1e-7)
        assert (out.o[dead] == 0).all()
        if (
            out.lse is not None and name != "smallest float"
        ):  # its LSE on dead rows is a sentinel, which is carried as a smaller one
            np.testing.assert_allclose(out.lse[live], lse[live], rtol=1e-6, atol=1e-6)


def test_exact_empty_rows_give_nan(flash):
    attention = make_attention(mask="j <= i - 5")
    result = transfer(flash, attention, empty_rows="exact")
    out, (o, _, dead) = run(result.target, result, attention, SIZES[0])
    assert dead.any()
    np.testing.assert_allclose(out.o, o, rtol=1e-6, atol=1e-7)
    assert np.isnan(out.o[dead]).all()
    kept = transfer(flash, attention)
    assert [d.code for d in kept.diagnostics] == ["CB310"]


@pytest.mark.parametrize("rule", [r for r in RULES if r.example], ids=lambda r: r.name)
def test_rule_example(rule):
    example = rule.example
    kernel = parse_kernel(
        FLASH.replace('param 6 causal : "int" : flag', 'param 6 causal : "int" : flag\n  param 7 kv : "int" : Hkv')
    )
    if rule.name == "operands":
        kernel = parse_kernel(FLASH)
    if rule.name == "paged":
        kernel = parse_kernel(STRIDED)
    spec = dict(example.spec)
    policy = spec.pop("policy", "keep")
    operands = [spec.pop("operand")] if "operand" in spec else []
    operands += ["sinks:H"] if "sinks" in str(spec) else []
    result = transfer(kernel, make_attention(**spec, operands=tuple(operands)), empty_rows=policy)
    before, after = print_kernel(kernel), print_kernel(result.target)
    assert example.before in before
    for line in example.after:
        assert line in after
        assert line not in before
    step = next(s for s in result.steps if s.rule == rule.name)
    assert {c.name for c in step.checks} == set(rule.checks)


def test_dormant_features_need_no_edit(flash):
    for spec in ({}, {"mask": CAUSAL}, {"mask": f"{CAUSAL} & j >= 0"}):
        result = transfer(flash, make_attention(**spec))
        assert result.edits == ()
        assert result.bindings["causal"] == (1 if spec else 0)


def test_large_windows_are_not_mistaken_for_no_window(flash):
    result = transfer(flash, make_attention(mask=f"{CAUSAL} & j > i + {OFF} - 4096"))
    assert {s.rule for s in result.steps} >= {"mask", "kv_range"}


def test_kv_range_skips_tiles(flash):
    attention = make_attention(mask=f"{CAUSAL} & j > i + {OFF} - 8")
    result = transfer(flash, attention)
    out, _ = run(result.target, result, attention, (1, 1, 1, 160, 160))
    full, _ = run(flash, result, attention, (1, 1, 1, 160, 160))
    assert out.tiles < full.tiles / 2


def test_binding_texts_are_over_the_head_dimension(flash):
    result = transfer(flash, make_attention(score="s / sqrt(float(D))"))
    assert "D" in result.binding_texts["c"]
    assert np.isclose(result.bindings["c"], 1 / np.sqrt(8) / np.log(2))


REFUSALS = {
    "CB301": {"normaliser": "sparsemax"},
    "CB302": {"specialised": {"D": 8, "Dv": 4}},
    "CB304": {"specialised": {"D": 128}},
    "CB305": {"axes": ("b", "i", "h", "d")},
    "CB309": {"score": "s + bias[h, i, j]", "operands": ("bias:1,H,Sq,Sk",)},
    "CB312": {"score": "s + bias[h]", "operands": ("bias:H:float64",)},
    "CB318": {"head_map": "h % Hkv"},
    "CB319": {"score": "sigmoid(s * 0.125)", **WEIGHTS, "lse": True},
}


@pytest.mark.parametrize("code", REFUSALS)
def test_refusals(code, flash):
    result = transfer(flash, make_attention(**REFUSALS[code]))
    assert result.target is None
    assert {d.code for d in result.diagnostics} == {code}
    assert result.diagnostics[0].help


def test_an_operand_that_nothing_reads_is_left_out_and_said(flash):
    result = transfer(flash, make_attention(operands=("bias:H",)))
    assert result.target is not None
    assert "CB316" in [d.code for d in result.diagnostics]
    assert not any("bias" in p.name for p in result.target.params)


def test_another_element_type_is_a_note_and_not_a_refusal(flash):
    result = transfer(flash, make_attention(dtype="float32", score="s + t[h]", operands=("t:H",)))
    assert result.target is not None
    assert [d.code for d in result.diagnostics] == ["CB303"]
    assert [o.dtype for o in result.operands] == ["io"]


def test_refusals_about_the_kernel():
    no_lse = parse_kernel("\n".join(line for line in FLASH.splitlines() if "store_row" not in line))
    assert [d.code for d in transfer(no_lse, make_attention(lse=True)).diagnostics] == ["CB306"]
    log2 = parse_kernel(FLASH.replace("m * c * 0.6931471805599453 + log(l)", "m * c + log2(l)"))
    assert [d.code for d in transfer(log2, make_attention(lse=True)).diagnostics] == ["CB315"]
    capped = parse_kernel(FLASH.replace("    mask S", "    score S = tanh(s)\n    mask S"))
    assert [d.code for d in transfer(capped, make_attention()).diagnostics] == ["CB307"]
    inlined = FLASH.replace("    row correction z = exp2(m * c - ms); lanes=4\n", "")
    inlined = parse_kernel(inlined.replace("l * z", "l * exp2(m * c - ms)").replace("s * z", "s * exp2(m * c - ms)"))
    sigmoid = make_attention(score="sigmoid(s * 0.125)", **WEIGHTS)
    assert [d.code for d in transfer(inlined, sigmoid).diagnostics] == ["CB320"]
    weights = transfer(parse_kernel(FLASH), sigmoid).target
    assert [d.code for d in transfer(weights, make_attention()).diagnostics] == ["CB301"]
    late = parse_kernel(FLASH.replace("    row_reduce row_max", "    score S = tanh(s)\n    row_reduce row_max"))
    assert [d.code for d in transfer(late, make_attention()).diagnostics] == ["CB308"]
    unsafe = parse_kernel(FLASH.replace("where(mn == -inf, 0.0, mn * c)", "mn * c"))
    done = transfer(unsafe, make_attention(mask="j > i"))
    assert done.target is not None
    assert [e for _, e in done.edits if isinstance(e, StateEdit)] == [StateEdit("m", Const(-1e30))]
    never = parse_kernel(FLASH.replace("where(mn == -inf, 0.0, mn * c)", "where(mn < -1e20, -inf, mn * c)"))
    assert [
        d.data["check"] for d in transfer(never, make_attention(mask="j > i")).diagnostics if d.code == "CB313"
    ] == ["empty-row-safe"]


def test_semantics_and_words(flash):
    sem = semantics_of(flash)
    assert (sem.lse, sem.empty_rows, sem.empty_tile_safe, sem.sink, sem.tail) == ("ln", "zero", True, None, True)
    assert describe(flash).startswith("GQA attention, causal (bottom-right) when causal, softmax, LSE natural log")
    assert "mask" not in describe(flash, {"causal": 0})
    assert describe(flash, {"causal": 1}).startswith("GQA attention, causal (bottom-right), softmax")


def test_every_code_has_a_way_out():
    assert all(row.help for code, row in CATALOGUE.items() if code.startswith("CB3"))


COLUMN_LOOP = """cuir 1
kernel scalar; family=scalar; threads=128 {
  tiles Br=16 Bc=16 D=8
  param 0 Q : "const float *" : q
  param 1 K : "const float *" : k
  param 2 V : "const float *" : v
  param 3 O : "float *" : o
  param 4 scale : "float" : scale
  grid q_tile = bx
  grid b = bz
  grid h = by
  grid hk = h
  unit 1.0
  alloc shared Qs[1, 16, 8] float32
  alloc shared Ks[1, 16, 8] float32
  alloc shared Vs[1, 16, 8] float32
  alloc register S[1, 16, 16] float32
  alloc register O[1, 16, 8] float32
  copy Qs[0] <- q[q0 : +16]; limit=Sq; is_async=false
  fill O = 0.0
  row init m = -inf; lanes=1
  row init l = 0.0; lanes=1
  for kv0 in 0 .. Sk; step=16; role=kv_loop {
    copy Ks[0] <- k[kv0 : +16]; limit=Sk; is_async=false
    copy Vs[0] <- v[kv0 : +16]; limit=Sk; is_async=false
    barrier cta
    fill S = 0.0
    mma qk S += Qs @ Ks; slot=0; atom=fma; a_slot=0
    map scale S <- S = s * scale
    mask S keep j < Sk; fill=-inf; guard=none
    row_reduce row_max mn <- S; init=m; lanes=1
    row guard ms = where(mn == -inf, 0.0, mn); lanes=1
    row correction z = exp(m - ms); lanes=1
    row other m = mn; lanes=1
    map exp S <- S = exp(s - ms)
    row_reduce row_sum l <- S; init=l * z; lanes=1
    map rescale O <- O = s * z
    mma pv O += S @ Vs; slot=0; atom=fma
    barrier cta
  }
  store_tile o <- O = s * where(l == 0.0, 0.0, 1.0 / l); limit=Sq
}
"""


@pytest.mark.parametrize("name", ["gemma", "two-sided", "sink", "alibi", "bias", "finite fill", "chunked"])
def test_a_loop_over_columns_in_natural_units(name):
    kernel = parse_kernel(COLUMN_LOOP)
    attention = make_attention(**{**CASES[name], "dtype": "float32", "head_map": "h"})
    result = transfer(kernel, attention)
    assert result.target is not None, result.diagnostics
    for shape in ((1, 2, 2, 40, 40), (2, 1, 1, 17, 70), (1, 2, 2, 70, 33)):
        out, (o, _, dead) = run(result.target, result, attention, shape)
        assert not out.findings
        np.testing.assert_allclose(out.o[~dead], o[~dead], rtol=1e-6, atol=1e-7)


def test_an_always_causal_kernel_has_its_mask_replaced():
    text = FLASH.replace("!causal | ", "").replace("if causal {", "if true {").replace("causal & kv0", "kv0")
    kernel = parse_kernel(text.replace('  param 6 causal : "int" : flag\n', ""))
    attention = make_attention()
    result = transfer(kernel, attention)
    assert [s.rule for s in result.steps if s.edits] == ["kv_range", "mask"]
    out, (o, _, _) = run(result.target, result, attention, SIZES[0])
    np.testing.assert_allclose(out.o, o, rtol=1e-6, atol=1e-7)


def test_a_deeper_pipeline_keeps_its_prologue():
    text = FLASH.replace("[2, 16, 8]", "[3, 16, 8]").replace("% 2", "% 3").replace("t + 1", "t + 2")
    first = "  copy Ks[0] <- k[0 : +16]; limit=Sk; is_async=true; vector_bytes=16\n"
    first += first.replace("Ks", "Vs").replace("k[0", "v[0") + "  cp_commit\n"
    second = first.replace("s[0]", "s[1]").replace("[0 : ", "[16 : ")
    assert first in text
    kernel = parse_kernel(text.replace(first, first + second).replace("cp_wait 1", "cp_wait 2"))
    attention = make_attention(mask=f"{CAUSAL} & j > i + {OFF} - 20")
    result = transfer(kernel, attention)
    for shape in SIZES:
        out, (o, _, dead) = run(result.target, result, attention, shape)
        np.testing.assert_allclose(out.o[~dead], o[~dead], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"mask": f"{CAUSAL} & j > i + {OFF} - 8"}, "causal (bottom-right) and window of 8 keys"),
        ({"mask": f"j <= i + {OFF} | j < 24"}, "causal (bottom-right) or the first 24 keys"),
        ({"mask": "j <= i & j >= i - 7"}, "causal (top-left) and window of 8 keys (top-left)"),
        ({"score": "5.0 * tanh(s * 0.125 / 5.0)"}, "score tanh(s"),
        ({"sink": "sinks[h]", "operands": ("sinks:H",)}, "sink sinks[h]"),
    ],
)
def test_a_target_is_described(spec, words, flash):
    result = transfer(flash, make_attention(**spec))
    assert words in describe(result.target, result.bindings)


SIDES = ("i", f"i + {OFF}", "i // 7 * 7", "2 * i", "Sk - 5", "0", "lens[b]", "w[h] + i")
KEYS = ("j", "j + 1", "2 * j", "j // 5", "-j", "i - j", "abs(i - j)", "(j - i) % 3")
SCORES = (
    "s * 0.125",
    "tanh(s * 0.1) * 3.0",
    "s * 0.2 + t[h] * float(j - i)",
    "7.0 * tanh((s * 0.125 + bias[b, h, i, j]) / 7.0)",
    "where(i == j, s * 0.1, s * 0.2)",
    "-s * 0.1 + 1.0",
    "exp(-abs(s) * 0.01) * s * 0.1",
    "(s * 0.125 - t[h]) / 2.0",
)
OPERANDS = {
    "lens": "lens:B:int32",
    "w": "w:H:int32",
    "ok": "ok:B,1,Sq,Sk:bool",
    "t": "t:H",
    "bias": "bias:B,H,Sq,Sk",
    "sk": "sk:H",
}


def random_spec(rng, dtype):
    """A spec nobody would write: any mask of comparisons, any score, sometimes a sink or a finite fill."""

    def mask(depth=0):
        if depth < 2 and rng.random() < 0.5:
            return f"({mask(depth + 1)}) {rng.choice('&|')} ({mask(depth + 1)})"
        if rng.random() < 0.1:
            return "ok[b, 0, i, j]"
        op = rng.choice(("<", "<=", ">", ">=", "==", "!="))
        return f"{rng.choice(KEYS)} {op} {rng.choice(SIDES)} + {rng.randint(-20, 20)}".replace("+ -", "- ")

    chosen = mask()
    sink = "sk[h]" if rng.random() < 0.2 else None
    fill = "-10000.0" if rng.random() < 0.15 else None
    score = rng.choice(SCORES)
    used = tuple(text for name, text in OPERANDS.items() if f"{name}[" in f"{chosen} {score} {sink}")
    rows = "computed" if fill or sink else "nan"
    return {
        "score": score, "mask": chosen, "sink": sink, "fill": fill, "operands": used, "empty_rows": rows, "dtype": dtype
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_random_specs_are_met(seed, flash):
    rng = random.Random(seed)
    kernel, dtype = (flash, "float16") if seed % 2 else (parse_kernel(COLUMN_LOOP), "float32")
    spec = random_spec(rng, dtype)
    attention = make_attention(**spec, head_map="h // (H // Hkv)" if seed % 2 else "h")
    result = transfer(kernel, attention)
    assert result.target is not None, (spec, result.diagnostics)
    for shape in ((1, 2, 2, 40, 40), (2, 2, 2, 17, 70), (1, 2, 2, 50, 33)):
        out, (o, _, dead) = run(result.target, result, attention, shape)
        assert not out.findings
        np.testing.assert_allclose(out.o[~dead], o[~dead], rtol=1e-5, atol=1e-6, err_msg=str(spec))
        assert (out.o[dead] == 0).all(), spec

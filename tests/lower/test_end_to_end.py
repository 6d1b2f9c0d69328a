"""Both expert kernels: lifted, transferred, lowered, lifted again, executed; a careless hand is rejected."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from cubridge_engine.ir.interp import execute
from cubridge_engine.lift import lift
from cubridge_engine.lower import differences, identifiers, lower, read_back
from cubridge_engine.source import parse
from cubridge_engine.transfer import transfer
from cubridge_engine.transfer.tile_lists import build_tile_list
from tests.lower.builders import ROOT
from tests.lower.test_lower import CASES
from tests.transfer.builders import formula, make_attention, tensors_for

MORE = {
    "clipped_distance": {
        "score": "s * 0.125 + table[h, min(max(j - i, -32), 32) + 32]",
        "operands": ("table:H,65:float16",),
    },
    "table_by_bucket": {"score": "s * 0.125 + table[min(abs(j - i), 31), h]", "operands": ("table:32,H:float16",)},
    "bias_of_every_other_batch": {"score": "s * 0.125 + m[b % 2, i, j]", "operands": ("m:2,Sq,Sk:float16",)},
    "temperature": {"score": "s * exp(tau[h])", "operands": ("tau:H",)},
    "documents": {"mask": "doc[b, i] == doc[b, j]", "operands": ("doc:B,Sk:int64",)},
    "documents_and_sink": {
        "score": "5.0 * tanh(s * 0.025)",
        "mask": "doc[b, i] == doc[b, j] & j <= i",
        "operands": ("doc:B,Sk:int64", "sinks:H"),
        "sink": "sinks[h]",
        "empty_rows": "computed",
    },
    "documents_of_sigmoids": {
        "score": "sigmoid(s * 0.125)",
        "mask": "doc[b, i] == doc[b, j]",
        "operands": ("doc:B,Sk:int64",),
        "normaliser": "none",
        "fill": "0.0",
        "empty_rows": "computed",
    },
    "heads_from_the_end": {"head_map": "1 - h % 2"},
    "tiles_of_an_image": {"mask": "i % 16 % 4 + i // 16 % 2 * 4 >= j % 16 // 4 + j // 16 % 2 * 4"},
    "window_of_each_head": {"mask": "j >= i - where(h < 1, 3, 9) & j <= i + where(h < 1, 3, 9)"},
    "table_from_the_middle": {"score": "s * 0.125 + table[j - i + 160, h]", "operands": ("table:320,H:float16",)},
    "evicted_per_head": {
        "score": "s * 0.125 + slopes[h] * float(j - i)",
        "mask": "j <= i & i < last[b, h, j]",
        "operands": ("last:B,H,Sk:int32", "slopes:H"),
    },
}
MORE["blocks"] = {"mask": "j <= i & i // 256 == j // 256"}
MORE["global"] = {"mask": "j >= i - 64 & j <= i + 64 | i < 16 | j < 16"}
MORE["flags"] = {
    "score": "s * 0.125 + (1.0 - float(keep[b, j])) * -10000.0",
    "operands": ("keep:B,Sk:bool",),
}
FAST_CASES = ("gemma2", "alibi", "bias", "gpt_oss", "documents", "blocks", "global", "padding", "flags")
KEYS = {"blocks": 40}  # all rows of the second Q tile have no key
SM90_CASES = ("gemma2", "alibi", "gpt_oss", "documents")
SCALAR_CASES = ("gemma2", "alibi", "bias", "gpt_oss", "finite_fill", "padding")


@cache
def original(kernel):
    source = parse("kernel.cu", (ROOT / "expert_kernels" / kernel / "kernel.cu").read_bytes())
    return lift(source), source


def relift(data):
    again = lift(parse("adapted.cu", data))
    return again.kernel, again.diagnostics


@cache
def adapted(kernel, name):
    spec = dict(CASES.get(name) or MORE[name])
    policy = spec.pop("policy", "keep")
    if kernel == "flash_fwd_scalar":
        spec["dtype"] = "float32"
        spec["operands"] = tuple(o.replace("float16", "float32") for o in spec.get("operands", ()))
    attention = make_attention(**spec)
    lifted, source = original(kernel)
    result = transfer(lifted.kernel, attention, empty_rows=policy, reserved=identifiers(source))
    lowered = lower(lifted, result, source, spec="spec.py")
    assert lowered.text is not None, (result.diagnostics, lowered.diagnostics)
    return attention, result, lowered


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        *(("flash_fwd_sm80", n) for n in (*CASES, *MORE)),
        *(("flash_fwd_scalar", n) for n in SCALAR_CASES),
        *(("flash_fwd_sm90_plain", n) for n in SM90_CASES),
        *(("flash_fwd_sm90", n) for n in FAST_CASES),
    ],
)
def test_the_adapted_text_means_the_spec(kernel, name):
    attention, result, lowered = adapted(kernel, name)
    got, diagnostics = read_back(lowered.text, result.target, result.bindings, relift, result.operands)
    assert diagnostics == ()
    sizes = {"B": 2, "H": 4, "Hkv": 2, "Sq": original(kernel)[0].kernel.Br + 6, "Sk": 150, "D": 64}  # two Q tiles
    if name in KEYS:
        sizes |= {"Sq": 260, "Sk": KEYS[name]}
    tensors = tensors_for(attention, sizes)
    want, _, dead = formula(attention, tensors, sizes)
    given = {role: tensors[role] for role in "qkv"}
    values = dict(result.bindings)
    for operand in result.operands:
        made = build_tile_list(operand.tiles, sizes, tensors) if operand.tiles is not None else tensors[operand.name]
        given[operand.param] = made.squeeze()
    out = execute(got, given, {n: v for n, v in sizes.items() if n != "D"}, values)
    assert not out.findings
    np.testing.assert_allclose(out.o[~dead], want[~dead], rtol=1e-6, atol=1e-8)


def test_identifiers_keep_their_64_bits():
    """Document ids may be hashes: two that differ in their upper half only are different documents."""
    text = adapted("flash_fwd_sm80", "documents")[2].text.decode()
    assert "const long long row_doc = doc_b[min(row, sq - 1)];" in text
    assert "const long long col_doc = doc_b[min(col, sk - 1)];" in text
    assert "static_cast<int>(doc" not in text


def test_conditions_between_wgmma_have_no_branches():
    """ptxas serialises the products around a branch; a plain conjunction it keeps in predicates by itself."""
    text = adapted("flash_fwd_sm90", "global")[2].text.decode()
    assert "(j < min(p.sk, i + ahead)) & (((j >= i - 64) & (j <= i + 64)) | (i < 16) | (j < 16)) ?" in text
    assert "s[nb][e] = j < min(p.sk, i + ahead) && " in adapted("flash_fwd_sm90", "gemma2")[2].text.decode()
    assert " & " not in "".join(h.new for h in adapted("flash_fwd_sm80", "global")[2].hunks)


def test_no_column_is_read_where_there_are_no_keys():
    """The fast kernel looks at one tile then: the last column, which stands for those behind the end, is none."""
    text = adapted("flash_fwd_sm90", "documents")[2].text.decode()
    assert "= p.sk > 0 ? doc_b[min(j, p.sk - 1)] : 0;" in text
    assert "= doc_b[min(i, p.sq - 1)];" in text, "there is always a row"
    lifted, source = original("flash_fwd_sm90")
    result = transfer(lifted.kernel, make_attention(**MORE["documents"]), tile_lists=False)
    text = lower(lifted, result, source).text.decode()  # on every tile, where there is no list to follow
    test = text.index("    if (p.sk > 0) {\n#pragma unroll\n      for (int nb = 0;")
    assert "= doc_b[min(j, p.sk - 1)];" in text[test : test + 400]


def test_the_hand_made_anchors_agree_with_the_lifted_ones():
    from tests.lower.test_lower import adapt

    for name in ("gemma2", "gpt_oss", "bias"):
        by_hand, _ = adapt(**CASES[name])
        hunks = {h.new.strip() for h in by_hand.hunks}
        assert hunks == {h.new.strip() for h in adapted("flash_fwd_sm80", name)[2].hunks}


MISSES = {
    "window off by one": ("gemma2", b"col <= row + sk - sq - 1024", b"col < row + sk - sq - 1024"),
    "guard not widened": ("gemma2", b" || kv0 <= q0 + Br + sk - sq - 1025", b""),
    "prologue not moved": ("gemma2", b"v_stride_row, kv_begin, sk", b"v_stride_row, 0, sk"),
    "loop start not moved": ("gemma2", b"int tile = kv_begin;", b"int tile = 0;"),
    "cap in scaled units": ("gemma2", b"scale_log2 * 2.f / 50.f", b"2.f / 50.f"),
    "cap doubled": ("gemma2", b"2.f * cap_out", b"cap_out"),
    "slope sign": ("alibi", b"s[nb][e] += (distance", b"s[nb][e] -= (distance"),
    "distance of the first row": ("alibi", b" - 8 * (e / 2))) * slope", b")) * slope"),
    "distance of another tile": ("alibi", b"static_cast<float>(kv0 + 2", b"static_cast<float>(kv0 + Bc + 2"),
    "slope in natural units": ("alibi", b"slopes[h] / (scale_log2 * kLn2)", b"slopes[h]"),
    "slope of another head": ("alibi", b"slopes[h]", b"slopes[hk]"),
    "sink on four lanes": ("gpt_oss", b"lane % 4 == 0 ? 1.f : 0.f", b"1.f"),
    "sink dropped": ("gpt_oss", b"m[r] = sink", b"m[r] = -INFINITY"),
    "bias row by the wrong stride": ("bias", b"row * bias_stride_row", b"row * bias_stride_h"),
    "one document for a tile": (
        "documents",
        b"col_doc = doc_b[min(col, sk - 1)]",
        b"col_doc = doc_b[min(kv0, sk - 1)]",
    ),
    "documents of another batch": ("documents", b"row_doc = doc_b[min(row", b"row_doc = doc[min(row"),
    "clamped to another row": ("documents", b"doc_b[min(row, sq - 1)]", b"doc_b[min(row, sq - 2)]"),
    "head map by modulo": ("softcap", b"h / (heads / kv_heads)", b"h % kv_heads"),
    "fill turned into -inf": ("finite_fill", b"s[nb][e] = masked", b"s[nb][e] = -INFINITY"),
}


@pytest.mark.parametrize("miss", MISSES)
def test_a_near_miss_in_the_text_does_not_read_back(miss):
    name, old, new = MISSES[miss]
    _, result, lowered = adapted("flash_fwd_sm80", name)
    assert old in lowered.text
    kernel, _ = relift(lowered.text.replace(old, new))
    assert kernel is not None
    assert differences(result.target, kernel, result.bindings)


FAST_MISSES = {
    "sink on four lanes": ("gpt_oss", b"l[r] = threadIdx.x % 4 == 0 ? 1.f : 0.f", b"l[r] = 1.f"),
    "sink of another head": ("gpt_oss", b"sinks[item.bh % p.heads]", b"sinks[item.bh / p.heads]"),
    "sink in natural units": ("gpt_oss", b" * 1.4426950408889634f", b""),
    "bias of another head": ("bias", b"bias + item.bh % p.heads * p.bias", b"bias + item.bh / p.heads * p.bias"),
    "blocks untested in the tile that is always visited": ("blocks", b" & (j >= i / 256 * 256)", b""),
    "first column of a block masked": ("blocks", b"j >= i / 256 * 256", b"j > i / 256 * 256"),
    "guard not widened": ("blocks", b" || (item.q0 + Br - 1) / 256 > kv0 / 256", b""),
}


@pytest.mark.parametrize("miss", FAST_MISSES)
def test_a_near_miss_in_the_fast_kernel_does_not_read_back(miss):
    name, old, new = FAST_MISSES[miss]
    _, result, lowered = adapted("flash_fwd_sm90", name)
    assert old in lowered.text
    kernel, _ = relift(lowered.text.replace(old, new))
    assert kernel is None or differences(result.target, kernel, result.bindings)


def test_softcap_after_the_mask_does_not_read_back():
    _, result, lowered = adapted("flash_fwd_sm80", "softcap")
    hunk = max(lowered.hunks, key=lambda h: len(h.new))
    _, source = original("flash_fwd_sm80")
    after = source.data.index(b"    // m_new = max(m, rowmax(S))")
    setup = min(lowered.hunks, key=lambda h: h.start)
    text = source.data[: setup.start] + setup.new.encode() + source.data[setup.start : after] + hunk.new.encode()
    kernel, _ = relift(text + source.data[after:])
    assert kernel is not None
    assert differences(result.target, kernel, result.bindings)

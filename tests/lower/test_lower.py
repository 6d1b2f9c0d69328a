"""Hunks on the real flash_fwd_sm80: goldens, odd files, stale text, and nothing else touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubridge_engine.lower import (
    StaleText,
    apply_hunks,
    header_lines,
    identifiers,
    lower,
    parse_header,
    stale_diagnostic,
    unified_diff,
    with_header,
)
from cubridge_engine.transfer import transfer
from tests.lower.builders import SM80, hand_lift
from tests.transfer.builders import make_attention

GOLDEN = Path(__file__).parent / "golden"

CAUSAL = "j <= i + (Sk - Sq)"
WINDOW = f"{CAUSAL} & j > i + (Sk - Sq) - 1024"
CASES = {
    "softcap": {"score": "50.0 * tanh(s * 0.125 / 50.0)"},
    "window": {"mask": WINDOW},
    "gemma2": {"score": "50.0 * tanh(s * 0.125 / 50.0)", "mask": WINDOW},
    "two_sided": {"mask": "abs(i - j) <= 200"},
    "alibi": {"score": "s * 0.125 + slopes[h] * float(j - i)", "operands": ("slopes:H",), "mask": CAUSAL},
    "bias": {"score": "s * 0.125 + bias[0, h, i, j]", "operands": ("bias:1,H,Sq,Sk:float16",)},
    "bool_mask": {"mask": "keep[b, 0, i, j]", "operands": ("keep:B,1,Sq,Sk:bool",)},
    "padding": {"mask": "j < lens[b]", "operands": ("lens:B:int32",)},
    "prefix": {"mask": f"{CAUSAL} | j < 24"},
    "gpt_oss": {"sink": "sinks[h]", "operands": ("sinks:H:float16",), "mask": f"{CAUSAL} & j > i + (Sk - Sq) - 128"},
    "finite_fill": {"mask": "j <= i", "fill": "-10000.0", "empty_rows": "computed"},
    "head_map": {"head_map": "h % Hkv"},
    "exact": {"mask": "j <= i", "policy": "exact"},
    "chunked": {"mask": "i // 256 == j // 256"},
}


def adapt(data=SM80, **spec):
    policy = spec.pop("policy", "keep")
    lifted, source = hand_lift(data)
    # These anchors, written by hand, have no walk: a mask that is data visits every tile.
    result = transfer(lifted.kernel, make_attention(**spec), empty_rows=policy, tile_lists=False)
    return lower(lifted, result, source, spec="somewhere/spec.py"), source


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    lowered, source = adapt(**CASES[name])
    assert not lowered.diagnostics
    diff = unified_diff("kernel.cu", source.data, lowered.text, context=0)
    path = GOLDEN / f"{name}.diff"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(diff)
    assert diff == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_bytes_outside_hunks_are_untouched(name):
    lowered, source = adapt(**CASES[name])
    rebuilt, at = b"", 0
    for hunk in lowered.hunks:
        assert source.data[hunk.start : hunk.end].decode() == hunk.old
        rebuilt += source.data[at : hunk.start] + hunk.new.encode()
        at = hunk.end
        assert hunk.line == source.data[: hunk.start].count(b"\n")
    assert rebuilt + source.data[at:] == lowered.text
    assert len(lowered.hunks) <= 11


def test_dormant_causal_needs_no_hunk():
    lowered, source = adapt(mask=CAUSAL)
    assert lowered.hunks == ()
    assert lowered.text == source.data
    assert "// cubridge: set causal=1" in lowered.header_lines


@pytest.mark.parametrize("name", ["gemma2", "bias", "gpt_oss"])
def test_crlf_stays_crlf(name):
    crlf = SM80.replace(b"\n", b"\r\n")
    lowered, _ = adapt(crlf, **CASES[name])
    plain, _ = adapt(**CASES[name])
    assert lowered.text.replace(b"\r\n", b"\n") == plain.text
    assert lowered.text.count(b"\n") == lowered.text.count(b"\r\n")


def test_tabs_stay_tabs():
    tabs = b"\n".join(
        b"\t" * ((len(line) - len(line.lstrip(b" "))) // 2) + line.lstrip(b" ") for line in SM80.split(b"\n")
    )
    lowered, _ = adapt(tabs, **CASES["softcap"])
    new = [line for h in lowered.hunks for line in h.new.splitlines() if line.strip() and not line.startswith("#")]
    assert new
    assert all(line.startswith("\t") and "  " not in line for line in new)


def test_comments_in_odd_places_survive():
    odd = SM80.replace(b"(col >= sk || (causal", b"(col >= sk /* the tail */ || (causal")
    odd = odd.replace(
        b"const int n_tiles = (kv_end + Bc - 1) / Bc;", b"const int n_tiles = /* up */ (kv_end + Bc - 1) / Bc;"
    )
    data = odd.replace(b"/* the tail */ ", b"")
    lowered, _ = adapt(data, mask="abs(i - j) <= 200")
    assert b"/* up */ min((kv_end + Bc - 1) / Bc," in lowered.text


def test_allman_braces_are_kept():
    allman = SM80.replace(b") {\n", b")\n{\n")
    lowered, _ = adapt(
        allman.replace(
            b"if (col >= sk || (causal && col > row + sk - sq))\n{",
            b"if (col >= sk || (causal && col > row + sk - sq)) {",
        ),
        **CASES["softcap"],
    )
    new = "".join(h.new for h in lowered.hunks)
    assert "++e)\n" in new
    assert ") {" not in new


def test_new_names_do_not_collide():
    taken = SM80.replace(b"// Copies 16 bytes", b"// kv_begin and cap_in are taken\n// Copies 16 bytes")
    lowered, _ = adapt(taken, **CASES["gemma2"])
    text = "".join(h.new for h in lowered.hunks)
    assert "kv_begin_2" in text
    assert "cap_in_2" in text


def test_a_launch_outside_a_launcher_is_refused():
    lifted, source = hand_lift()
    from dataclasses import replace

    calls = (replace(lifted.anchors.calls[0], enclosing="main"),)
    lifted = replace(lifted, anchors=replace(lifted.anchors, calls=calls))
    result = transfer(lifted.kernel, make_attention(**CASES["bias"]))
    lowered = lower(lifted, result, source)
    assert [d.code for d in lowered.diagnostics] == ["CB404"]
    assert lowered.text is None


@pytest.mark.parametrize(
    ("drop", "spec"),
    [
        ({"score": ()}, "softcap"),
        ({"mask": ()}, "window"),
        ({"kv_loop": None}, "window"),
        ({"state": ()}, "gpt_oss"),
        ({"head": None}, "head_map"),
        ({"epilogue": None}, "exact"),
        ({"signature": None}, "bias"),
    ],
)
def test_a_missing_anchor_is_named(drop, spec):
    from dataclasses import replace

    lifted, source = hand_lift()
    lifted = replace(lifted, anchors=replace(lifted.anchors, **drop))
    case = dict(CASES[spec])
    result = transfer(
        lifted.kernel,
        make_attention(**{k: v for k, v in case.items() if k != "policy"}),
        empty_rows=case.get("policy", "keep"),
    )
    lowered = lower(lifted, result, source)
    assert [d.code for d in lowered.diagnostics] == ["CB401"]


def test_a_name_out_of_scope_is_named():
    from dataclasses import replace

    from cubridge_engine.ir.anchors import Names

    lifted, source = hand_lift()
    anchors = lifted.anchors
    anchors = replace(anchors, setup_names=Names({}), kv_loop=replace(anchors.kv_loop, names=Names({})))
    result = transfer(lifted.kernel, make_attention(mask=WINDOW))
    lowered = lower(replace(lifted, anchors=anchors), result, source)
    assert [(d.code, d.data["name"]) for d in lowered.diagnostics] == [("CB402", "q0")]


def test_stale_text_is_refused():
    lowered, source = adapt(**CASES["window"])
    changed = source.data.replace(b"tile < n_tiles", b"tile <= n_tiles").replace(b"int tile = 0", b"int tile = 1")
    with pytest.raises(StaleText) as stale:
        apply_hunks(changed, lowered.hunks)
    assert stale_diagnostic(stale.value, "kernel.cu").code == "CB403"


def test_header_round_trip():
    lowered, source = adapt(**CASES["bias"])
    lines = header_lines("spec.py", "ir", {"scale_log2": "1.4426950408889634 / sqrt(float(D))"}, ())
    lines += tuple(line for line in lowered.header_lines if "param" in line)
    data = with_header(lowered.text, lines)
    header = parse_header(data.decode())
    assert (header.spec, header.level) == ("spec.py", "ir")
    assert header.bindings == {"scale_log2": "1.4426950408889634 / sqrt(float(D))"}
    assert header.operands == {"bias": ("bias", ("1", "H", "Sq", "Sk"))}
    assert with_header(data, lines) == data
    assert data.endswith(lowered.text)
    assert parse_header(source.data.decode()).bindings == {}


def test_a_bound_that_is_a_variable_is_set_again():
    old = b"const int n_tiles = (kv_end + Bc - 1) / Bc;"
    data = SM80.replace(old, b"int n_tiles = (sk + Bc - 1) / Bc;\n  if (causal) n_tiles = (kv_end + Bc - 1) / Bc;")
    from dataclasses import replace

    lifted, source = hand_lift(data)
    end = data.index(b"if (causal) n_tiles = (kv_end + Bc - 1) / Bc;") + len(
        b"if (causal) n_tiles = (kv_end + Bc - 1) / Bc;"
    )
    anchors = replace(lifted.anchors, kv_loop=replace(lifted.anchors.kv_loop, hi_definition_end=end))
    result = transfer(lifted.kernel, make_attention(mask="j <= i"))
    lowered = lower(replace(lifted, anchors=anchors), result, source)
    assert b"\n  n_tiles = min(n_tiles, (q0 + Br + Bc - 1) / Bc);\n" in lowered.text


def test_an_argument_with_a_name_of_the_file_gets_another():
    lifted, source = hand_lift()
    attention = make_attention(score="s * 0.125 + lane[h]", operands=("lane:H",))
    assert [d.code for d in lower(lifted, transfer(lifted.kernel, attention), source).diagnostics] == ["CB408"]
    result = transfer(lifted.kernel, attention, reserved=identifiers(source))
    lowered = lower(lifted, result, source)
    assert lowered.params_added == ("lane_operand",)
    assert b"lane_operand[h]" in lowered.text
    assert "// cubridge: param lane_operand = operand:lane[H]" in lowered.header_lines


def test_sequence_major_layouts_need_no_hunk_where_there_are_strides():
    lowered, _ = adapt(axes=("b", "i", "h", "d"))
    assert lowered.hunks == ()
    assert not lowered.diagnostics


def test_a_sink_of_each_row_needs_the_row_where_the_softmax_starts():
    lowered, _ = adapt(sink="sinks[h, i]", operands=("sinks:H,Sq",))
    assert lowered.text is None
    assert [(d.code, d.data["role"]) for d in lowered.diagnostics] == [("CB410", "m")]

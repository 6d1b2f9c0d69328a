"""Anchors point at the user's bytes."""

from __future__ import annotations

import pytest

from tests.lift.conftest import SCALAR, SM80, lift_text


def _text(source: str, span) -> str:
    return source.encode()[span.start : span.end].decode()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_sm80_sites(newline):
    source = SM80.replace("\n", newline)
    anchors = lift_text(source).anchors
    (mask,) = anchors.mask
    assert _text(source, mask.condition) == "col >= sk || (causal && col > row + sk - sq)"
    assert mask.masked_when
    assert mask.guard is not None
    assert _text(source, mask.guard).startswith("kv0 + Bc > sk")
    assert (mask.nest.element, mask.nest.row, mask.nest.col) == ("s[nb][e]", "row", "col")
    assert [h.split("for")[1].strip() for h in mask.nest.headers] == [
        "(int nb = 0; nb < Bc / 8; ++nb)",
        "(int e = 0; e < 4; ++e)",
    ]
    (score,) = anchors.score
    after = source.encode()[score.offset :].decode()
    assert after.lstrip().startswith("// S = -inf where")
    assert score.unit_text == "scale_log2"
    assert score.names.text["kv0"] == "kv0"
    assert score.names.text["lane"] == "(lane % 4)"
    loop = anchors.kv_loop
    assert loop is not None
    assert (_text(source, loop.lo), _text(source, loop.hi), loop.hi_name) == ("0", "n_tiles", "n_tiles")
    assert loop.hi_definition_end is not None
    assert source.encode()[: loop.hi_definition_end].decode().endswith("(kv_end + Bc - 1) / Bc;")
    (use,) = loop.prologue
    assert use.what == "tile"
    assert source.encode()[use.span.start - 14 : use.span.end].decode() == "v_stride_row, 0"
    assert {(s.role, s.lanes) for s in anchors.state} == {("m", 1), ("l", 4)}
    assert anchors.epilogue is not None
    assert anchors.epilogue.guarded
    assert anchors.head is not None
    assert _text(source, anchors.head.value) == "h / (heads / kv_heads)"
    assert anchors.signature is not None
    assert source.encode()[: anchors.signature.insert].decode().endswith("int causal")
    assert [s.function for s in anchors.launchers] == ["launch_flash_fwd_sm80"]
    assert [c.enclosing for c in anchors.calls] == ["launch_flash_fwd_sm80"]
    assert anchors.setup_offset is not None
    before = source.encode()[: anchors.setup_offset].decode()
    assert before.index("const int hk") < anchors.setup_offset < anchors.state[0].statement.start
    assert before.endswith("\n")


def test_scalar_sites():
    anchors = lift_text(SCALAR).anchors
    (mask,) = anchors.mask
    assert _text(SCALAR, mask.condition) == "col >= sk"
    assert mask.guard is None
    assert (mask.nest.element, mask.nest.row, mask.nest.col) == ("s[i]", "row", "col")
    (score,) = anchors.score
    assert score.unit_text is None  # natural: after the scale, before the mask
    assert SCALAR.encode()[: score.offset].decode().rstrip().endswith("s[i] *= scale;\n    }")
    assert {(s.role, s.row, s.lanes) for s in anchors.state} == {("m", "row", 1), ("l", "row", 1)}
    assert anchors.kv_loop is not None
    assert anchors.kv_loop.prologue == ()


def test_conditional_expression_is_a_mask_site():
    text = SCALAR.replace("if (col >= sk) {\n        s[i] = -INFINITY;\n      }", "s[i] = col < sk ? s[i] : -INFINITY;")
    assert text != SCALAR
    (mask,) = lift_text(text).anchors.mask
    assert not mask.masked_when
    assert _text(text, mask.condition) == "col < sk"
    assert _text(text, mask.fill) == "-INFINITY"

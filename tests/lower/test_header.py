"""The lines of an adapted file say how it is called; they are read back."""

from __future__ import annotations

from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.lower.header import call_lines, elsewhere_line, header_lines, parse_header
from cubridge_engine.transfer.model import Operand
from cubridge_engine.transfer.tile_lists import TileList


def test_widths_inputs_and_conditions() -> None:
    lines = call_lines((192, 128), ["q", "k", "v", "bias"], ["Sq == Sk", "Sq <= Sk", "H == 8", "Sk % 16 == 0"])
    header = parse_header("\n".join(lines))
    assert header.widths == (192, 128)
    assert header.inputs == ("q", "k", "v", "bias")
    assert header.requires == ("Sq == Sk", "Sq <= Sk", "H == 8", "Sk % 16 == 0")
    assert parse_header("\n".join(call_lines((64, 64), ["q"], []))).widths == (64, 64)


def test_what_is_no_condition_is_no_code() -> None:
    line = "// cubridge: requires Sq == Sk, __import__('os').system('x') == 0, Sq == Sk or 1"
    assert parse_header(line).requires == ("Sq == Sk",)


def test_values_at_another_head_dimension() -> None:
    line = elsewhere_line(128, {"scale_log2": 0.1275174308245987, "cap": 1e-05})
    assert parse_header(line).elsewhere == {128: {"scale_log2": 0.1275174308245987, "cap": 1e-05}}


def test_lists_of_tiles_and_tables_of_pages() -> None:
    tiles = TileList(parse_expr("ids[b, i] == ids[b, j]"), 64, 64, ("B", "Q tiles", "entries"))
    made = Operand("kv_tiles", "kv_tiles", "int32", tiles.axes, (), (), tiles=tiles)
    paged = Operand("table", "block_table", "int32", ("B", "pages"), (), (), page=16)
    header = parse_header("\n".join(header_lines("s.py", "ir", {}, (made, paged))))
    assert header.tiles == {"kv_tiles": ("B", "Q tiles", "entries")}
    assert header.pages == {"block_table": 16}
    assert header.operands == {}

"""What `cubridge spec` shows beside the expressions: a name, equations, tensors with bytes, lines and their use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..diagnostics import Diagnostic, make
from ..ir.text_expr import print_expr
from ..spec.attention import Attention, TensorInput
from ..spec.describe import mask_words, one_line
from ..spec.equations import EMPTY_ROWS, equations, size_words, tensor_bytes
from .mask_map import SHOWN_SIZES, NoMap, example_sizes, tiles_of
from .tile_svg import Caption, tile_ranges, tile_svg


def page(attention: Attention, program: Any) -> dict[str, Any]:
    """JSON: ``summary, sizes, equations, tensors, holds_for, empty_rows_text, explain``. Lines count from 0.

    `program` holds the example whose sizes these are.
    """
    sizes = example_sizes(attention, program.arguments)
    return {
        "summary": one_line(attention, sizes),
        "sizes": sizes,
        "equations": [asdict(e) for e in equations(attention)],
        "tensors": [_tensor(item, sizes, program) for item in attention.inputs],
        "holds_for": list(size_words(attention)),
        "empty_rows_text": EMPTY_ROWS[attention.empty_rows],
        "explain": [asdict(m) for m in attention.meanings],
    }


def _tensor(item: TensorInput, sizes: dict[str, int], program: Any) -> dict[str, Any]:
    span = item.span
    return {
        "name": item.name,
        "role": item.role,
        "axes": list(item.axes),
        "dtype": item.dtype,
        "bytes": tensor_bytes(item, sizes),
        "from": item.computed or ("captured" if item.name in program.captured else "argument"),
        "line": span.line if span is not None else None,
    }


def draw(
    attention: Attention, program: Any, summary: str, asked: Mapping[str, int]
) -> tuple[dict[str, Any] | None, tuple[Diagnostic, ...]]:
    """JSON: ``sizes, counts, density, ranges, tiles_per_cell, cells, notes, svg``; or CB028 where there is no map."""
    try:
        tiles, sizes, notes = tiles_of(attention, program.arguments, asked)
    except NoMap as refusal:
        return None, (make("CB028", attention.spans.get("mask"), why=str(refusal).rstrip(".")),)
    shown = {name: sizes[name] for name in SHOWN_SIZES}
    words = "Sq {Sq}, Sk {Sk}, tiles {Br} x {Bc}, batch {b}, head {h}".format_map(sizes)
    definition = "nothing is masked" if attention.mask is None else f"kept: {print_expr(attention.mask)}"
    caption = Caption(", ".join(mask_words(attention.mask)) or summary, definition, words, notes)
    return {
        "sizes": shown,
        "ranges": [list(pair) for pair in tile_ranges(tiles)],
        "notes": notes,
        "svg": tile_svg(tiles, caption),
        **tiles.picture(),
    }, ()

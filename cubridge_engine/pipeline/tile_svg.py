"""The tile map of a mask as a picture: plain SVG, readable in black and white, small at any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ir.tile_map import EMPTY, FULL, MAX_CELLS, PARTIAL, TileMap

_SIDE = 512  # of the map, along its longer direction
_LEFT, _TOP, _BOTTOM, _RANGES = 64, 64, 62, 118
COLOURS = {EMPTY: "#ffffff", PARTIAL: "#f2b84b", FULL: "#2f6fb2"}
_WORDS = {EMPTY: "empty", PARTIAL: "partial", FULL: "full"}
_STYLE = (
    "text{font-family:ui-sans-serif,system-ui,sans-serif;font-size:12px;fill:#24292f}"
    ".t{font-size:15px;font-weight:600}.m{fill:#57606a}.r{stroke:#57606a;stroke-width:1.2}"
)


@dataclass(frozen=True)
class Caption:
    """The words around the map: what the mask is, its definition, at which sizes, and remarks."""

    title: str
    definition: str
    sizes: str
    notes: Sequence[str] = ()


def tile_ranges(tiles: TileMap) -> list[tuple[int, int]]:
    """For each row of tiles, the first and one past the last key of a tile that is not empty; (0, 0) without any."""
    found: list[tuple[int, int]] = []
    for row in tiles.tiles:
        live = np.flatnonzero(row)
        found.append((int(live[0]) * tiles.Bc, min((int(live[-1]) + 1) * tiles.Bc, tiles.Sk)) if live.size else (0, 0))
    return found


def tile_svg(tiles: TileMap, caption: Caption) -> str:
    """The picture: queries from top to bottom, keys from left to right, a bar for the key range of each row."""
    grid, step = _cells(tiles)
    rows, columns = grid.shape
    cell = max(_SIDE / max(rows, columns), 2.0)
    width, height = cell * columns, cell * rows
    total_width = _LEFT + width + _RANGES
    total_height = _TOP + height + _BOTTOM + 15 * len(caption.notes)
    counts = tiles.counts()
    said = ", ".join(f"{counts[w]} {w}" for w in ("full", "partial", "empty"))
    described = f"{said} tiles of {tiles.Br} x {tiles.Bc}; {tiles.density:.1%} of all pairs attended"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(max(total_width, 560))}" height="{_n(total_height)}" '
        f'viewBox="0 0 {_n(max(total_width, 560))} {_n(total_height)}" role="img">',
        f"<title>{escape(caption.title)}</title><desc>{escape(f'{caption.definition}. {described}')}</desc>",
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text class="t" x="{_LEFT}" y="22">{escape(_clip(caption.title, 62))}</text>',
        f'<text class="m" x="{_LEFT}" y="40">{escape(_clip(caption.definition, 84))}</text>',
        *_runs(grid, cell),
        *_grid_lines(rows, columns, cell),
        *_axes(tiles, step, width, height, cell),
        *_bars(tiles, step, width, cell),
        *_legend(tiles, height, caption, step, described),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _cells(tiles: TileMap) -> tuple[NDArray[np.uint8], int]:
    """The classes of cells of ``step x step`` tiles: a cell of several is full or empty only when all are."""
    step, letters = tiles.cells(MAX_CELLS)
    kinds = {"E": EMPTY, "P": PARTIAL, "F": FULL}
    return np.array([[kinds[c] for c in row] for row in letters], dtype=np.uint8), step


def _runs(grid: NDArray[np.uint8], cell: float) -> Iterator[str]:
    """One path for each class, made of horizontal runs: small files, and no seams between cells."""
    for kind in (PARTIAL, FULL):
        pieces: list[str] = []
        for r, row in enumerate(grid):
            edges = np.flatnonzero(np.diff(np.concatenate(([0], (row == kind).astype(np.int8), [0]))))
            for start, end in zip(edges[::2], edges[1::2], strict=True):
                x, y, w = _LEFT + start * cell, _TOP + r * cell, (end - start) * cell
                pieces.append(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(cell)}h-{_n(w)}z")
        if pieces:
            yield f'<path fill="{COLOURS[kind]}" d="{"".join(pieces)}"/>'


def _grid_lines(rows: int, columns: int, cell: float) -> Iterator[str]:
    if cell >= 7:
        across = "".join(f"M{_LEFT} {_n(_TOP + r * cell)}h{_n(columns * cell)}" for r in range(1, rows))
        down = "".join(f"M{_n(_LEFT + c * cell)} {_TOP}v{_n(rows * cell)}" for c in range(1, columns))
        yield f'<path d="{across}{down}" stroke="#d0d7de" stroke-width="0.6" fill="none"/>'
    yield (
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_n(columns * cell)}" height="{_n(rows * cell)}" fill="none" '
        'stroke="#24292f"/>'
    )


def _axes(tiles: TileMap, step: int, width: float, height: float, cell: float) -> Iterator[str]:
    for n in _ticks(tiles.Sk):
        x = _LEFT + n / (step * tiles.Bc) * cell
        yield f'<text class="m" x="{_n(x)}" y="{_TOP - 6}" text-anchor="middle">{n}</text>'
    yield f'<text class="m" x="{_n(_LEFT + width)}" y="{_TOP - 6}" text-anchor="end">keys j</text>'
    for n in _ticks(tiles.Sq):
        y = _TOP + n / (step * tiles.Br) * cell
        yield f'<text class="m" x="{_LEFT - 6}" y="{_n(y + 4)}" text-anchor="end">{n}</text>'
    yield f'<text class="m" x="{_LEFT - 6}" y="{_n(_TOP + height)}" text-anchor="end">queries i</text>'


def _ticks(length: int) -> Iterator[int]:
    """Round numbers below `length`, about five, away from its end, where the axis has its name."""
    wanted = max(length / 5, 1)
    power = 1
    while power * 2 <= wanted:
        power *= 2
    yield from (n for n in range(0, length, power) if n < 0.87 * length)


def _bars(tiles: TileMap, step: int, width: float, cell: float) -> Iterator[str]:
    """To the right of the map: the keys between the first and the last tile that a row visits."""
    ranges = tile_ranges(tiles)
    x0, scale = _LEFT + width + 14, 90 / tiles.Sk
    pieces: list[str] = []
    for r in range(0, len(ranges), step):
        group = [pair for pair in ranges[r : r + step] if pair[1]]
        if group:
            low, high = min(a for a, _ in group), max(b for _, b in group)
            y = _TOP + (r // step + 0.5) * cell
            pieces.append(f"M{_n(x0 + low * scale)} {_n(y)}h{_n(max((high - low) * scale, 1))}")
    yield f'<text class="m" x="{_n(x0)}" y="{_TOP - 6}">KV range</text>'
    yield f'<path class="r" d="{"".join(pieces)}" style="stroke-width:{_n(min(max(cell * 0.5, 0.8), 9))}"/>'


def _legend(tiles: TileMap, height: float, caption: Caption, step: int, described: str) -> Iterator[str]:
    counts = tiles.counts()
    x, y = float(_LEFT), _TOP + height + 20
    for kind in (FULL, PARTIAL, EMPTY):
        word = f"{_WORDS[kind]} {counts[_WORDS[kind]]}"
        yield (
            f'<rect x="{_n(x)}" y="{_n(y - 10)}" width="11" height="11" fill="{COLOURS[kind]}" stroke="#57606a" '
            f'stroke-width="0.7"/><text x="{_n(x + 16)}" y="{_n(y)}">{word}</text>'
        )
        x += 30 + 7.2 * len(word)
    yield f'<text class="m" x="{_n(x + 4)}" y="{_n(y)}">{tiles.density:.1%} attended</text>'
    each = f"; a cell is {step} x {step} tiles" if step > 1 else ""
    yield f'<text class="m" x="{_LEFT}" y="{_n(y + 19)}">{escape(caption.sizes)}{each}</text>'
    for n, note in enumerate(caption.notes):
        yield f'<text class="m" x="{_LEFT}" y="{_n(y + 34 + 15 * n)}">{escape(_clip(note, 88))}</text>'


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _n(value: Any) -> str:
    """A coordinate with at most two decimals."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".")

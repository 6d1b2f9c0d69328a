"""A kernel whose consumer walks the KV tiles in a method: the editor shows its steps in there, not at the call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lsprotocol import types as t

from cubridge_engine.ir.inner_lines import with_inner_lines
from cubridge_engine.lift import lift
from cubridge_engine.source import parse
from server import engine, symbols
from server.documents import Document, TextIndex
from server.reuse import Lifts

HOPPER = Path("expert_kernels/flash_fwd_sm90/kernel.cu")
PADDED = Path("tests/lift/kernels/mma_padded.cu")

# A step and a piece of the line on which it is done.
PLACES = {
    "KV loop": "for (; tile > item.kv_lo; --tile)",
    "load K": "load_k(tile - 1, head)",
    "load V": "load_v(tile, head)",
    "S = Q·Kᵀ": "wgmma_wait",  # where the product is complete
    "mask": "-INFINITY",
    "O += P·V": "finish_step(",
}


def outline(path: Path) -> tuple[t.DocumentSymbol, list[str]]:
    """The outline of the first kernel, and the lines of the text."""
    data = path.read_bytes()
    view = engine.read(str(path), data, None, Lifts()).kernel
    assert view is not None
    document = cast("Document", SimpleNamespace(text=TextIndex(data)))
    server = cast("Any", SimpleNamespace(encoding=t.PositionEncodingKind.Utf16))
    return symbols._kernel(server, document, view), data.decode().splitlines()  # pyright: ignore[reportPrivateUsage]


def below(symbol: t.DocumentSymbol) -> Iterator[t.DocumentSymbol]:
    yield symbol
    for child in symbol.children or []:
        yield from below(child)


@pytest.fixture(scope="module")
def hopper() -> tuple[t.DocumentSymbol, list[str]]:
    return outline(HOPPER)


def test_steps_in_methods_are_on_their_own_lines(hopper: tuple[t.DocumentSymbol, list[str]]) -> None:
    kernel, text = hopper
    lines = {item.name: text[item.selection_range.start.line] for item in below(kernel)}
    assert {name: piece for name, piece in PLACES.items() if piece not in lines[name]} == {}


def test_a_step_is_no_longer_than_its_function() -> None:
    """Barriers of two functions are two steps: one mark over all that lies between would say nothing."""
    view = engine.read(str(HOPPER), HOPPER.read_bytes(), None, Lifts()).kernel
    assert view is not None
    assert max(step.lines[1] - step.lines[0] for step in view.steps) < 10


@pytest.mark.parametrize(
    "path",
    [HOPPER, *(Path("tests/lift/kernels") / f"{name}.cu" for name in ("mma_padded", "warp_per_row", "mma_descending"))],
    ids=lambda path: path.stem if path != HOPPER else "flash_fwd_sm90",
)
def test_editors_take_every_outline(path: Path, hopper: tuple[t.DocumentSymbol, list[str]]) -> None:
    """VS Code shows none of it where the name of one symbol lies outside the symbol, or ends before it begins."""
    kernel, _ = hopper if path == HOPPER else outline(path)
    for item in below(kernel):
        assert item.range.start.line <= item.selection_range.start.line, item.name
        assert item.selection_range.end.line <= item.range.end.line, item.name


def test_a_helper_with_one_purpose_stays_at_its_call() -> None:
    kernel = lift(parse(str(PADDED), PADDED.read_bytes())).kernel
    assert kernel is not None
    assert with_inner_lines(kernel) is kernel

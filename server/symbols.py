"""Document symbols: under each kernel its prologue, KV loop and epilogue, and in them the steps of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document
    from .engine import KernelView
    from .phases import Step

WAIT_S = 10.0  # an outline that is asked for is not asked for again: it waits for the text as it is
IN_OUTLINE = (
    "setup",
    "load",
    "scores",
    "mask",
    "softmax",
    "output",
    "store",
)  # waits and barriers would drown the rest
KINDS = {"prologue": t.SymbolKind.Namespace, "kv_loop": t.SymbolKind.Event, "epilogue": t.SymbolKind.Namespace}

Lines = tuple[int, int]


async def document_symbol(ls: CubridgeServer, params: t.DocumentSymbolParams) -> list[t.DocumentSymbol] | None:
    """``textDocument/documentSymbol``."""
    uri = params.text_document.uri
    if not convert.is_kernel(uri):
        return None
    document = await ls.documents.fresh(uri, WAIT_S)
    if document is None or document.reading is None or document.stale:
        return []
    return [_kernel(ls, document, view) for view in document.reading.kernels]


def _kernel(ls: CubridgeServer, document: Document, view: KernelView) -> t.DocumentSymbol:
    whole = (view.span.line, view.span.end_line)
    children = [child for section in KINDS if (child := _section(ls, document, view, section)) is not None]
    name_line = min(view.span.line + 1, whole[1]) if children and view.span.line < whole[1] else whole[0]
    return _symbol(ls, document, view.name, view.summary, t.SymbolKind.Function, whole, name_line, children)


def _section(ls: CubridgeServer, document: Document, view: KernelView, section: str) -> t.DocumentSymbol | None:
    from .phases import SECTIONS

    inside = [step for step in view.steps if step.section == section and step.phase in IN_OUTLINE and not step.keeps]
    loop = view.kv_loop if section == "kv_loop" else None
    if not inside:
        return None
    lines = loop or _stretch(view, inside)
    children = [_step(ls, document, step, lines) for step in _merged(inside)]
    return _symbol(ls, document, SECTIONS[section], "", KINDS[section], lines, lines[0], children)


def _stretch(view: KernelView, steps: list[Step]) -> Lines:
    """From the first line of the steps to the last; where some are in functions, the lines of the first of them."""
    if not all(view.covers(*step.lines) for step in steps):
        return steps[0].lines
    return min(step.lines[0] for step in steps), max(step.lines[1] for step in steps)


def _merged(steps: list[Step]) -> list[Step]:
    """One entry per title: a step in two places (row max over registers, then over lanes) stands where it begins."""
    first: dict[str, Step] = {}
    for step in steps:
        first.setdefault(step.title, step)
    return list(first.values())


def _step(ls: CubridgeServer, document: Document, step: Step, section: Lines) -> t.DocumentSymbol:
    lines = (max(step.lines[0], section[0]), min(step.lines[1], section[1]))
    if lines[0] > lines[1]:  # a function does it, or the producer of a pipeline
        lines = step.lines
    return _symbol(ls, document, step.title, step.phase, t.SymbolKind.Operator, lines, lines[0], [])


def _symbol(
    ls: CubridgeServer,
    document: Document,
    name: str,
    detail: str,
    kind: t.SymbolKind,
    lines: Lines,
    name_line: int,
    children: list[t.DocumentSymbol],
) -> t.DocumentSymbol:
    first, last = (convert.line_range(line, document.text, ls.encoding) for line in lines)
    return t.DocumentSymbol(
        name=name,
        detail=detail,
        kind=kind,
        range=t.Range(first.start, last.end),
        selection_range=convert.line_range(name_line, document.text, ls.encoding),
        children=children,
    )

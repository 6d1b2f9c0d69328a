"""Hover cards: what one step of a kernel does, for somebody who has never heard of CuIR.

A card has at most a dozen lines: the step as mathematics, a small picture of its tiles and buffers, what orders it
against the copies, what it costs, and how that is known. One table from operation type to its words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cubridge_engine.ir import nodes
from cubridge_engine.ir.nodes import Kernel, Op
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.ir.validate import ELEMENT_BYTES

from . import ordering
from .costs import size_text
from .phases import Step, op_span

MAX_STEPS = 2  # steps of one line that get a card; a line rarely holds more
PROVENANCE = {
    "syntax": "read from the text",
    "observed": "watched: seen in execution, not read",
    "rule": "proposed by a rule",
    "model": "proposed by a model",
    "user": "given by the user",
}
_LAYOUTS = {"row": "row by row", "padded": "padded rows", "swizzle": "swizzled", "fragment": "in mma fragments"}


@dataclass(frozen=True)
class Context:
    """The kernel of a card, and `line`: present 1-based line of a 0-based line of the reading, None if it is gone."""

    kernel: Kernel
    line: Callable[[int], int | None]

    @cached_property
    def buffers(self) -> dict[str, nodes.Alloc]:
        """Allocations by name."""
        return {op.name: op for op in self.kernel.body if isinstance(op, nodes.Alloc)}

    @property
    def element(self) -> str:
        """The kernel's element type; 'io' when the text does not say."""
        types = [value for value in self.kernel.instantiation.values() if value in ELEMENT_BYTES]
        return str(types[0]) if types else "float32" if self.kernel.family == "scalar" else "io"

    def dtype(self, name: str) -> str:
        """Element type of a buffer."""
        found = self.buffers.get(name)
        return self.element if found is None or found.dtype == "io" else found.dtype

    def size(self, name: str) -> int:
        """Bytes of one element of a buffer; two where the type is not known, as in every tensor-core kernel."""
        return ELEMENT_BYTES.get(self.dtype(name), 2)

    def home(self, name: str, slot: Any) -> str:
        """``Ks[t % 2]`` or ``registers``."""
        found = self.buffers.get(name)
        if found is None or found.space != "shared":
            return "registers"
        return f"{name}[{print_expr(slot)}]" if slot is not None and found.slots > 1 else name


@dataclass(frozen=True, slots=True)
class Words:
    """What a row of the table says: one sentence, a formula, a picture (lines of text), and costs."""

    what: str
    formula: str = ""
    picture: tuple[str, ...] = ()
    cost: str = ""


def card(step: Step, context: Context) -> str:
    """Markdown of one step."""
    op = next((op for op in step.ops if type(op) in WORDS), step.ops[0])
    row = WORDS.get(type(op))
    words = row(op, context) if row else Words("")
    head = f"**{step.title}**" + (f": {words.what}" if words.what else "")
    lines = [head + "  "]
    if words.formula:
        lines.append(f"`{words.formula}`  ")
    if words.picture:
        lines += ["```text", *words.picture, "```"]
    order = ordering.sentence(op, context.kernel, context.line)
    known = PROVENANCE.get(getattr(op, "origin", nodes.NOWHERE).provenance, "")
    callee = getattr(op, "origin", nodes.NOWHERE).callee
    at = context.line(callee.line) if callee is not None else None
    if at is not None:
        known += f", done in the function at line {at}"
    tail = [order, " · ".join(part for part in (words.cost, known) if part)]
    lines += [f"{part}  " for part in tail if part]
    return "\n".join(lines).rstrip()


def loop_card(loop: nodes.For, kernel: Kernel, steps: Sequence[Step]) -> str:
    """Markdown of the loop over KV tiles: the chain of its steps."""
    stages = max((op.slots for op in kernel.body if isinstance(op, nodes.Alloc) and op.space == "shared"), default=1)
    ring = f", {stages} stages of K and V in shared memory" if stages > 1 else ""
    step = f" by {loop.step}" if loop.step != 1 else ""
    inside = [one for one in steps if one.section == "kv_loop" and one.phase not in ("setup", "sync") and not one.keeps]
    # Lines break between steps, never inside the name of one.
    names = dict.fromkeys(one.title.replace(" ", "\N{NO-BREAK SPACE}") for one in inside)
    chain = [line.replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(" → ".join(names), 76)]
    products = [op for one in inside for op in one.ops if isinstance(op, nodes.Mma)]
    flop = 2 * kernel.Br * kernel.Bc * kernel.D * len(products)
    return "\n".join(
        (
            f"**KV loop**: one trip per tile of {kernel.Bc} keys{ring}  ",
            f"`for {loop.iv} in {print_expr(loop.lo)} .. {print_expr(loop.hi)}{step}`  ",
            *("```text", *chain, "```"),
            f"{flop:,} FLOP in the products per CTA and KV tile",
        )
    )


# --- the table ---


def _copy(op: nodes.Copy, context: Context) -> Words:
    width, buffer = context.kernel.D, context.buffers.get(op.buffer)
    size = op.rows * width * context.size(op.buffer)
    how = f"cp.async, {op.vector_bytes} bytes each" if op.is_async else "through registers"
    limit = f"; rows from {print_expr(op.limit)} on become 0" if op.limit is not None else ""
    how += f", each row looked up in pages of {op.page} rows by {op.table}" if op.table else ""
    first = print_expr(op.row0)
    picture = [f"{op.tensor.upper()}[{first} .. +{op.rows}) × {width}  ──▶  {context.home(op.buffer, op.slot)}"]
    if buffer is not None:
        picture.append(_stages(buffer, context))
    what = f"a tile of {op.tensor.upper()} from global to shared memory, {how}{limit}"
    return Words(what, picture=tuple(picture), cost=f"{size_text(size)} per CTA")


def _stages(buffer: nodes.Alloc, context: Context) -> str:
    """``Ks ┃ stage 0 ┃ stage 1 ┃ 64×64 float16, swizzled, 8 KiB each``."""
    size = size_text(buffer.rows * buffer.cols * context.size(buffer.name))
    boxes = "".join(f" stage {n} ┃" for n in range(min(buffer.slots, 4))) if buffer.slots > 1 else " one stage ┃"
    shape = f"{buffer.rows}×{buffer.cols} {context.dtype(buffer.name)}, {_LAYOUTS.get(buffer.layout, buffer.layout)}"
    return f"{buffer.name} ┃{boxes} {shape}, {size}{' each' if buffer.slots > 1 else ''}"


def _load_tile(op: nodes.LoadTile, context: Context) -> Words:
    buffer = context.buffers.get(op.buffer)
    how = "transposed on the way" if op.transposed else "as mma operand"
    what = f"{context.home(op.buffer, op.slot)} from shared memory to registers, {how}"
    return Words(what, picture=(_stages(buffer, context),) if buffer is not None else ())


def _mma(op: nodes.Mma, context: Context) -> Words:
    kernel = context.kernel
    if op.role == "qk":
        names, shapes = ("Q", "Kᵀ", "S"), ((kernel.Br, kernel.D), (kernel.D, kernel.Bc), (kernel.Br, kernel.Bc))
        what, formula = "raw scores of one KV tile", "S[i, j] = Σ_d Q[i, d] · K[j, d]"
    else:
        names, shapes = ("P", "V", "O"), ((kernel.Br, kernel.Bc), (kernel.Bc, kernel.D), (kernel.Br, kernel.D))
        what, formula = "the tile's part of the output", "O[i, d] += Σ_j P[i, j] · V[j, d]"
    if op.rounds_a:
        what += f", P rounded to {context.element if context.element != 'io' else 'the element type'} first"
    heads = [f"{name} {rows}×{cols}" for name, (rows, cols) in zip(names, shapes, strict=True)]
    homes = [context.home(op.a, op.a_slot), context.home(op.b, op.slot), context.home(op.acc, None)]
    flop = 2 * kernel.Br * kernel.Bc * kernel.D
    atom = "fused multiply-adds" if op.atom == "fma" else op.atom
    return Words(what, formula, _aligned(heads, homes, ("·", "→")), f"{flop:,} FLOP per CTA and KV tile, {atom}")


def _aligned(upper: Sequence[str], lower: Sequence[str], signs: Sequence[str]) -> tuple[str, str]:
    """Two rows of a picture with their cells one below the other, and `signs` between the cells of the upper one."""
    widths = [max(len(a), len(b)) for a, b in zip(upper, lower, strict=True)]
    lines: list[str] = []
    for cells, between in ((upper, signs), (lower, [" " * len(sign) for sign in signs])):
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append("".join(f"{a}  {b}  " for a, b in zip(padded, between, strict=False)) + padded[-1].rstrip())
    return lines[0], lines[1].rstrip()


def _score(op: nodes.Score, _context: Context) -> Words:
    return Words("every raw score s is changed, before any mask", f"S[i, j] = {print_expr(op.expr)}")


def _mask(op: nodes.Mask, _context: Context) -> Words:
    guard = "on every tile" if op.guard is None else f"only on tiles with {print_expr(op.guard)}"
    return Words(f"other scores become {print_expr(op.fill)}; tested {guard}", f"keep {print_expr(op.keep)}")


def _row_reduce(op: nodes.RowReduce, context: Context) -> Words:
    name = "max" if op.role == "row_max" else "Σ"
    what = {"row_max": "largest score of each row so far", "row_sum": "sum of the weights of each row so far"}
    lanes = f", as {op.lanes} partial values of {context.kernel.Bc // op.lanes} columns" if op.lanes > 1 else ""
    picture = f"row i of {op.src}: {context.kernel.Bc} columns  ──{name}──▶  {op.dst}[i]{lanes}"
    return Words(what.get(op.role, ""), picture=(picture,), cost=_elements(context))


def _elements(context: Context) -> str:
    return f"{context.kernel.Br * context.kernel.Bc:,} elements per CTA and KV tile"


def _lane_reduce(op: nodes.LaneReduce, _context: Context) -> Words:
    how = "largest" if op.op == "max" else "sum"
    picture = f"lane 0 │ lane 1 │ lane 2 │ lane 3  ──shuffle, {op.op}──▶  {op.row}[i] in all four"
    return Words(f"the {how} over the lanes that share a row", picture=(picture,))


def _row_map(op: nodes.RowMap, context: Context) -> Words:
    what = {
        "init": "start value of each row",
        "correction": "what the old row max makes too large",
        "rescale": "the old sum, for the new row max",
        "guard": "rows that have seen no key yet must not give NaN",
    }
    formula = f"{op.row}[i] = {print_expr(op.expr)}"
    return Words(what.get(op.role, "one value per row"), formula, cost=f"{context.kernel.Br} rows per CTA")


def _map(op: nodes.Map, context: Context) -> Words:
    what = {"exp": "weights of this tile, at most 1 for the row max", "rescale": "the output so far, for the new max"}
    formula = f"{op.dst}[i, ·] = {print_expr(op.expr)}"
    count = context.kernel.Br * (context.kernel.Bc if op.role == "exp" else context.kernel.D)
    return Words(what.get(op.role, ""), formula, cost=f"{count:,} elements per CTA and KV tile")


def _store(op: nodes.StoreTile | nodes.StoreRow, context: Context) -> Words:
    limit = f", rows below {print_expr(op.limit)}" if op.limit is not None else ""
    width = context.kernel.D if isinstance(op, nodes.StoreTile) else 1
    axes = "i, ·" if isinstance(op, nodes.StoreTile) else "i"
    size = context.kernel.Br * width * (ELEMENT_BYTES.get(context.element, 2) if width > 1 else 4)
    formula = f"{op.tensor.upper()}[b, h, {axes}] = {print_expr(op.expr)}"
    return Words(f"registers to global memory{limit}", formula, cost=f"{size_text(size)} per CTA")


def _wait(op: nodes.CpWait, _context: Context) -> Words:
    if op.signal is not None:
        return Words(f"until the TMA copies on mbarrier {print_expr(op.signal)} have landed", "mbarrier.try_wait")
    rest = "all of them" if op.pending == 0 else f"all but the newest {op.pending}"
    return Words(f"until {rest} of this thread's groups of copies have landed", f"cp.async.wait_group {op.pending}")


def _barrier(op: nodes.Barrier, _context: Context) -> Words:
    who = "all threads of the CTA" if op.scope == "cta" else "the threads of a warp"
    return Words(f"{who} meet; what landed before is visible to all of them, and slots may be reused")


# Values are Any because each row takes its own node type; `card` calls a row with the type it is keyed on.
WORDS: dict[type[Op], Callable[[Any, Context], Words]] = {
    nodes.Copy: _copy,
    nodes.LoadTile: _load_tile,
    nodes.Mma: _mma,
    nodes.Score: _score,
    nodes.Mask: _mask,
    nodes.RowReduce: _row_reduce,
    nodes.LaneReduce: _lane_reduce,
    nodes.RowMap: _row_map,
    nodes.Map: _map,
    nodes.Fill: lambda op, _context: Words("start value of the tile", f"{op.tile}[i, ·] = {print_expr(op.value)}"),
    nodes.StoreTile: _store,
    nodes.StoreRow: _store,
    nodes.CpWait: _wait,
    nodes.Barrier: _barrier,
}


def loop_at(kernel: Kernel, line: int) -> nodes.For | None:
    """The KV loop whose header is on the 0-based `line`."""
    for op in kernel.body:
        span = op_span(op)
        if isinstance(op, nodes.For) and op.role == "kv_loop" and span is not None and span.line == line:
            return op
    return None

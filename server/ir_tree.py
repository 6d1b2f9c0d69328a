"""The command ``cubridge.irTree``: the lifted program as a tree by phase, with the lines that each node comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cubridge_engine.ir import nodes
from cubridge_engine.ir.nodes import Kernel, Op
from cubridge_engine.ir.text import print_op
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.ir.validate import ELEMENT_BYTES

from . import landmarks, looked_at, observed, phases
from .looked_at import Range
from .observed import Observation

if TYPE_CHECKING:
    from .app import CubridgeServer

PARAMETERS, BUFFERS, OBSERVED = "parameters", "buffers", "observed"


@dataclass(frozen=True, slots=True)
class Node:
    """A row of the tree. `id` is made of what the node is, not of where it stands, so that a client finds its selection
    again after an edit. `lines` are first and last line, 0-based, in the kernel's file; `callee` those in the device
    function that does it, `also` those of further statements that compute what it stores.
    """

    id: str
    title: str
    detail: str
    phase: str
    lines: Range | None = None
    callee: Range | None = None
    children: tuple[Node, ...] = ()
    also: tuple[Range, ...] = ()

    def plain(self, shown: Callable[[Range | None], list[int] | None]) -> dict[str, Any]:
        """JSON of docs/lsp-extensions.md; `shown` gives the present place of lines."""
        return {
            "id": self.id,
            "title": self.title,
            "detail": self.detail,
            "phase": self.phase,
            "lines": shown(self.lines),
            "callee": shown(self.callee),
            "also": [lines for one in self.also if (lines := shown(one)) is not None],
            "children": [child.plain(shown) for child in self.children],
        }


async def ir_tree(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.irTree``: the head of every reply about an open kernel, and ``name, summary,
    level, text, roots``.
    """
    found = await looked_at.look(ls, "cubridge.irTree", argument)
    seen = ls.observed.of(found.document) if found.document is not None else None
    roots = [observed_node(seen).plain(found.lines)] if seen is not None else []
    if found.document is not None and found.view is None and seen is not None:
        head = found.head | {"state": "done", "message": ""}
        head |= {"name": seen.kernel_name, "summary": seen.function, "level": seen.level}
        return head | {"text": "", "roots": roots}
    if found.view is None or found.document is None:
        return found.head | {"name": "", "summary": "", "level": "", "text": "", "roots": []}
    view = found.view
    return found.head | {
        "name": view.name,
        "summary": view.summary,
        "level": view.level,
        "text": view.ir,
        "roots": [root.plain(found.lines) for root in tree(view.program, found.document.path)] + roots,
    }


def tree(kernel: Kernel, path: str) -> tuple[Node, ...]:
    """Parameters, buffers, prologue, KV loop, epilogue. A part without operations is left out."""
    builder = _Builder(kernel, path)
    at = next((n for n, op in enumerate(kernel.body) if isinstance(op, nodes.For) and op.role == "kv_loop"), None)
    allocs = [op for op in kernel.body if isinstance(op, nodes.Alloc)]
    head, tail = (kernel.body, ()) if at is None else (kernel.body[:at], kernel.body[at + 1 :])
    parts = [
        builder.parameters(),
        builder.buffers(allocs),
        builder.section("prologue", [op for op in head if not isinstance(op, nodes.Alloc)]),
        builder.loop(kernel.body[at]) if at is not None else None,
        builder.section("epilogue", [op for op in tail if not isinstance(op, nodes.Alloc)]),
    ]
    return tuple(part for part in parts if part is not None and part.children)


def observed_node(found: Observation) -> Node:
    """The root of the tree that has what was observed, one row per step."""
    rows = tuple(
        Node(
            f"{OBSERVED}/{one.name}",
            one.label,
            f"{one.holds}; {observed.READ.get(one.read, '')}; {one.confidence}; {one.problem}",
            observed.LABELS.get(one.name, ("", "setup"))[1],
            None if one.line is None else (one.line, one.line),
        )
        for one in found.steps
    )
    return Node(OBSERVED, "observed when it ran", found.function or found.coverage, "setup", children=rows)


def _shared(kernel: Kernel) -> str:
    size = sum(_bytes(op) for op in kernel.body if isinstance(op, nodes.Alloc) and op.space == "shared")
    return f"{size / 1024:g} KiB shared"


def _bytes(op: nodes.Alloc) -> int:
    return op.slots * op.rows * op.cols * ELEMENT_BYTES.get(op.dtype, 4)


class _Builder:
    """Makes the nodes of one kernel."""

    def __init__(self, kernel: Kernel, path: str) -> None:
        self.kernel = kernel
        self.path = path

    def parameters(self) -> Node:
        """The signature, with what each parameter is for."""
        rows = tuple(
            Node(f"{PARAMETERS}/{p.position}", p.name, f"{p.role} · {p.ctype}", PARAMETERS, self.lines(p.origin.span))
            for p in self.kernel.params
        )
        return Node(PARAMETERS, PARAMETERS, f"{len(rows)}", PARAMETERS, children=rows)

    def buffers(self, allocs: Sequence[Op]) -> Node:
        """Shared and register tiles."""
        return Node(BUFFERS, BUFFERS, _shared(self.kernel), BUFFERS, children=self.rows(BUFFERS, allocs, BUFFERS))

    def section(self, key: str, ops: Sequence[Op]) -> Node:
        """Prologue or epilogue."""
        return _spanning(Node(key, phases.SECTIONS[key], "", key, children=self.groups(key, ops)))

    def loop(self, op: Op) -> Node:
        """The loop over KV tiles."""
        assert isinstance(op, nodes.For)
        node = self.row("kv_loop", op, "kv_loop")
        return replace(node, id="kv_loop", title=phases.SECTIONS["kv_loop"], children=self.groups("kv_loop", op.body))

    def groups(self, parent: str, ops: Sequence[Op]) -> tuple[Node, ...]:
        """Neighbours of one phase under a node of that phase; a phase of one operation is that operation."""
        seen: Counter[str] = Counter()
        made: list[Node] = []
        for phase, members in _runs(ops):
            seen[phase] += 1
            key = f"{parent}/{phase}.{seen[phase]}"
            rows = self.rows(key, members, phase)
            if len(rows) == 1:
                made.append(rows[0])
                continue
            made.append(_spanning(Node(key, _heading(parent, phase, members), "", phase, children=rows)))
        return tuple(made)

    def rows(self, parent: str, ops: Sequence[Op], phase: str) -> tuple[Node, ...]:
        """One node per operation; those without a phase of their own are of `phase`."""
        seen: Counter[str] = Counter()
        made: list[Node] = []
        for op in ops:
            name = _identity(op)
            seen[name] += 1
            made.append(self.row(f"{parent}/{name}.{seen[name]}", op, phase))
        return tuple(made)

    def row(self, key: str, op: Op, phase: str) -> Node:
        """The node of one operation, with those inside it."""
        origin: nodes.Origin = getattr(op, "origin", nodes.NOWHERE)
        children: tuple[Node, ...] = ()
        if isinstance(op, nodes.For):
            children = self.groups(key, op.body)
        elif isinstance(op, nodes.If):
            children = self.rows(key, op.body, phase)
            if op.orelse:
                otherwise = self.rows(f"{key}/else", op.orelse, phase)
                children += (_spanning(Node(f"{key}/else", "otherwise", "", phase, children=otherwise)),)
        lines = self.lines(origin.span)
        if isinstance(op, nodes.Let) and lines:
            lines = (lines[0], lines[0])  # a value made by a loop's head has the whole loop as its origin
        also = tuple(one for span in origin.also if (one := self.lines(span)) is not None)
        return Node(key, self.title(op), print_op(op), phase, lines, self.lines(origin.callee), children, also)

    def title(self, op: Op) -> str:
        """The operation in the paper's terms."""
        row, words = phases.row_of(op), TITLES.get(type(op))
        named = landmarks.label(op, self.kernel) if not isinstance(op, nodes.Mask) else ""
        named = named or (row.title(op) if row else "")
        return named or (words(op) if words else print_op(op))

    def lines(self, span: Any) -> Range | None:
        """Lines of a span in the kernel's own file."""
        return (span.line, span.end_line) if span is not None and span.path == self.path else None


# What landmarks and steps do not name, because no line of the text is about it alone.
TITLES: dict[type[Op], Any] = {
    nodes.Alloc: lambda op: (
        f"{op.name}: {_shape(op)} {op.space}" + (f", {_bytes(op) / 1024:g} KiB" if op.space == "shared" else "")
    ),
    nodes.Let: lambda op: op.name,
    nodes.If: lambda op: f"if {print_expr(op.cond)}",
    nodes.CpCommit: lambda op: "commit the copies as a group",
    nodes.RowMap: lambda op: f"{op.row} = {print_expr(op.expr)}",
    nodes.Opaque: lambda op: "not understood",
}


def _shape(op: nodes.Alloc) -> str:
    stages = f"{op.slots} × " if op.slots > 1 else ""
    return f"{stages}[{op.rows}×{op.cols}] {op.dtype}"


def _identity(op: Op) -> str:
    """What an operation is about: its word and the tile, row or buffer that it writes."""
    word = print_op(op).split(" ", 1)[0]
    written = next((getattr(op, field) for field in WRITTEN if isinstance(getattr(op, field, None), str)), "")
    return f"{word}:{written}" if written else word


WRITTEN = ("acc", "dst", "buffer", "tile", "row", "name", "tensor", "iv")


def _phase(op: Op) -> str | None:
    """The phase of an operation; of a condition that of everything in it, if that is one."""
    if isinstance(op, nodes.If | nodes.For):
        inner = {_phase(child) for child in (*op.body, *(op.orelse if isinstance(op, nodes.If) else ()))} - {None}
        return inner.pop() if len(inner) == 1 else None
    row = phases.row_of(op)
    return row.phase if row else None


def _runs(ops: Sequence[Op]) -> Iterator[tuple[str, list[Op]]]:
    """Neighbours of the same phase. An operation of no phase (a name for a value, a commit) goes with what is before
    it, at the start of a block with what comes after; clearing an accumulator belongs to the product.
    """
    products = {op.acc: _phase(op) for op in ops if isinstance(op, nodes.Mma)}
    phase: str | None = None
    members: list[Op] = []
    for op in ops:
        own = products.get(op.tile, _phase(op)) if isinstance(op, nodes.Fill) else _phase(op)
        if members and own is not None and phase is not None and own != phase:
            yield phase, members
            members, phase = [], own
        members.append(op)
        phase = phase or own
    if members:
        yield phase or "setup", members


def _heading(section: str, phase: str, ops: Sequence[Op]) -> str:
    """The title of a group: of loads, what they load; else the phase."""
    tensors = dict.fromkeys(op.tensor.upper() for op in _leaves(ops) if isinstance(op, nodes.Copy))
    if phase == "load" and tensors:
        return f"load {', '.join(tensors)}"
    return HEADINGS.get((section, phase)) or phases.PHASES.get(phase, phase)


# Where a phase is called otherwise than in the loop.
HEADINGS = {("epilogue", "softmax"): "finish l", ("epilogue", "setup"): "normalise"}


def _leaves(ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        if isinstance(op, nodes.If):
            yield from _leaves((*op.body, *op.orelse))
        else:
            yield op


def _spanning(node: Node) -> Node:
    """`node` with the lines of its first to its last child."""
    lines = [child.lines for child in node.children if child.lines]
    return replace(node, lines=(min(a for a, _ in lines), max(b for _, b in lines))) if lines else node

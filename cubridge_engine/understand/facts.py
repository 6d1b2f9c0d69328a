"""How a program goes about it, as rows: tiles, buffers, copies, waits, order, grid. From its operations, by a table.

Keys are stable, so that the rows of two kernels can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..compile import Contract
from ..diagnostics import Span
from ..ir.expr import Call, Const, Expr, Var, free_vars, substitute, walk
from ..ir.nodes import (
    NOWHERE,
    Alloc,
    Barrier,
    Copy,
    CpWait,
    For,
    If,
    Kernel,
    Let,
    Map,
    Mma,
    Op,
)
from ..ir.simplify import linear_terms, simplify
from ..ir.text_expr import print_expr
from ..transfer.structure import NotAttention, kv_loop_of, tile_walk, walk_ops
from ..verify.contracts import contract_type
from .model import Fact

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
LAYOUTS = {"row": "", "padded": ", rows padded", "swizzle": ", swizzled", "fragment": ""}
ATOMS = {
    "fma": "scalar multiply-adds",
    "mma.m16n8k16": "mma.sync m16n8k16",
    "wmma": "wmma",
    "wgmma": "wgmma",
}
_BLOCKS = {
    "bx": "blockIdx.x",
    "by": "blockIdx.y",
    "bz": "blockIdx.z",
    "gridx": "gridDim.x",
    "gridy": "gridDim.y",
    "gridz": "gridDim.z",
    "bx_item": "the work item's x",
    "by_item": "the work item's y",
    "bz_item": "the work item's z",
}
_ELEMENTS = {"half*": "float16", "bfloat16*": "bfloat16", "float*": "float32"}


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel with what the rows are made of."""

    kernel: Kernel
    loop: For
    contract: Contract | None

    def ops(self, kind: type[Op], body: tuple[Op, ...] | None = None) -> list[Any]:
        """Operations of a kind, in order, of the whole program or of `body`."""
        return [op for op in walk_ops(self.kernel.body if body is None else body) if isinstance(op, kind)]

    @property
    def signals(self) -> bool:
        """True where copies complete on mbarriers."""
        return any(op.signal is not None for op in self.ops(Copy))


def facts_of(kernel: Kernel, contract: Contract | None = None) -> tuple[Fact, ...]:
    """The rows of a program with a KV loop; of any other, what can be said without one."""
    try:
        loop = kv_loop_of(kernel)
    except NotAttention:
        return ()
    program = Program(kernel, loop, contract)
    return tuple(fact for row in _ROWS for fact in row(program))


def element_type(kernel: Kernel) -> str:
    """The dtype of Q: by its C type, or by the template argument that it names; '' where neither says."""
    q = next((p for p in kernel.params if p.role == "q"), None)
    if q is None:
        return ""
    by_type = _ELEMENTS.get(contract_type(q.ctype, "")) if "*" in q.ctype else None
    named = [str(v) for n, v in kernel.instantiation.items() if str(v) in BYTES and (by_type or n)]
    return by_type or (named[0] if len(set(named)) == 1 else "")


def spans_of(*ops: Op) -> tuple[Span, ...]:
    """The lines of operations, each once, in order."""
    found = [getattr(op, "origin", NOWHERE).shown for op in ops]
    return tuple(dict.fromkeys(span for span in found if span is not None))


def block_text(expr: Expr) -> str:
    """An expression over block indices, spelled as in CUDA."""
    return print_expr(substitute(expr, {Var(short): Var(name) for short, name in _BLOCKS.items()}))


# ---- rows -----------------------------------------------------------------------------------------------------------


def _tiles(p: Program) -> Iterator[Fact]:
    k = p.kernel
    widths = f"D = {k.D}" + (f", Dv = {k.Dv}" if k.Dv != k.D else "")
    yield Fact("tiles", "tiles", f"{k.Br} query rows x {k.Bc} keys, {widths}", spans=spans_of(p.loop))
    yield Fact("threads", "CTA", f"{k.threads} threads")


def _products(p: Program) -> Iterator[Fact]:
    products: list[Mma] = p.ops(Mma)
    for role, name in (("qk", "Q K^T"), ("pv", "P V")):
        found = [op for op in products if op.role == role]
        atoms = dict.fromkeys(ATOMS.get(op.atom, op.atom) for op in found)
        rounded = ", P rounded to the element type first" if role == "pv" and any(op.rounds_a for op in found) else ""
        if found:
            yield Fact(f"product:{role}", name, ", ".join(atoms) + rounded, spans=spans_of(*found))


def _exponential(p: Program) -> Iterator[Fact]:
    for op in p.ops(Map):
        if op.role == "exp":
            base = "exp2" if any(isinstance(e, Call) and e.op == "exp2" for e in walk(op.expr)) else "exp"
            yield Fact("exponential", "exponential", base, spans=spans_of(op))
            return


def _buffers(p: Program) -> Iterator[Fact]:
    dtype = element_type(p.kernel)
    for op in _shared(p):
        copies: list[Copy] = [c for c in p.ops(Copy) if c.buffer == op.name]
        tensors = dict.fromkeys(c.tensor for c in copies)
        holds = " and ".join(t.upper() for t in tensors) or op.name
        slots = f"{op.slots} stages of " if op.slots > 1 else ""
        size = BYTES.get(op.dtype if op.dtype != "io" else dtype, 0) * op.slots * op.rows * op.cols
        space = f", {size} bytes" if size else ""
        kind = "" if op.dtype in ("io", dtype) else f" {op.dtype}"
        value = f"{slots}{op.rows} x {op.cols}{kind}{LAYOUTS.get(op.layout, '')}{space}"
        yield Fact(f"shared:{'+'.join(tensors) or op.name}", f"{holds} in shared memory", value, spans=spans_of(op))


def _shared(p: Program) -> list[Alloc]:
    found: list[Alloc] = p.ops(Alloc)
    return [op for op in found if op.space == "shared"]


def _copies(p: Program) -> Iterator[Fact]:
    shared = {op.name for op in _shared(p)}
    for tensor in "qkv":
        found: list[Copy] = [op for op in p.ops(Copy) if op.tensor == tensor]
        ways = dict.fromkeys(_way(op, op.buffer in shared) for op in found)
        if found:
            yield Fact(f"copy:{tensor}", f"{tensor.upper()} arrives by", ", then ".join(ways), spans=spans_of(*found))


def _way(op: Copy, shared: bool) -> str:
    if op.signal is not None:
        return "TMA, completing on an mbarrier"
    size = f" of {op.vector_bytes} bytes" if op.vector_bytes else ""
    if op.is_async:
        return f"cp.async{size}"
    return f"loads and stores{size} through registers" if shared else f"loads{size} into registers"


def _pipeline(p: Program) -> Iterator[Fact]:
    for tensor in "kv":
        inside: list[Copy] = [op for op in p.ops(Copy, p.loop.body) if op.tensor == tensor]
        ahead = {_tiles_ahead(op, p) for op in inside}
        if p.signals and ahead == {0}:
            continue  # warps of its own may issue it: in the program their copies stand where the tile is waited for
        if len(ahead) == 1 and (n := ahead.pop()) is not None:
            value = "in its own trip" if n == 0 else f"{n} tile{'s' if n > 1 else ''} ahead"
            yield Fact(f"ahead:{tensor}", f"a tile of {tensor.upper()} is fetched", value, spans=spans_of(*inside))


def _tiles_ahead(op: Copy, p: Program) -> int | None:
    """How many trips before its own a tile is copied; None where that is not a number."""
    first = next((x.value for x in p.loop.body if isinstance(x, Let) and x.name == "kv0"), Var(p.loop.iv))
    distance = substitute(op.row0 - Var("kv0"), {Var("kv0"): first})
    types = dict.fromkeys(free_vars(distance), "int")
    found, constant = linear_terms(simplify(distance, types), types)
    step = p.kernel.Bc if p.loop.step > 0 else -p.kernel.Bc
    return constant // step if not any(found.values()) and constant % step == 0 else None


def _waits(p: Program) -> Iterator[Fact]:
    waits: list[CpWait] = p.ops(CpWait, p.loop.body)
    groups = sorted({op.pending for op in waits if op.signal is None})
    if groups:
        left = " and ".join(f"at most {n} group{'s' if n != 1 else ''}" if n else "no group" for n in groups)
        yield Fact(
            "waits",
            "cp.async waits per KV tile",
            f"until {left} {'is' if groups[-1] < 2 else 'are'} in flight",
            spans=spans_of(*waits),
        )
    signals = [op for op in waits if op.signal is not None]
    if signals:
        yield Fact("signals", "mbarrier waits per KV tile", str(len(signals)), spans=spans_of(*signals))
    if not p.signals:  # beside mbarriers, a barrier of the program may stand for one of these
        barriers = [op for op in p.ops(Barrier, _unconditional(p.loop.body)) if op.scope == "cta"]
        whole = [op for op in p.ops(Barrier, p.loop.body) if op.scope == "cta"]
        if len(whole) == len(barriers):
            yield Fact("barriers", "CTA barriers per KV tile", str(len(whole)), spans=spans_of(*whole))


def _unconditional(body: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(op for op in body if not isinstance(op, If | For))


def _order(p: Program) -> Iterator[Fact]:
    listed = tile_walk(p.kernel)
    if listed is not None:
        yield Fact("order", "KV tiles", f"in the order of the list {listed.tensor}", spans=spans_of(p.loop))
        return
    direction = "first to last" if p.loop.step > 0 else "last to first"
    yield Fact("order", "KV tiles", direction, spans=spans_of(p.loop))


def _operand(p: Program) -> Iterator[Fact]:
    """Where Q stands when it is multiplied. For P this is not kept: it may pass through shared memory or not."""
    where = {op.name: "shared memory" for op in _shared(p)}
    used = {where.get(op.a, "registers") for op in p.ops(Mma) if op.role == "qk"}
    if len(used) == 1:
        yield Fact("operand:qk", "Q is multiplied from", used.pop())


def _grid(p: Program) -> Iterator[Fact]:
    grid = p.kernel.grid
    value = f"Q tile {block_text(grid.q_tile)}, batch {block_text(grid.b)}, head {block_text(grid.h)}"
    yield Fact("grid", "CTA to problem", value, spans=() if grid.origin.span is None else (grid.origin.span,))
    items = {n for e in (grid.q_tile, grid.b, grid.h) for n in free_vars(e) if n.endswith("_item")}
    if items:
        yield Fact("persistent", "work", "a CTA takes work items until none is left")


def _head_map(p: Program) -> Iterator[Fact]:
    yield Fact("heads", "KV head of query head h", print_expr(p.kernel.grid.hk))


def _layouts(p: Program) -> Iterator[Fact]:
    found: dict[str, list[str]] = {}
    for tensor in ("q", "k", "v", "o"):
        strides = p.kernel.tensors.get(tensor)
        if strides is not None:
            found.setdefault(_layout(strides, p.kernel, tensor), []).append(tensor.upper())
    yield Fact("layout", "layout", "; ".join(f"{', '.join(names)} {layout}" for layout, names in found.items()))


def _layout(strides: tuple[Expr, ...], kernel: Kernel, tensor: str) -> str:
    """The axes by their element strides: batch, head, row."""
    free = [free_vars(e) for e in strides]
    own = {p.name: p.role.removeprefix("stride:") for p in kernel.params if p.role.startswith("stride:")}
    used = [own[name] for names in free for name in sorted(names) if name in own]
    if used:
        others = dict.fromkeys(role for role in used if not role.startswith(f"{tensor}."))
        shared = ", ".join(f"that of {t.upper()}'s {axis}" for t, _, axis in (role.partition(".") for role in others))
        return "by strides that the caller gives" + (f" ({shared} among them)" if shared else "")
    width = kernel.Dv if tensor in "vo" else kernel.D
    if any(name.startswith("map") for names in free for name in names):
        return "as its tensor map says"
    head, row = strides[1], strides[2]
    if row == Const(width):
        return "[B, H, S, D]" if free[1] & {"Sq", "Sk"} else "rows in order"
    return "[B, S, H, D]" if head == Const(width) else "by " + ", ".join(print_expr(e) for e in strides)


def _contract(p: Program) -> Iterator[Fact]:
    if p.contract is None:
        return
    c = p.contract
    block = c.block[0] * c.block[1] * c.block[2]
    launch = f"<<<({', '.join(c.grid)}), {block}, {c.dynamic_shared_bytes} bytes>>>"
    yield Fact("launch", "launch", launch, "contract")


Row = Callable[[Program], Iterator[Fact]]
_ROWS: tuple[Row, ...] = (
    _tiles,
    _products,
    _exponential,
    _operand,
    _buffers,
    _copies,
    _pipeline,
    _waits,
    _order,
    _grid,
    _head_map,
    _layouts,
    _contract,
)

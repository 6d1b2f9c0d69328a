"""Execute CuIR on NumPy tiles: a table of functions keyed by node type, outside the nodes.

CTAs of one query tile run as a batch over (b, h); where a loop bound or condition differs between them, the batch is
split. Arithmetic is float64. With ``rounding`` set, values the kernel rounds to its element type (P as the operand of
P·V, O when stored) are rounded too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Related, make
from . import codes
from .evaluate import UnboundName, evaluate
from .expr import Expr
from .memory import SharedMemory
from .nodes import (
    Alloc,
    Barrier,
    Copy,
    CpCommit,
    CpWait,
    Fill,
    For,
    If,
    Kernel,
    LaneReduce,
    Let,
    LoadTile,
    Map,
    Mask,
    Mma,
    Op,
    Opaque,
    Origin,
    RowMap,
    RowReduce,
    Score,
    StoreRow,
    StoreTile,
)
from .observing import Observer

Array = NDArray[Any]
Sizes = Mapping[str, int]
# Importing the module registers the CB5xx rows.
FINDING_CODES = codes.CODES
ROUNDING = {"float16": "fp16", "bfloat16": "bf16"}


class _Split(Exception):
    """A uniform value differs between the CTAs of a batch: run them one by one."""


class _Stop(Exception):
    """Execution cannot continue; a finding says why."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a run produced: ``o`` [B, H, Sq, Dv] and ``lse`` [B, H, Sq] in float64 (NaN where nothing was written), and
    the findings.
    """

    o: Array
    lse: Array | None
    findings: tuple[Diagnostic, ...]
    tiles: int  # KV tiles visited, summed over CTAs


def execute(
    kernel: Kernel,
    tensors: Mapping[str, Array],
    sizes: Sizes,
    bindings: Mapping[str, float | int | bool],
    *,
    async_mode: str = "early",
    rounding: str | None = None,
    observe: Observer | None = None,
) -> Outputs:
    """Run every CTA of `kernel`.

    `tensors`: ``q`` [B, H, Sq, D], ``k`` [B, Hkv, Sk, D], ``v`` [B, Hkv, Sk, Dv] and operands by name, any real dtype.
    `sizes` holds B, H, Hkv, Sq, Sk. `bindings` gives kernel parameters that are not sizes (``scale_log2``, flags,
    scalars) by parameter name. `async_mode` is ``early`` or ``late``; `rounding` is None, 'float16' or 'bfloat16'.
    `observe` is called after each operation; where a batch is split it sees the operations before that again.
    Never raises for a bad program: findings say what happened.
    """
    run = _Run(kernel, tensors, sizes, bindings, async_mode == "late", rounding, observe)
    run.all()
    return Outputs(run.o, run.lse, tuple(run.findings.values()), run.tiles)


@dataclass(slots=True)
class _Run:
    """One execution: the problem, the outputs and the findings."""

    kernel: Kernel
    tensors: Mapping[str, Array]
    sizes: Sizes
    bindings: Mapping[str, float | int | bool]
    late: bool
    rounding: str | None
    observe: Observer | None = None
    o: Array = field(init=False)
    lse: Array | None = field(init=False)
    findings: dict[tuple[str, object], Diagnostic] = field(default_factory=dict)
    tiles: int = 0
    operands: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        s, kernel = self.sizes, self.kernel
        self.o = np.full((s["B"], s["H"], s["Sq"], kernel.Dv), np.nan)
        has_lse = any(isinstance(op, StoreRow) for op in _all_ops(kernel.body))
        self.lse = np.full((s["B"], s["H"], s["Sq"]), np.nan) if has_lse else None
        self.operands = {n: np.asarray(t) for n, t in self.tensors.items() if n not in ("q", "k", "v")}

    def report(self, code: str, origin: Origin | None, *, other: Origin | None = None, **fields: object) -> None:
        """Record a finding once per place."""
        key = (code, origin.span if origin else None)
        if key in self.findings:
            return
        related = ()
        if other is not None and other.span is not None:
            related = (Related(other.span, "the other access"),)
        self.findings[key] = make(code, origin.span if origin else None, related=related, **fields)

    def all(self) -> None:
        s = self.sizes
        heads = [(b, h) for b in range(s["B"]) for h in range(s["H"])]
        for qt in range(-(-s["Sq"] // self.kernel.Br)):
            try:
                try:
                    _Cta(self, qt, heads).run()
                except _Split:
                    for pair in heads:
                        _Cta(self, qt, [pair]).run()
            except _Stop:
                return
        outputs = [("o", self.o)] + ([("lse", self.lse)] if self.lse is not None else [])
        stores = {op.tensor for op in _all_ops(self.kernel.body) if isinstance(op, StoreTile | StoreRow)}
        for name, data in outputs:
            if data.size and name not in stores:
                self.report("CB507", self.kernel.origin, count=data.size, tensor=name)


def _all_ops(body: tuple[Op, ...]) -> list[Op]:
    found: list[Op] = []
    for op in body:
        found.append(op)
        if isinstance(op, For):
            found += _all_ops(op.body)
        elif isinstance(op, If):
            found += _all_ops(op.body) + _all_ops(op.orelse)
    return found


class _Cta:
    """A batch of CTAs that share a query tile: environment, register tiles, row vectors, shared memory."""

    def __init__(self, run: _Run, qt: int, heads: list[tuple[int, int]]) -> None:
        self.run_state = run
        kernel, s = run.kernel, run.sizes
        self.kernel = kernel
        self.batch = len(heads)
        self.b = np.array([b for b, _ in heads]).reshape(-1, 1, 1)
        self.h = np.array([h for _, h in heads]).reshape(-1, 1, 1)
        self.shared = SharedMemory(self.batch, run.late, run.report)
        self.tiles: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, int]] = {}
        self.rows: dict[str, Array] = {}
        self.env: dict[str, Any] = {
            **run.bindings,
            **s,
            "D": kernel.D,
            "qt": qt,
            "q0": qt * kernel.Br,
            "b": self.b,
            "h": self.h,
        }
        self._bind_parameters()
        self.env["hk"] = self.value(kernel.grid.hk, kernel.grid.origin)
        self.row_index = (qt * kernel.Br + np.arange(kernel.Br)).reshape(1, -1, 1)

    def _bind_parameters(self) -> None:
        """Parameters whose role is a size are that size under their own name too; plain block ids follow from the grid
        map.
        """
        s = self.run_state.sizes
        for p in self.kernel.params:
            if p.role in s:
                self.env.setdefault(p.name, s[p.role])
            elif p.role == "group":
                self.env.setdefault(p.name, s["H"] // s["Hkv"])

    def run(self) -> None:
        self.block(self.kernel.body)

    def block(self, body: tuple[Op, ...]) -> None:
        observe = self.run_state.observe
        for op in body:
            EXECUTE[type(op)](self, op)
            if observe is not None:
                observe(op, self)

    # ---- values

    def value(self, expr: Expr, origin: Origin, extra: Mapping[str, Any] | None = None) -> Any:
        env = self.env if extra is None else {**self.env, **extra}
        try:
            return evaluate(expr, env, self.run_state.operands)
        except UnboundName as missing:
            self.run_state.report("CB505", origin, name=missing.args[0])
            raise _Stop from missing

    def uniform(self, expr: Expr, origin: Origin) -> Any:
        """A value that must be the same for all CTAs of the batch."""
        value = np.asarray(self.value(expr, origin))
        if value.size > 1 and not bool((value == value.flat[0]).all()):
            raise _Split
        return value.flat[0].item()

    def lanes_to_columns(self, rows: Array, columns: int) -> Array:
        """A row vector as seen by each column: with four lanes, column c sees the value of quad lane (c % 8) // 2."""
        if rows.shape[2] == 1:
            return rows
        lane = (np.arange(columns) % 8) // 2
        return rows[:, :, lane]

    def tile_env(self, columns: int, element: Array) -> dict[str, Any]:
        env: dict[str, Any] = {name: self.lanes_to_columns(r, columns) for name, r in self.rows.items()}
        env["s"] = element
        env["i"] = self.row_index
        if "kv0" in self.env:
            env["j"] = np.asarray(self.env["kv0"]) + np.arange(columns).reshape(1, 1, -1)
        return env

    def row_env(self, lanes: int) -> dict[str, Any]:
        env: dict[str, Any] = dict(self.rows)
        env["i"] = self.row_index
        env["lane"] = np.arange(lanes).reshape(1, 1, -1)
        return env

    def full(self, value: Any, columns: int) -> Array:
        return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), (self.batch, self.kernel.Br, columns)))

    def operand(self, name: str, slot: Expr | None, origin: Origin) -> Array:
        """A matrix operand: a shared buffer slot or a register tile."""
        if name in self.shared.slots:
            index = int(self.uniform(slot, origin)) if slot is not None else 0
            return self.shared.read(name, index, origin)
        if name not in self.tiles:
            self.run_state.report("CB503", origin, buffer=name)
            raise _Stop
        return self.tiles[name]

    def rounded(self, data: Array) -> Array:
        """`data` rounded to the element type of the run, if rounding is on."""
        dtype = self.run_state.rounding
        if dtype not in ROUNDING:
            return data
        from .evaluate import IMPLEMENTATIONS

        with np.errstate(all="ignore"):
            return np.asarray(IMPLEMENTATIONS[ROUNDING[dtype]](data))


# ---- one function per node type ------------------------------------------------------------------------------------


def _alloc(cta: _Cta, op: Alloc) -> None:
    if op.space == "shared":
        cta.shared.allocate(op)
    else:
        cta.shapes[op.name] = (op.rows, op.cols)
        cta.tiles[op.name] = np.full((cta.batch, op.rows, op.cols), np.nan)


def _copy(cta: _Cta, op: Copy) -> None:
    run = cta.run_state
    source = np.asarray(run.tensors[op.tensor], dtype=np.float64)
    head = np.asarray(cta.value(op.head, op.origin) if op.head is not None else _own_head(cta, op))
    head = np.broadcast_to(head.reshape(-1) if head.size == cta.batch else head.reshape(-1)[:1], (cta.batch,)).astype(
        int
    )
    row0 = int(cta.uniform(op.row0, op.origin))
    rows = np.arange(row0, row0 + op.rows)
    if op.table and op.table not in run.operands:
        run.report("CB505", op.origin, name=op.table)
        raise _Stop
    table = np.asarray(run.operands[op.table]) if op.table else None
    extent = source.shape[2] if table is None else min(run.sizes["Sk"], table.shape[1] * op.page)
    valid = (rows >= 0) & (rows < extent)
    wanted = rows >= row0  # all
    if op.limit is not None:
        wanted = rows < int(cta.uniform(op.limit, op.origin))
    outside = wanted & ~valid
    if outside.any() and extent:
        bad = rows[outside]
        run.report("CB508", op.origin, first=int(bad[0]), last=int(bad[-1]), tensor=op.tensor, rows=extent)
    data = np.zeros((cta.batch, op.rows, source.shape[3]))
    inside = wanted & valid
    heads_ok = (head >= 0) & (head < source.shape[1])
    picked = np.clip(head, 0, source.shape[1] - 1).reshape(-1, 1)
    block, row = cta.b.reshape(-1, 1), rows[inside].reshape(1, -1)
    if table is not None:
        block, row = table[block, row // op.page], row % op.page
    data[:, inside] = source[block, picked, row]
    data[:, outside] = np.nan
    data[~heads_ok] = np.nan
    if op.buffer in cta.tiles and op.buffer not in cta.shared.slots:
        cta.tiles[op.buffer] = data  # a register tile loaded straight from global memory
        return
    signal = int(cta.uniform(op.signal, op.origin)) if op.signal is not None else None
    slot = int(cta.uniform(op.slot, op.origin))
    cta.shared.write(op.buffer, slot, data, is_async=op.is_async, origin=op.origin, signal=signal)


def _own_head(cta: _Cta, op: Copy) -> Any:
    """The head that the grid map gives the CTA for this tensor."""
    return cta.h if op.tensor == "q" else cta.env["hk"]


def _commit(cta: _Cta, op: CpCommit) -> None:
    cta.shared.commit()


def _wait(cta: _Cta, op: CpWait) -> None:
    if op.signal is None:
        cta.shared.wait(op.pending)
    else:
        cta.shared.wait_for(int(cta.uniform(op.signal, op.origin)))


def _barrier(cta: _Cta, op: Barrier) -> None:
    if op.scope != "warp":
        cta.shared.barrier()


def _load_tile(cta: _Cta, op: LoadTile) -> None:
    data = cta.operand(op.buffer, op.slot, op.origin)
    cta.tiles[op.dst] = np.swapaxes(data, 1, 2).copy() if op.transposed else data.copy()


def _for(cta: _Cta, op: For) -> None:
    lo, hi = int(cta.uniform(op.lo, op.origin)), int(cta.uniform(op.hi, op.origin))
    for value in range(lo, hi, op.step):
        cta.env[op.iv] = value
        cta.block(op.body)
        if op.role == "kv_loop":
            cta.run_state.tiles += cta.batch


def _if(cta: _Cta, op: If) -> None:
    cta.block(op.body if cta.uniform(op.cond, op.origin) else op.orelse)


def _let(cta: _Cta, op: Let) -> None:
    cta.env[op.name] = cta.value(op.value, op.origin)


def _fill(cta: _Cta, op: Fill) -> None:
    rows, cols = cta.shapes.get(op.tile, (cta.kernel.Br, cta.kernel.Bc))
    value = np.asarray(cta.value(op.value, op.origin), dtype=np.float64)
    cta.tiles[op.tile] = np.array(np.broadcast_to(value, (cta.batch, rows, cols)))


def _mma(cta: _Cta, op: Mma) -> None:
    a = cta.operand(op.a, op.a_slot, op.origin)
    b = cta.operand(op.b, op.slot, op.origin)
    if op.rounds_a:
        a = cta.rounded(a)
    with np.errstate(all="ignore"):
        product = a @ (np.swapaxes(b, 1, 2) if op.role == "qk" else b)
    cta.tiles[op.acc] = cta.tiles[op.acc] + product


def _element_wise(cta: _Cta, dst: str, src: str, expr: Expr, origin: Origin) -> None:
    element = cta.operand(src, None, origin)
    columns = element.shape[2]
    cta.tiles[dst] = cta.full(cta.value(expr, origin, cta.tile_env(columns, element)), columns)


def _score(cta: _Cta, op: Score) -> None:
    _element_wise(cta, op.tile, op.tile, op.expr, op.origin)


def _mask(cta: _Cta, op: Mask) -> None:
    element = cta.tiles[op.tile]
    columns = element.shape[2]
    env = cta.tile_env(columns, element)
    keep = np.asarray(cta.value(op.keep, op.origin, env), dtype=bool)
    if op.guard is not None:
        tested = np.asarray(cta.value(op.guard, op.origin), dtype=bool)
        keep = keep | ~(tested if tested.ndim else np.full((1, 1, 1), tested))
    fill = cta.value(op.fill, op.origin, env)
    cta.tiles[op.tile] = cta.full(np.where(keep, element, fill), columns)


def _map(cta: _Cta, op: Map) -> None:
    _element_wise(cta, op.dst, op.src, op.expr, op.origin)


def _row_reduce(cta: _Cta, op: RowReduce) -> None:
    tile = cta.operand(op.src, None, op.origin)
    init = np.asarray(cta.value(op.init, op.origin, cta.row_env(op.lanes)), dtype=np.float64)
    reduce = np.fmax.reduce if op.role == "row_max" else np.add.reduce
    with np.errstate(all="ignore"):
        if op.lanes == 1:
            partial = reduce(tile, axis=2, keepdims=True)
        else:
            # Quad lanes own columns 2t and 2t+1 of every group of eight.
            grouped = tile.reshape(*tile.shape[:2], -1, 4, 2)
            partial = reduce(reduce(grouped, axis=4), axis=2)
        joined = np.fmax(init, partial) if op.role == "row_max" else init + partial
    cta.rows[op.dst] = np.array(np.broadcast_to(joined, (cta.batch, cta.kernel.Br, op.lanes)))


def _lane_reduce(cta: _Cta, op: LaneReduce) -> None:
    row = cta.rows[op.row]
    combined = np.fmax.reduce(row, axis=2, keepdims=True) if op.op == "max" else row.sum(axis=2, keepdims=True)
    cta.rows[op.row] = np.array(np.broadcast_to(combined, row.shape))


def _row_map(cta: _Cta, op: RowMap) -> None:
    value = cta.value(op.expr, op.origin, cta.row_env(op.lanes))
    cta.rows[op.row] = np.array(
        np.broadcast_to(np.asarray(value, dtype=np.float64), (cta.batch, cta.kernel.Br, op.lanes))
    )


def _stored_rows(cta: _Cta, limit: Expr | None, tensor: str, origin: Origin) -> Array:
    """The rows of the tile that are stored; rows outside the tensor are a finding."""
    rows = cta.row_index.reshape(-1)
    wanted = np.ones(rows.shape, dtype=bool)
    if limit is not None:
        wanted = rows < int(cta.uniform(limit, origin))
    outside = rows[wanted & (rows >= cta.run_state.sizes["Sq"])]
    if outside.size:
        extent = cta.run_state.sizes["Sq"]
        cta.run_state.report("CB508", origin, first=int(outside[0]), last=int(outside[-1]), tensor=tensor, rows=extent)
    return wanted & (rows < cta.run_state.sizes["Sq"])


def _store_tile(cta: _Cta, op: StoreTile) -> None:
    element = cta.operand(op.src, None, op.origin)
    columns = element.shape[2]
    data = cta.rounded(cta.full(cta.value(op.expr, op.origin, cta.tile_env(columns, element)), columns))
    stored = _stored_rows(cta, op.limit, op.tensor, op.origin)
    rows = cta.row_index.reshape(-1)[stored]
    cta.run_state.o[cta.b.reshape(-1, 1), cta.h.reshape(-1, 1), rows.reshape(1, -1)] = data[:, stored]


def _store_row(cta: _Cta, op: StoreRow) -> None:
    lanes = max((r.shape[2] for r in cta.rows.values()), default=1)
    value = np.asarray(cta.value(op.expr, op.origin, cta.row_env(lanes)), dtype=np.float64)
    data = np.broadcast_to(value, (cta.batch, cta.kernel.Br, lanes))[:, :, 0]
    stored = _stored_rows(cta, op.limit, op.tensor, op.origin)
    rows = cta.row_index.reshape(-1)[stored]
    if cta.run_state.lse is not None:
        cta.run_state.lse[cta.b.reshape(-1, 1), cta.h.reshape(-1, 1), rows.reshape(1, -1)] = data[:, stored]


def _opaque(cta: _Cta, op: Opaque) -> None:
    if op.writes:
        cta.run_state.report("CB504", op.origin, what=", ".join(op.writes), why=op.why)
        raise _Stop


EXECUTE: dict[type[Op], Callable[[_Cta, Any], None]] = {
    Alloc: _alloc,
    Copy: _copy,
    CpCommit: _commit,
    CpWait: _wait,
    Barrier: _barrier,
    LoadTile: _load_tile,
    For: _for,
    If: _if,
    Let: _let,
    Fill: _fill,
    Mma: _mma,
    Score: _score,
    Mask: _mask,
    Map: _map,
    RowReduce: _row_reduce,
    LaneReduce: _lane_reduce,
    RowMap: _row_map,
    StoreTile: _store_tile,
    StoreRow: _store_row,
    Opaque: _opaque,
}

"""CuIR nodes: one screen of definitions, each with its fields commented, no behaviour.

A program describes one CTA of an attention kernel on *tiles*. Tiles are named; the interpreter keeps one array per
name:

- shared buffers ``[slots, rows, cols]`` written by ``Copy`` and read by ``LoadTile`` (or directly by ``Mma`` in scalar
kernels); - score-shaped register or shared tiles ``[Br, Bc]`` (S, P) and output-shaped ones ``[Br, Dv]`` (O);
- row vectors ``[Br, lanes]`` (m, l, correction). ``lanes`` is 1, or 4 when each row is shared by the four lanes of a
quad and
  the vector holds per-lane partial values until a ``LaneReduce``.

Expressions use the shared scalar language. Canonical names everywhere in a body: ``qt`` (query tile index), ``q0``
(= qt * Br), ``b h hk``, sizes ``Sq Sk H Hkv B D``, kernel parameters by their source name when they have no canonical
one, loop variables, ``Let`` names. Inside the KV loop a ``Let("kv0", ...)`` names the first key column of the tile;
element-wise ops see ``j = kv0 + column`` and ``i = q0 + row``, ``s`` (the element being mapped) and row vectors by
name; row ops see ``lane`` (0..lanes-1). Column c of a row belongs to quad lane ``(c % 8) // 2``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Span
from .expr import Expr


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from. Two programs are compared without their origins."""

    span: Span | None = None  # the user's text, at the call site
    provenance: str = "syntax"  # syntax | observed | rule | model | user
    callee: Span | None = None  # the line inside the device function that was inlined, if any
    also: tuple[Span, ...] = ()  # further statements that compute what the node stores
    where: Span | None = None  # the innermost statement, or the phase that inline PTX is for, if not `span`

    @property
    def shown(self) -> Span | None:
        """The line to show a reader."""
        return self.where or self.span


NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter, in signature order. `role` comes from data flow, never from the name.

    Roles: q k v o lse | operand:<tensor> | Sq Sk H Hkv B group | scale scale_log2 | flag | stride:<role>.<b|h|row> |
    scalar | scratch | unused.
    """

    name: str
    ctype: str  # as written: 'const __half *__restrict__', 'int'
    role: str
    position: int
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class GridMap:
    """Which part of the problem a CTA computes: expressions over block ids ``bx by bz`` and parameters."""

    q_tile: Expr  # first query row is q_tile * Br
    b: Expr
    h: Expr
    hk: Expr  # over h, H, Hkv (canonical names), e.g. h // (H // Hkv)
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all operations."""


# ---- memory -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alloc(Op):
    """A buffer. Shared memory starts poisoned; registers start undefined."""

    name: str
    slots: int  # pipeline stages
    rows: int
    cols: int
    dtype: str  # float16 | bfloat16 | float32 | io (the kernel's element type)
    space: str  # shared | register
    layout: str = "row"  # row | padded | swizzle | fragment
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Copy(Op):
    """Global tile -> shared buffer slot: rows ``row0 .. row0+rows`` of `tensor` (role q, k or v). Rows >= limit become
    zero.

    Asynchronous copies (cp.async) become readable only after a CpWait that covers their group, and a barrier. A TMA
    copy has a `signal`, the number of the mbarrier that it completes on: it is readable after a CpWait for that.

    With a `table` (the name of an int32 operand [B, n]) the tensor is a cache of pages [pages, Hkv, page, D]: row r of
    sequence b is row ``r % page`` of page ``table[b, r // page]``.
    """

    buffer: str
    slot: Expr
    tensor: str
    row0: Expr
    rows: int
    limit: Expr | None  # None: rows are not predicated
    is_async: bool
    vector_bytes: int = 0
    head: Expr | None = None  # the head read, over h, H, Hkv; None: GridMap's (h for q, hk for k and v)
    table: str = ""  # '': the rows of a sequence lie one behind the other
    page: int = 0  # rows of a page
    signal: Expr | None = None  # None: it belongs to a group
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class CpCommit(Op):
    """cp.async.commit_group: close the group of copies issued so far."""

    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class CpWait(Op):
    """cp.async.wait_group N: all but the `pending` newest groups have landed. With a `signal`: what completes on that
    mbarrier has landed, and every thread that waited sees it.
    """

    pending: int
    signal: Expr | None = None
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Barrier(Op):
    """__syncthreads and relatives. Of a barrier for a ``part`` of the threads it is not known here who copied and who
    reads: it counts as one that lies between them.
    """

    scope: str = "cta"  # warp | part | cta
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LoadTile(Op):
    """Shared buffer slot -> register tile (ldmatrix, or plain loads kept in registers)."""

    dst: str
    buffer: str
    slot: Expr
    transposed: bool = False
    origin: Origin = field(default=NOWHERE, compare=False)


# ---- control ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class For(Op):
    """``for iv in [lo, hi) by step``. Role: kv_loop | q_loop | other."""

    iv: str
    lo: Expr
    hi: Expr
    step: int
    role: str
    body: tuple[Op, ...]
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class If(Op):
    """A uniform condition over parameters, tile indices and loop variables."""

    cond: Expr
    body: tuple[Op, ...]
    orelse: tuple[Op, ...] = ()
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Let(Op):
    """A uniform integer scalar (``n_tiles``), visible to every later op."""

    name: str
    value: Expr
    origin: Origin = field(default=NOWHERE, compare=False)


# ---- matrix -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fill(Op):
    """Every element of a tile becomes `value`."""

    tile: str
    value: Expr
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Mma(Op):
    """``acc += a @ b``. Role qk: a [Br, D], b = K tile used transposed -> [Br, Bc]. Role pv: a [Br, Bc], b = V tile ->
    [Br, Dv].

    `b` names a shared buffer (with `slot`) or a register tile (slot None). `rounds_a` rounds a to the element type
    first (P as fp16).
    """

    role: str  # qk | pv
    acc: str
    a: str
    b: str
    slot: Expr | None
    atom: str  # fma | mma.m16n8k16 | wmma | wgmma
    a_slot: Expr | None = None
    rounds_a: bool = False
    origin: Origin = field(default=NOWHERE, compare=False)


# ---- scores and online softmax --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score(Op):
    """S[i, j] = expr(s, i, j, ...), evaluated on finite raw scores, before any mask."""

    tile: str
    expr: Expr
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Mask(Op):
    """S[i, j] = S[i, j] if keep else fill, on tiles where `guard` holds (None: on every tile).

    `keep` is True where the key is attended. `kv0` (first column of the tile) and `q0` are free names of `guard`.
    """

    tile: str
    keep: Expr
    fill: Expr
    guard: Expr | None
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Map(Op):
    """dst[i, *] = expr(s, row vectors, ...), element-wise on a tile; `s` is src's element. Role: exp | rescale | cast
    | scale | other.
    """

    role: str
    dst: str
    src: str
    expr: Expr
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class RowReduce(Op):
    """dst[i, lane] = op(init, over the lane's columns of src). With lanes == 1 over all columns. Role row_max |
    row_sum.
    """

    role: str
    dst: str
    src: str
    init: Expr  # over row vectors; e.g. the old m, or l * correction
    lanes: int
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LaneReduce(Op):
    """Combine the partial values of a row's lanes (quad shuffle): afterwards every lane holds the result. op: max |
    sum.
    """

    op: str
    row: str
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class RowMap(Op):
    """row[i, lane] = expr over row vectors, i, lane, sizes and parameters. Role: init | correction | rescale | guard |
    lse | other.
    """

    role: str
    row: str
    lanes: int
    expr: Expr
    origin: Origin = field(default=NOWHERE, compare=False)


# ---- epilogue -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreTile(Op):
    """tensor[b, h, i, :] = expr(s = src element, row vectors) for rows i < limit. `tensor` is the role ('o')."""

    tensor: str
    src: str
    expr: Expr
    limit: Expr | None
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class StoreRow(Op):
    """tensor[b, h, i] = expr(row vectors) for rows i < limit ('lse')."""

    tensor: str
    expr: Expr
    limit: Expr | None
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Opaque(Op):
    """What was not understood, with conservative effects. A program with an Opaque that writes a live tile does not
    execute.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    why: str
    origin: Origin = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A lifted or transferred program.

    `tensors` gives, for each role with memory (q k v o lse operand:*), the element strides as expressions over
    parameters in the order of its axes: q/k/v/o ``(b, h, row)``, lse ``(b, h, row)``, operands in their logical axis
    order. `instantiation` holds template values used (``{"D": 64}``). `exp_unit` is the factor u with which S stands
    for natural scores: natural = S * u, as an expression over parameters (``scale_log2 * ln 2`` when S is raw and exp2
    takes ``s * scale_log2``).
    """

    name: str
    params: tuple[Param, ...]
    grid: GridMap
    Br: int
    Bc: int
    D: int  # width of Q and K
    Dv: int  # width of V and O
    threads: int
    family: str  # scalar | mma
    body: tuple[Op, ...]
    exp_unit: Expr
    tensors: dict[str, tuple[Expr, ...]] = field(default_factory=dict, hash=False)
    instantiation: dict[str, int | str] = field(default_factory=dict, hash=False)
    origin: Origin = field(default=NOWHERE, compare=False)

"""What a spec means: plain data, no torch. Produced by reading the spec, consumed by transfer and verify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..diagnostics import Diagnostic, Span
from ..ir.evaluate import evaluate
from ..ir.expr import Expr, Read, Var, free_vars, walk


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor argument of the spec.

    `axes` names each axis of the tensor as the user passes it: for q ``("b", "h", "i", "d")`` is BHSD and
    ``("b", "i", "h", "d")`` BSHD (k and v use ``hk`` and ``j``); for an operand the extent of each axis,
    ``"B" | "H" | "Hkv" | "Sq" | "Sk" | "1"`` or a number.
    """

    name: str
    role: str  # 'q' | 'k' | 'v' | 'operand'
    axes: tuple[str, ...]
    dtype: str  # 'float16' | 'bfloat16' | 'float32' | 'float64' | 'int32' | 'int64' | 'bool'
    position: int  # argument position in attention(...)
    span: Span | None = None
    observed: tuple[float, float] | None = None  # least and greatest value in the example: inputs are made alike
    computed: str = ""  # "line 12: q = self.wq(x)" for a tensor computed before the attention; '' for an argument


@dataclass(frozen=True, slots=True)
class TensorOutput:
    """One returned tensor: role 'o' (axes b, h, i, d in the user's order) or 'lse' (axes b, h, i; natural
    logarithm).
    """

    role: str
    axes: tuple[str, ...]
    dtype: str
    position: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class LineMeaning:
    """What a line of the spec (from 0) became: its `text`, the kinds of what is on it ('mask', 'score', 'output' ...)
    and `what` in words, with the numbers of the example.
    """

    line: int
    text: str
    kinds: tuple[str, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Cut:
    """How the attention stands in a larger function, whose arguments are not those of the kernel.

    `calls`: how many times the function calls it. `before` and `after` are the user's lines (from 0) that stay in
    torch: those that compute its inputs, and those that go on with its output.
    """

    calls: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Paging:
    """Keys and values that lie in pages of a cache: row j of sequence b is row ``j % size`` of page
    ``table[b, j // size]``.

    `table` (int32 or int64 [B, n], entries from 0), `k` and `v` are arguments of the function; k and v of the
    `Attention` are what gathering gives. The orders bring the axes of a cache to [pages, Hkv, size, D].
    """

    table: str
    size: int
    k: str
    v: str
    k_order: tuple[int, ...]
    v_order: tuple[int, ...]
    dtype: str = "int32"  # of the table
    bytes: int = 0  # what gathering k and v would copy in the example


@dataclass(frozen=True, slots=True)
class Attention:
    """The mathematics of one attention function.

    For query row i, key column j, batch b, head h::

        s        = q[b,h,i,:] . k[b,head_map,j,:]            raw dot product, no scale
        score    = an expression over s, b, h, i, j, Sq, Sk, ... and reads of operands (natural units, scale included)
        x        = score where mask else fill
        p        = softmax over j of x                         (sink: one more column of that logit, no value)
        o        = sum_j p * v[b,head_map,j,:]
        lse      = log sum_j exp(x)  (+ exp(sink))             natural logarithm

    With a `normaliser` other than 'softmax' the element itself is the weight (sigmoid, ReLU, a decayed score ...)::

        p        = x                                           fill is 0: what is masked weighs nothing
        l        = sum_j p   ('sum')   |   sum_j |p|   ('abs_sum')   |   not used   ('none')
        o        = sum_j p * v[b,head_map,j,:] / divisor       divisor: over l, b, h, i, sizes; None is 1

    `mask` is None when nothing is masked; it is True where the key is attended. `fill` is -inf or the finite sentinel
    as a Const. `head_map` is an expression over h, H, Hkv (``h // (H // Hkv)``; ``h`` when H == Hkv always).
    `empty_rows` says what the spec returns on a row whose keys are all masked: 'nan', 'zero', or 'computed' (finite
    fill or a sink: the formula above holds as it stands), or 'none' when no row can be empty.
    `spans` maps 'score', 'mask', 'sink', 'head_map', 'normaliser', 'function' and each operand's name to the user's
    lines.
    """

    name: str
    path: str
    inputs: tuple[TensorInput, ...]
    outputs: tuple[TensorOutput, ...]
    head_map: Expr
    score: Expr
    mask: Expr | None
    fill: Expr
    sink: Expr | None
    normaliser: str  # 'softmax' | 'none' | 'sum' | 'abs_sum'
    empty_rows: str
    spans: dict[str, Span] = field(default_factory=dict, hash=False)
    specialised: dict[str, int] = field(default_factory=dict, hash=False)  # sizes fixed by tracing, e.g. {"D": 64}
    equal_sizes: tuple[tuple[str, str], ...] = ()  # sizes the spec only accepts equal, e.g. (("Sq", "Sk"),)
    ordered_sizes: tuple[tuple[str, str], ...] = ()  # the first must not exceed the second: queries end where keys do
    size_step: int = 1  # Sq and Sk must be multiples of it (a spec that views the sequence in blocks)
    demands: tuple[Expr, ...] = ()  # conditions on sizes that the kernel's contract adds: what it is not made for
    diagnostics: tuple[Diagnostic, ...] = ()
    divisor: Expr | None = None
    cut: Cut | None = None  # None: the function is the attention
    paging: Paging | None = None  # where k and v lie, if not in rows of their own
    meanings: tuple[LineMeaning, ...] = field(default=(), compare=False, hash=False)

    def input(self, role_or_name: str) -> TensorInput:
        """The input of that role (q, k, v) or that name. Raises KeyError."""
        for item in self.inputs:
            if item.name == role_or_name or (item.role == role_or_name and item.role != "operand"):
                return item
        raise KeyError(role_or_name)

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """True when the spec is defined, and was read, for these sizes (missing ones are not tested)."""
        fixed = all(sizes.get(name, value) == value for name, value in self.specialised.items())
        equal = all(sizes.get(a) == sizes.get(b) for a, b in self.equal_sizes if a in sizes and b in sizes)
        pairs = ((sizes[a], sizes[b]) for a, b in self.ordered_sizes if a in sizes and b in sizes)
        ordered = all(a <= b for a, b in pairs)
        steps = all(sizes.get(name, 0) % self.size_step == 0 for name in ("Sq", "Sk"))
        ends = all(sizes.get(name, 0) <= longest for name, longest in self.table_ends)
        demands = all(bool(evaluate(e, sizes)) for e in self.demands if free_vars(e) <= set(sizes))
        return fixed and equal and ordered and steps and ends and demands

    @property
    def table_ends(self) -> tuple[tuple[str, int], ...]:
        """Lengths that an operand of fixed size limits: it is read at the row or key itself, and ends there."""
        axes = {item.name: item.axes for item in self.operands}
        found = {
            ({"i": "Sq", "j": "Sk"}[index.name], int(axis))
            for part in (self.score, self.mask, self.sink, self.divisor)
            if part is not None
            for read in walk(part)
            if isinstance(read, Read)
            for axis, index in zip(axes.get(read.tensor, ()), read.index, strict=False)
            if axis.isdigit() and isinstance(index, Var) and index.name in ("i", "j")
        }
        return tuple(sorted(found))

    @property
    def operands(self) -> tuple[TensorInput, ...]:
        """Extra tensors: slopes, bias, sinks, masks given as data."""
        return tuple(item for item in self.inputs if item.role == "operand")


def widths_of(attention: Attention, otherwise: tuple[int, int]) -> tuple[int, int]:
    """(D, Dv): the widths of q and k, and of v; `otherwise` where the spec leaves them open."""
    d = attention.specialised.get("D")
    return otherwise if d is None else (d, attention.specialised.get("Dv", d))

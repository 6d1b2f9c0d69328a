"""What transfer returns: the target program, what to bind, and the steps that led there. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Diagnostic, Span
from ..ir.expr import Expr
from ..ir.nodes import Kernel, Param
from .tile_lists import TileList


@dataclass(frozen=True, slots=True)
class Check:
    """A named safety condition of a rule and how it came out. `detail` says why in one clause."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """Base of the changes a rule makes; lowering prints each at its anchor."""


@dataclass(frozen=True, slots=True)
class ScoreEdit(Edit):
    """S = expr(s, i, j, ...) where the raw score tile is complete; `s` is the element there, in the kernel's unit.

    `natural` is the same change in natural units (for the comment): what the spec calls the score, over ``s``.
    """

    expr: Expr
    natural: Expr
    name: str = "S"  # what it is called: P where the score is the weight


@dataclass(frozen=True, slots=True)
class NormaliserEdit(Edit):
    """The online softmax is taken out: P is the score tile as it stands after the mask, whose fill becomes 0.

    `rows` says what the row sum ``l`` goes on adding up ('none', 'sum', 'abs_sum'); O is divided by `divisor` (over
    ``l``, indices and sizes), or by nothing (None).
    """

    rows: str
    divisor: Expr | None


@dataclass(frozen=True, slots=True)
class MaskEdit(Edit):
    """Change of the element test.

    `guarded` conjuncts join the existing test; `always` conjuncts need every tile and get a test of their own after
    the score; `replace` (True where attended, tail included) stands for the whole existing test instead. `guard` is
    or-ed to the tile guard, or replaces it together with the test. Guards use ``q0 kv0 Br Bc`` by name.
    """

    guarded: tuple[Expr, ...] = ()
    always: tuple[Expr, ...] = ()
    guard: Expr | None = None
    replace: Expr | None = None
    index: int = 0  # which of the kernel's tests
    fill: Expr | None = None  # what the kernel's tests write from now on; None: as it was


@dataclass(frozen=True, slots=True)
class RangeEdit(Edit):
    """First and last-plus-one key column a Q tile needs, over ``q0 Sq Sk Br b h`` (None: as it was). `replace_hi`: the
    old bound is wrong.
    """

    lo: Expr | None
    hi: Expr | None
    replace_hi: bool = False


@dataclass(frozen=True, slots=True)
class WalkEdit(Edit):
    """The KV loop walks the list of tiles in `tensor` (see `tile_lists`): names of the loop variable, of the number of
    tiles and of that of the partial ones, as the program has them.
    """

    tensor: str
    iv: str
    count: str
    partial: str


@dataclass(frozen=True, slots=True)
class PagedEdit(Edit):
    """Rows of k and v are looked up in the table `tensor`: row r of batch b is row ``r % size`` of page
    ``tensor[b, r // size]``, and the kernel's batch strides of k and v are those of a page.
    """

    tensor: str
    size: int


@dataclass(frozen=True, slots=True)
class StateEdit(Edit):
    """Initial value of the row state `role` (m or l), in the kernel's unit."""

    role: str
    value: Expr


@dataclass(frozen=True, slots=True)
class HeadEdit(Edit):
    """The KV head of a query head, over h, H, Hkv."""

    expr: Expr


@dataclass(frozen=True, slots=True)
class InverseEdit(Edit):
    """1/l at the end: with the test for an empty row (guarded) or without, so that NaN comes out."""

    guarded: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """A new tensor parameter: element type, logical axes (extents), and a stride parameter's name (or a constant) for
    each axis.
    """

    name: str  # the spec's argument
    param: str  # the kernel's parameter
    dtype: (
        str  # 'io' when it has the kernel's own element type, else float32 | float16 | bfloat16 | int32 | int64 | bool
    )
    axes: tuple[str, ...]
    strides: tuple[Expr, ...]
    stride_params: tuple[str, ...]
    span: Span | None = None
    tiles: TileList | None = None  # the operand is not an argument of the spec: the caller makes it from the mask
    page: int = 0  # it is the table of the pages of k and v, of so many rows; 0: it is not


@dataclass(frozen=True, slots=True)
class ParamEdit(Edit):
    """New parameters at the end of the kernel's list: those of one operand."""

    operand: Operand
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One rule applied: its edits, its checks, and the spec line that asked for it. An empty `edits` is a binding
    only.
    """

    rule: str
    reason: str
    edits: tuple[Edit, ...] = ()
    checks: tuple[Check, ...] = ()
    spec_span: Span | None = None


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The outcome. `target` is None when a diagnostic is an error.

    `bindings` maps kernel parameters to the value the launch must pass at this head dimension; `binding_texts` the
    same as expressions over D (text form), for files that serve several head dimensions. `notes` repeats the spec's
    unit-free reading for people.
    """

    target: Kernel | None
    bindings: dict[str, float | int] = field(default_factory=dict, hash=False)
    binding_texts: dict[str, str] = field(default_factory=dict, hash=False)
    steps: tuple[Step, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def edits(self) -> tuple[tuple[Step, Edit], ...]:
        """Every edit with the step it belongs to, in order."""
        return tuple((step, edit) for step in self.steps for edit in step.edits)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The new tensor parameters, in signature order; those with `tiles` are made by the caller, one with `page` is
        the table of the pages of k and v.
        """
        return tuple(edit.operand for _, edit in self.edits if isinstance(edit, ParamEdit))

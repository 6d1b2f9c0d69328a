"""What watching a kernel run gives: the function of its output, what each instruction holds, and where that stops.

Indices of a table are (b, h, i, j) and so on as in ``AXES``; lines of spans are 0-based. Everything but the arrays of
`Problem` and `Meaning` is plain data that can be compared and written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Span

Array = NDArray[Any]
Confidence = Literal["certain", "likely"]
Units = Literal["", "raw", "scaled", "log2"]

# What an instruction's result can be, in the order in which a kernel makes them, with the axes of its index.
# `t` counts the KV tiles that a row has gone through.
AXES: dict[str, tuple[str, ...]] = {
    "Q": ("b", "h", "i", "d"),
    "K": ("b", "h", "j", "d"),
    "V": ("b", "h", "j", "d"),
    "S": ("b", "h", "i", "j"),  # scores before the mask, in the units of the label
    "score": ("b", "h", "i", "j"),  # scores after a function of a score (a cap, a bias), where there is one
    "masked S": ("b", "h", "i", "j"),  # a select: the scores where they are attended, minus infinity elsewhere
    "masked score": ("b", "h", "i", "j"),
    "tile max": ("b", "h", "i", "t"),
    "m": ("b", "h", "i", "t"),  # running row maximum
    "reference": ("b", "h", "i", "t"),  # what is subtracted in place of m, where that is something else
    "correction": ("b", "h", "i", "t"),  # exp(m before - m)
    "P": ("b", "h", "i", "j"),  # exp(S - m)
    "tile sum": ("b", "h", "i", "t"),
    "l": ("b", "h", "i", "t"),  # running row sum
    "tile PV": ("b", "h", "i", "d", "t"),
    "O rescaled": ("b", "h", "i", "d", "t"),  # the accumulator after the correction, before the tile's P V
    "O unnormalised": ("b", "h", "i", "d", "t"),
    "1/l": ("b", "h", "i"),
    "O": ("b", "h", "i", "d"),
    "LSE": ("b", "h", "i"),
}
ROLES = tuple(AXES)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem to watch: sizes, and inputs as the kernel gets them (rounded to `dtype`), float64.

    q ``[B, H, Sq, D]``, k ``[B, Hkv, Sk, D]``, v ``[B, Hkv, Sk, Dv]``. `scale` is what the caller passes where the
    kernel takes one, `causal` the flag where it has one. `operands` are further tensors by parameter, `values` further
    scalars.
    """

    B: int
    H: int
    Hkv: int
    Sq: int
    Sk: int
    D: int
    Dv: int
    dtype: str
    scale: float
    causal: bool
    q: Array = field(repr=False, compare=False)
    k: Array = field(repr=False, compare=False)
    v: Array = field(repr=False, compare=False)
    operands: Mapping[str, Array] = field(default_factory=dict[str, Array], repr=False, compare=False)
    values: Mapping[str, float | int] = field(default_factory=dict[str, "float | int"])

    @property
    def sizes(self) -> dict[str, int]:
        """B, H, Hkv, Sq, Sk, D, Dv."""
        return {name: getattr(self, name) for name in ("B", "H", "Hkv", "Sq", "Sk", "D", "Dv")}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kernel should compute on a problem, before rounding, as arrays over all query heads.

    `raw` is Q K^T ``[B, H, Sq, Sk]``, `scores` what the weights are made of (natural units, before the mask), `mask`
    is True where a key is attended (broadcastable to `scores`), `v` ``[B, H, Sk, Dv]`` the values by query head.
    `weights`: ``softmax``, or the function of a single score (``sigmoid``, ``relu``). `sink` ``[B, H, Sq]`` is a
    further score in the sum, minus infinity where there is none.
    """

    raw: Array = field(repr=False)
    scores: Array = field(repr=False)
    mask: Array = field(repr=False)
    v: Array = field(repr=False)
    weights: str = "softmax"
    sink: Array | None = field(default=None, repr=False)
    scale: float | None = None  # scores are raw times it; None where they are not
    unit: float | None = None  # natural units of one unit of the raw scores, where there is more than a scale


@dataclass(frozen=True, slots=True)
class Function:
    """The function that the output agrees with.

    `mask` is one of ``function.mask_rows``: ``full``, ``causal`` (top left, j <= i), ``causal bottom-right`` and so on.
    Found by value are `softcap`, a `bias` (a key of ``probe_fit.FEATURES``) times one of `slopes` per head, the `sink`
    of each head, and of the mask ``low <= j - i <= high`` or ``j < first``, within blocks of `block` keys.
    `confirmed`: caps and sinks were looked for.

    `error` is the largest |O - reference| in units of the largest |reference|, and `bound` what was allowed. `lse` says
    in which units LSE is written, '' where it is not. `alike` are masks that this problem cannot tell from it.
    """

    mask: str
    diagonal: int  # the key that query 0 is aligned with
    scale: float
    scale_text: str
    weights: str
    head_map: str
    lse: str
    error: float
    bound: float
    lse_error: float | None = None
    alike: tuple[str, ...] = ()
    meaning: Meaning | None = field(default=None, repr=False, compare=False)
    softcap: float | None = None
    bias: str = ""
    slopes: tuple[float, ...] = ()
    low: int | None = None
    high: int | None = None
    first: int = 0
    block: int = 0
    sink: tuple[float, ...] | None = None
    sink_text: str = ""  # the operand that the sinks are, where there is one
    confirmed: bool = False

    @property
    def name(self) -> str:
        """``causal softmax attention, scale 1/sqrt(D), soft cap 50, sink 1.5, 0.25 by head``."""
        text = f"{self.mask} {self.weights} attention, scale {self.scale_text}"
        if self.softcap is not None:
            text += f", soft cap {self.softcap:g}"
        if self.slopes:
            text += f", bias {_by_head(self.slopes)} times {self.bias}"
        if self.sink is not None:
            text += f", sink {self.sink_text or _by_head(self.sink)}"
        return text


def _by_head(values: tuple[float, ...]) -> str:
    """One number, or one for each head."""
    shown = [f"{x:.3g}" for x in values]
    return shown[0] if len(set(shown)) == 1 else f"{', '.join(shown)} by head"


@dataclass(frozen=True, slots=True)
class AxisMap:
    """One index as an affine function of bits: ``sum of coefficients + offsets[register]``.

    Names of bits: ``t0`` ``t1`` .. of threadIdx (linear), ``x0`` .. ``y0`` .. ``z0`` .. of blockIdx, and ``trip``, the
    executions of the instruction by the thread so far (``trip0`` .. its bits, in nested loops). `exact` is the share of
    the values that it gives right.
    """

    axis: str
    coefficients: Mapping[str, int]
    offsets: tuple[int, ...]
    exact: float
    registers_linear: bool  # the offsets are linear in the bits of the register's number, too


@dataclass(frozen=True, slots=True)
class LaneMap:
    """Which element of a table each lane holds."""

    axes: tuple[AxisMap, ...]

    @property
    def exact(self) -> float:
        """The least share over the axes."""
        return min((a.exact for a in self.axes), default=0.0)

    def axis(self, name: str) -> AxisMap | None:
        """The map of an axis (``i``, ``j``, ``d``)."""
        return next((a for a in self.axes if a.axis == name), None)


@dataclass(frozen=True, slots=True)
class Label:
    """One result register of one instruction, and what it holds.

    `site` is the index of the instruction in the kernel's code, `result` the position among its results, `half` 0 or 1
    for packed values, -1 for 32 bits. `matches` of `of` sampled values agree, `distinct` of them different numbers;
    `null` is the share that agreed with unrelated inputs. `executions`: the share of executions that hold it: an
    accumulation holds it at its last step only. `rounded`: it holds the value rounded to that type.
    """

    site: int
    result: int
    half: int
    opcode: str
    role: str
    units: Units
    rounded: str
    span: Span | None
    chain: tuple[Span, ...]
    matches: int
    of: int
    distinct: int
    null: float
    executions: float
    confidence: Confidence
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """The labels of one role on one line, through one chain of inlined calls (`chain`, innermost first).

    `span` is the line in the kernel's own file that an edit is made at: the outermost call that no other role shares.
    """

    role: str
    units: Units
    rounded: str
    span: Span | None
    chain: tuple[Span, ...]
    opcodes: tuple[str, ...]
    labels: tuple[Label, ...]
    confidence: Confidence
    lane_map: LaneMap | None = None

    @property
    def line(self) -> int:
        """0-based line in the kernel's file; -1 where the compiler gave none."""
        return self.span.line if self.span is not None else -1

    @property
    def matches(self) -> int:
        """Values that agree, of all its registers."""
        return sum(label.matches for label in self.labels)


@dataclass(frozen=True, slots=True)
class KvWalk:
    """What one CTA reads: query rows ``[first, last]`` of a head, and the KV tiles in order, each as its first row."""

    cta: tuple[int, int, int]
    b: int
    h: int
    kv_head: int
    rows: tuple[int, int]
    tiles: tuple[int, ...]
    keys: tuple[int, int]  # the first and the last key that is read

    @property
    def order(self) -> str:
        """``ascending``, ``descending``, ``one tile`` or ``mixed``."""
        steps = {b > a for a, b in zip(self.tiles, self.tiles[1:], strict=False)}
        return {0: "one tile", 2: "mixed"}.get(len(steps)) or ("ascending" if steps == {True} else "descending")


@dataclass(frozen=True, slots=True)
class GridMap:
    """Which index each axis of the grid stands for: ``{"x": "q tile", "y": "h", "z": "b"}``; '' where none moves."""

    axes: Mapping[str, str]
    q_tile: int  # query rows of a CTA
    kv_tile: int  # keys of a tile, as they are read; 0 where it was not seen


@dataclass(frozen=True, slots=True)
class WarpRole:
    """Warps of a CTA (by number) that do the same: ``loads K``, ``stores O``, ``holds S``."""

    warps: tuple[int, ...]
    does: tuple[str, ...]

    @property
    def words(self) -> str:
        """``warps 4 to 11``."""
        first, last = self.warps[0], self.warps[-1]
        if len(self.warps) == 1:
            return f"warp {first}"
        whole = self.warps == tuple(range(first, last + 1))
        return f"warps {first} to {last}" if whole else f"warps {', '.join(map(str, self.warps))}"


@dataclass(frozen=True, slots=True)
class Variant:
    """How the kernel computes: tile width and direction of the KV loop, kind of row maximum (``online``, ``per tile``,
    ``two passes``, ``none``; ``free``: a reference of its own, as it was measured), and what is rounded. `sink`:
    whether one counts from the start (``first``) or at the end (``last``), '' without one. `parts`: how many softmaxes
    of their own the tiles are dealt to in turn, before these are merged.
    """

    bc: int
    descending: bool
    kind: str
    rounding: str = ""
    sink: str = ""
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Watched:
    """A kernel that was watched on one problem.

    `function` is None where the output is no function of the list. `ran` is False where nothing could be executed:
    `diagnostics` say why. `findings` are the simulator's. `seconds` by stage: compile, simulate, match.
    """

    kernel: str
    path: str
    arch: str
    problem: Problem | None
    ran: bool
    function: Function | None
    variant: Variant | None = None
    sites: tuple[Site, ...] = ()
    grid: GridMap | None = None
    walks: tuple[KvWalk, ...] = ()
    warps: tuple[WarpRole, ...] = ()
    findings: tuple[Diagnostic, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float], compare=False)

    def of(self, role: str) -> tuple[Site, ...]:
        """The sites of a role, in the order of the code."""
        return tuple(s for s in self.sites if s.role == role)

    @property
    def complete(self) -> bool:
        """True when S, P and O were found and the function is known."""
        have = {s.role for s in self.sites}
        return self.function is not None and {"S", "P", "O"} <= have

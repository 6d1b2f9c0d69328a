"""Anchors: where in the user's text each fact of the lifted program lives, so that lowering can edit it.

Plain data with byte offsets into the original file. Lifting fills them, lowering reads them; nothing here is guessed:
an anchor that was not found is None or empty and lowering refuses the edits that need it, naming it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import Span


@dataclass(frozen=True, slots=True)
class Names:
    """Source spellings in scope at a site, for canonical names of the scalar language.

    ``{"h": "h", "b": "blockIdx.z", "Sq": "seqlen_q", "q0": "q0", "kv0": "kv0", "row": ..., "col": ..., "lane": "lane",
    "scale_log2": ...}``. A canonical name that no variable holds maps to an expression text in parentheses if one is
    in scope, else it is absent.
    """

    text: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ElementNest:
    """How the user's code walks the elements of the score tile of one thread: the loop nest of the mask (or of exp, if
    there is no mask).

    For ``for (int nb..) { for (int e..) { const int col = ...; s[nb][e] = ...; } }``: `headers` are the loop headers
    (with a preceding ``#pragma unroll`` line, if any) as written; `declarations` the statements inside that define row
    and column; `element` the lvalue text ``s[nb][e]``; `row` and `col` texts whose values are the global i and j there.
    """

    headers: tuple[str, ...]
    declarations: tuple[str, ...]
    element: str
    row: str
    col: str


@dataclass(frozen=True, slots=True)
class ScoreSite:
    """The point after which the raw score tile is complete: insert before `offset` (start of a line, or of the next
    statement).
    """

    offset: int
    indent: str
    nest: ElementNest
    names: Names
    unit_text: (
        str | None
    )  # source text of the factor S -> natural * log2(e), e.g. 'scale_log2'; None when S is natural already
    span: Span
    declarations: tuple[str, ...] = ()  # statements that the nest needs and that are not in scope at `offset`
    raw: Span | None = None  # `element` gets this value at `offset`, and stands for it in the statement behind


@dataclass(frozen=True, slots=True)
class MaskSite:
    """An existing element test. `condition` is the text that is TRUE where the element is MASKED (``masked_when``
    True) or kept.
    """

    condition: Span  # the condition expression inside the nest
    masked_when: bool  # True: `if (cond) s = fill` ; False: `s = cond ? s : fill`
    assignment: Span  # the whole statement that writes the fill (with its if)
    fill: Span  # the fill expression
    guard: Span | None  # the condition of the enclosing per-tile if, or None when every tile is tested
    nest: ElementNest
    names: Names


@dataclass(frozen=True, slots=True)
class TileIndexUse:
    """One token outside the KV loop that stands for the first tile's index: replacing it by x makes the prologue load
    tile x.
    """

    span: Span
    what: str  # 'tile' | 'slot' | 'row0'
    scale: int = 1  # the token stands for x * scale (row0: Bc)


@dataclass(frozen=True, slots=True)
class WalkUse:
    """One place that takes the tile of a trip from the loop variable. `what`: 'tile' (the text is a tile index), 'row0'
    (a first key row), 'argument' (insert the first key row behind the last argument of a call), 'parameter' (insert a
    parameter for it; `base` names the function), 'name' (inside that function, the text is the first key row). The trip
    is ``base + ahead``; an empty base is 0.
    """

    span: Span
    what: str
    base: str
    ahead: int


@dataclass(frozen=True, slots=True)
class WalkSite:
    """What to change for a loop to walk a list of tiles. `header` (initialiser to update) is given for loops over key
    columns, which then count trips and look the column up at `body`, behind the opening brace. `first` is given for
    loops over the positions of work items: what holds an item's first position where scores are masked, in the method
    with `body`, and `trip` the position there.
    """

    uses: tuple[WalkUse, ...]
    header: Span | None
    body: int
    indent: str
    trip: str = ""
    first: str = ""


@dataclass(frozen=True, slots=True)
class LoopSite:
    """The KV loop."""

    span: Span
    iv: str  # source name of the loop variable
    lo: Span  # the initial value expression
    hi: Span  # the bound expression in the condition
    hi_name: str | None  # the variable that holds the bound, if it is one
    hi_definition_end: (
        int | None
    )  # offset after the last statement that sets it, before its first use (insertion point)
    indent: str  # indentation there
    prologue: tuple[TileIndexUse, ...]
    names: Names  # in scope at hi_definition_end
    walk: WalkSite | None = None  # None: the text cannot be made to take its tiles from a list
    counts_keys: bool = False  # `hi_name` is the key behind the last; an item has at least one tile, so lo stays below


@dataclass(frozen=True, slots=True)
class StateSite:
    """Initial value of a row state: m or l."""

    role: str  # m | l
    value: Span  # the initial value expression
    statement: Span
    row: str | None  # source text of the global row there, if in scope
    lanes: int  # 4: per-lane partials of a quad (l must start at a value on ONE lane); 1: one value per row
    names: Names
    at_setup: bool = True  # what is declared at the setup can be used here
    copies: int = 1  # `value` is a list of so many equal values


@dataclass(frozen=True, slots=True)
class EpilogueSite:
    """Where O is normalised and LSE written."""

    inverse: Span | None  # the expression 1/l with its guard
    guarded: bool  # True when l == 0 is tested
    lse: Span | None  # the LSE value expression
    names: Names


@dataclass(frozen=True, slots=True)
class WeightSite:
    """One place where P is computed from S: the call of the exponential, the text of the score element in it, and the
    function called (`op` is exp or exp2).
    """

    exponential: Span
    element: str
    op: str
    function: str


@dataclass(frozen=True, slots=True)
class SoftmaxSite:
    """The online softmax in the text: everything that goes, or changes, when the weights are no softmax.

    `corrections` are the names that take ``exp(m_old - m_new)``, where they are assigned; `sums` the elements of P that
    row sums add; `lse` the stores of the log-sum-exp; `body` the kernel's body. A place may be in a function that the
    kernel calls. `again` are the statements that do a tile again whose maximum has grown, and correct for it.
    """

    weights: tuple[WeightSite, ...]
    corrections: tuple[Span, ...]
    sums: tuple[Span, ...]
    lse: tuple[Span, ...]
    body: Span
    again: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadSite:
    """The expression of the KV head; every K and V base derives from it. `uses` counts the bases found."""

    value: Span
    names: Names
    uses: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """A launch ``k<<<...>>>(args)`` or a call of a launcher: insertion offset after the last argument, and the
    enclosing function.
    """

    insert: int
    enclosing: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class SignatureSite:
    """A parameter list (kernel, launcher): insertion offset after the last parameter and the style of the list."""

    function: str
    insert: int
    separator: str  # text to put between parameters: ', ' or ',\n    '
    span: Span


@dataclass(frozen=True, slots=True)
class CarrierSite:
    """A struct that brings sizes to functions and methods: offset after its last member and the indentation there,
    offset after the last value that the kernel's body gives it, and how the functions spell it (``p.``). `types` are
    template parameters of the kernel that it has under the same name.
    """

    members: int
    indent: str
    values: int
    prefix: str
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageProduct:
    """One ``row * stride`` by which rows of K or V are addressed: its span, both texts, the enclosing statement (None
    where no other can stand before it) and where the block begins that it is in, and the function ('' for the kernel).
    """

    span: Span
    row: str
    stride: str
    statement: Span | None
    block: int
    function: str


@dataclass(frozen=True, slots=True)
class PageCall:
    """A call on the way to such a product: the callee's name as written there, the offset after the last argument, and
    for each row stride of the callee what is passed for it, a row stride of `function` ('' for the kernel).
    """

    callee: str
    name: Span
    insert: int
    strides: tuple[str, ...]
    function: str


@dataclass(frozen=True, slots=True)
class PageFunction:
    """A device function on the way: its row strides (names and types), the offset after its last parameter, and its
    definition. `shared`: it is called for other tensors too, which have no pages.
    """

    name: str
    strides: tuple[str, ...]
    ctypes: tuple[str, ...]
    insert: int
    definition: Span
    shared: bool


@dataclass(frozen=True, slots=True)
class PageSite:
    """What to change for rows of K and V to be looked up in a table of pages. `bases` are the sums of a base address
    with its batch offset and what stays of them; `strides` maps the kernel's row strides to its batch strides.
    """

    products: tuple[PageProduct, ...]
    calls: tuple[PageCall, ...]
    functions: tuple[PageFunction, ...]
    bases: tuple[tuple[Span, str], ...]
    strides: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Anchors:
    """All sites of one kernel."""

    score: tuple[ScoreSite, ...] = ()
    mask: tuple[MaskSite, ...] = ()
    kv_loop: LoopSite | None = None
    state: tuple[StateSite, ...] = ()
    epilogue: EpilogueSite | None = None
    head: HeadSite | None = None
    signature: SignatureSite | None = None
    launchers: tuple[SignatureSite, ...] = ()
    instantiations: tuple[SignatureSite, ...] = ()  # explicit ones, which repeat the kernel's parameter types
    calls: tuple[CallSite, ...] = ()
    setup_offset: int | None = (
        None  # start of a line in the kernel body, after h, b and sizes are in scope, before the KV loop
    )
    setup_indent: str = "  "
    setup_names: Names = Names()
    softmax: SoftmaxSite | None = None  # None: a step of it was not found
    pages: PageSite | None = None  # None: how rows of K and V are addressed was not found
    carrier: CarrierSite | None = None  # None: the sites are in the kernel's own body, where parameters are in scope
    typed_carrier: CarrierSite | None = None  # the same for members of a type that a template parameter names

"""What rules read and write: the kernel as changed so far, the facts both sides were reduced to, the steps taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..diagnostics import Diagnostic, Severity, Span, make
from ..ir.expr import Expr, Var, free_vars, reads
from ..ir.nodes import For, If, Kernel, Op
from ..spec.attention import Attention
from .model import Check, Edit, Step
from .one_length import at_one_length
from .ranges import Interval
from .sampling import Env, bind_unknown, points
from .semantics import Semantics
from .tile_lists import TileList

_KINDS = {"bool": "bool", "int32": "int", "int64": "int"}


@dataclass(frozen=True, slots=True)
class Draft:
    """The state between rules. `sem` describes the kernel as given; `kernel` is the target in the making."""

    kernel: Kernel
    original: Kernel
    attention: Attention
    sem: Semantics
    empty_rows: str  # the policy: 'keep' | 'exact'
    reserved: frozenset[str] = frozenset()  # names the file uses, not to be given to new parameters
    alpha: float = 1.0  # natural = alpha * s, once the scale is bound
    tile_lists: bool = True  # False: the text has no place for a loop over a list of tiles
    pages: bool = True  # False: the text has no place where rows of K and V can be looked up in a table
    element_test: bool = True  # False: the text has no test of elements that can be changed
    moves: tuple[bool, bool] = (True, True)  # whether the text can begin, and end, the loop over keys elsewhere
    padded: bool = False  # the kernel is wider than the spec's own tensors, and its caller widens them
    tiles: TileList | None = None  # the list that the loop walks, and its name as an operand
    tiles_name: str = ""
    interval: Interval | None = None  # the range of keys, where it was worked out
    mask: Expr | None = None  # the spec's mask that is left for the mask rules (a finite fill goes into the score)
    bindings: dict[str, float | int] = field(default_factory=dict, hash=False)
    binding_texts: dict[str, str] = field(default_factory=dict, hash=False)
    steps: tuple[Step, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def refused(self) -> bool:
        """True once a rule has refused."""
        return any(d.severity >= Severity.ERROR for d in self.diagnostics)

    @property
    def types(self) -> dict[str, str]:
        """Types of the operands the spec reads, for typing expressions."""
        kinds = {item.name: _KINDS.get(item.dtype, "float") for item in self.attention.operands}
        flags = {p.name: "int" for p in self.kernel.params if p.role.startswith(("flag", "stride"))}
        listed = dict.fromkeys((self.tiles_name,), "int") if self.tiles_name else {}
        return {"q0": "int", "kv0": "int", "Br": "int", "Bc": "int", **flags, **kinds, **listed}

    def span(self, part: str) -> Span | None:
        """The spec line of a part of the meaning, else of the function."""
        return self.attention.spans.get(part) or self.attention.spans.get("function")

    def refuse(self, code: str, part: str, **fields: str | int | float) -> Draft:
        """This draft with an error at the spec's line of `part`."""
        return self.note(code, part, **fields)

    def note(self, code: str, part: str, **fields: str | int | float) -> Draft:
        """This draft with one more diagnostic at the spec's line of `part`."""
        return replace(self, diagnostics=(*self.diagnostics, make(code, self.span(part), related=(), **fields)))

    def step(self, rule: str, part: str, reason: str, *edits: Edit, checks: tuple[Check, ...] = ()) -> Draft:
        """This draft with a step, or with an error if one of its checks failed."""
        new = replace(self, steps=(*self.steps, Step(rule, reason, edits, checks, self.span(part))))
        for check in checks:
            if not check.passed:
                new = new.refuse("CB313", part, check=check.name, detail=check.detail)
        return new

    def bound(self, name: str, value: float | int, text: str) -> Draft:
        """This draft with a parameter bound; `text` is the value as an expression over D."""
        bindings, texts = {**self.bindings, name: value}, {**self.binding_texts, name: text}
        return replace(self, bindings=bindings, binding_texts=texts)

    def sample(self, *exprs: Expr) -> Env:
        """Points for these expressions, with every parameter of the kernel given a value: bound ones theirs."""
        names: set[str] = set()
        for e in exprs:
            names |= free_vars(e)
        square = self.attention.head_map == Var("h") and "hk" not in names
        env = at_one_length(self.kernel, points(exprs, tile=(self.kernel.Br, self.kernel.Bc), square_heads=square))
        env.update(self.bindings)
        env["D"] = self.kernel.D
        return bind_unknown(env, names)

    def operand_names(self, *exprs: Expr) -> frozenset[str]:
        """The spec's operands these expressions read."""
        known = {item.name for item in self.attention.operands}
        return frozenset(name for e in exprs for name in reads(e) if name in known)


def map_ops(body: tuple[Op, ...], fn: Callable[[Op], tuple[Op, ...]]) -> tuple[Op, ...]:
    """Replace every operation by the operations `fn` gives for it; bodies of loops and Ifs first."""
    out: list[Op] = []
    for op in body:
        if isinstance(op, For):
            op = replace(op, body=map_ops(op.body, fn))
        elif isinstance(op, If):
            op = replace(op, body=map_ops(op.body, fn), orelse=map_ops(op.orelse, fn))
        out.extend(fn(op))
    return tuple(out)

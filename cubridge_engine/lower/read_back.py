"""Reading an adapted kernel again: what the text says must be what was asked for, or nothing is shown.

Lowering prints; this room does not trust the print. The adapted text is lifted by the same lifter as any kernel, and
its semantics are compared with the target's: score, mask, fill, guards, KV range, prologue, state, heads, conventions,
parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..diagnostics import Diagnostic, make
from ..ir.expr import Call, Expr, J, Read, Var, conjoin, free_vars, rebuild, substitute, walk
from ..ir.nodes import Copy, Kernel
from ..ir.text_expr import print_expr
from ..transfer.checks import mask_guard_covers, prologue_matches_lo, range_covers_mask, score_before_mask, tiles_of
from ..transfer.model import Operand
from ..transfer.one_length import at_one_length
from ..transfer.sampling import Env, bind_unknown, close, flatten_reads, points, value_at
from ..transfer.semantics import ElementTest, NotAttention, Semantics, semantics_of, walk_ops

Lift = Callable[[bytes], tuple[Kernel | None, tuple[Diagnostic, ...]]]
_LOW = -1e4  # below this a weight is zero in every float type: sentinels need not agree further


def read_back(
    text: bytes,
    expected: Kernel,
    bindings: Mapping[str, float | int],
    lift: Lift,
    operands: Sequence[Operand] = (),
) -> tuple[Kernel | None, tuple[Diagnostic, ...]]:
    """Lift `text` again and compare it with `expected` under `bindings`.

    Returns the kernel as read (for executing it) and the findings: none when both mean the same. `operands` say how
    long the axes of extra tensors are: beyond them there is nothing to compare.
    """
    kernel, problems = lift(text)
    if kernel is None:
        why = problems[0].message if problems else "no kernel was found"
        return None, (make("CB406", expected.origin.span, why=why),)
    return kernel, tuple(
        make("CB405", kernel.origin.span, what=what) for what in differences(expected, kernel, bindings, operands)
    )


def differences(
    expected: Kernel, got: Kernel, bindings: Mapping[str, float | int], operands: Sequence[Operand] = ()
) -> list[str]:
    """What `got` does otherwise than `expected`, as clauses; empty when their mathematics agree."""
    try:
        want = semantics_of(expected, bindings)
        have = semantics_of(got, _by_position(expected, got, bindings))
    except NotAttention as why:
        return [str(why)]
    return _Comparison(expected, got, want, have, operands).all()


def _by_position(expected: Kernel, got: Kernel, bindings: Mapping[str, float | int]) -> dict[str, float | int]:
    """Bindings under the names the parameters have in `got`."""
    names = {a.name: b.name for a, b in zip(expected.params, got.params, strict=False)}
    return {names.get(name, name): value for name, value in bindings.items()}


class _Comparison:
    """Both sides at the same points, tensor reads at flat offsets under one name."""

    def __init__(
        self, expected: Kernel, got: Kernel, want: Semantics, have: Semantics, operands: Sequence[Operand]
    ) -> None:
        self.axes = {operand.name: operand.axes for operand in operands}
        self.expected, self.got, self.want, self.have = expected, got, want, have
        self.types = _operand_types(expected)
        # Parameters correspond by position; their names may differ where CuIR uses one itself.
        pairs = list(zip(expected.params, got.params, strict=False))
        self.tensors = {b.name: a.role.split(":", 1)[1] for a, b in pairs if a.role.startswith("operand:")}
        self.tensors |= {
            b.role.split(":", 1)[1]: self.tensors[b.name] for _, b in pairs if b.name in self.tensors and ":" in b.role
        }
        self.strides = {
            self.tensors[k.removeprefix("operand:")]: v
            for k, v in got.tensors.items()
            if k.removeprefix("operand:") in self.tensors
        }
        self.scalars: dict[Expr, Expr] = {Var(b.name): Var(a.name) for a, b in pairs if a.name != b.name}
        exprs = [self.left(want.score), self.left(want.keep), self.right(have.score), self.right(have.keep)]
        exprs += [want.lo, want.hi, self.right(have.lo), self.right(have.hi), want.head_map, have.head_map]
        names: set[str] = set()
        for e in (
            *exprs,
            want.m_init,
            self.right(have.m_init),
            *(self.right(t.guard) for t in have.tests if t.guard is not None),
        ):
            names |= free_vars(e)
        env = at_one_length(expected, points(exprs, tile=(expected.Br, expected.Bc)))
        env["D"] = expected.D
        self.env: Env = bind_unknown({**env, "lane": 0}, names | _stride_names(expected))

    def left(self, expr: Expr) -> Expr:
        """An expression of the target, comparable."""
        return flatten_reads(expr, self.expected.tensors)

    def right(self, expr: Expr) -> Expr:
        """An expression of the kernel as read, comparable."""
        return substitute(flatten_reads(_rename(expr, self.tensors), self.strides), self.scalars)

    def at(self, expr: Expr) -> np.ndarray:
        """Values at every point."""
        return np.broadcast_to(np.asarray(value_at(expr, self.env, self.types)), np.shape(self.env["i"]))

    def exists(self, expr: Expr) -> np.ndarray:
        """Where every element that `expr` reads is within the axes of a fixed length: a spec that reads beyond them is
        not defined there.
        """
        inside = np.ones(np.shape(self.env["i"]), dtype=bool)
        for read in (e for e in walk(expr) if isinstance(e, Read)):
            for index, extent in zip(read.index, self.axes.get(read.tensor, ()), strict=False):
                if extent.isdigit() and extent != "1":
                    at = self.at(self.left(index))
                    inside &= (at >= 0) & (at < int(extent))
        return inside

    def all(self) -> list[str]:
        """Every difference."""
        found = [*self.have.issues]
        found += self._score() + self._mask() + self._range() + self._state() + self._conventions()
        found += self._output() + self._pages()
        return found

    def _pages(self) -> list[str]:
        """Copies that look their rows up in another table, or in none, and what the strides of K and V are."""
        want, have = ([op for op in walk_ops(k.body) if isinstance(op, Copy)] for k in (self.expected, self.got))
        asked = [(op.tensor, op.table, op.page) for op in want]
        found = [(op.tensor, self.tensors.get(op.table, op.table), op.page) for op in have]
        out = [f"{b[0]} is copied from {_page_words(b)}" for a, b in zip(asked, found, strict=False) if a != b]
        if len(asked) != len(found):
            out.append(f"there are {len(found)} copies of tiles, not {len(asked)}")
        for role in ("k", "v") if any(op.table for op in want) else ():
            a, b = self.expected.tensors.get(role), self.got.tensors.get(role)
            if a != (None if b is None else tuple(substitute(e, self.scalars) for e in b)):
                out.append(f"the strides of {role.upper()} are other ones")
        return out

    def _score(self) -> list[str]:
        kept = self.at(self.left(self.want.keep)).astype(bool) & self.exists(self.want.score)
        with np.errstate(all="ignore"):
            a = np.maximum(self.at(self.left(self.want.score)), _LOW)
            b = np.maximum(self.at(self.right(self.have.score)), _LOW)
        if close(np.where(kept, a, 0.0), np.where(kept, b, 0.0)):
            return []
        return [f"the score reads {print_expr(self.have.score)}, not {print_expr(self.want.score)}"]

    def _mask(self) -> list[str]:
        a, b = self.at(self.left(self.want.keep)).astype(bool), self.at(self.right(self.have.keep)).astype(bool)
        out: list[str] = []
        exists = self.exists(self.want.keep)
        if not np.array_equal(a & exists, b & exists):
            out.append(f"the mask reads {print_expr(self.have.keep)}, not {print_expr(self.want.keep)}")
        if self.want.tail and not self.have.tail:
            out.append("the columns beyond Sk are no longer masked")
        fills = [
            float(np.asarray(value_at(self.right(s.fill), self.env, self.types)).flat[0])
            for s in (self.want, self.have)
        ]
        if not close(np.asarray(fills[0]), np.asarray(fills[1])):
            out.append(f"masked elements get {fills[1]:g}, not {fills[0]:g}")
        checks = (
            score_before_mask(self.got),
            mask_guard_covers(self._right_tests(), self.env, self.types, self.got),
        )
        return out + [f"{c.name}: {c.detail}" for c in checks if not c.passed]

    def _right_tests(self) -> tuple[ElementTest, ...]:
        return tuple(
            replace(t, keep=self.right(t.keep), guard=None if t.guard is None else self.right(t.guard))
            for t in self.have.tests
        )

    def _range(self) -> list[str]:
        Bc, lo, hi = self.got.Bc, self.right(self.have.lo), self.right(self.have.hi)
        keep = self.left(self.want.keep)
        # What the target's own range leaves out is masked by that: the mask need not say it again.
        first, last = (self.left(e) for e in (self.want.lo, self.want.hi))
        keep = conjoin([keep, Call("ge", (J, first)), Call("lt", (J, last))])
        covers = range_covers_mask(keep, lo, hi, self.env, self.types, Bc)
        checks = [covers, prologue_matches_lo(self.got, self.env, self.types)]
        out = [f"{c.name}: {c.detail}" for c in checks if not c.passed]
        want = tiles_of(self.left(self.want.lo), self.left(self.want.hi), self.env, self.types, Bc)
        have = tiles_of(lo, hi, self.env, self.types, Bc)
        live = want[0] < want[1]
        if any(np.any(live & (a != b)) for a, b in zip(want, have, strict=True)):
            out.append(f"the loop visits keys [{print_expr(self.have.lo)}, {print_expr(self.have.hi)})")
        return out

    def _state(self) -> list[str]:
        out: list[str] = []
        a, b = self.at(self.left(self.want.m_init)), self.at(self.right(self.have.m_init))
        if not close(a, b):
            out.append(f"the row maximum starts at {print_expr(self.have.m_init)}")
        for lane in range(max(self.want.lanes, self.have.lanes)):
            scope = {**self.env, "lane": lane}
            pair = [float(np.asarray(value_at(s.l_init, scope)).flat[0]) for s in (self.want, self.have)]
            if pair[0] != pair[1]:
                out.append(f"the row sum starts at {print_expr(self.have.l_init)}, not {print_expr(self.want.l_init)}")
                break
        if not np.array_equal(self.at(self.want.head_map), self.at(self.have.head_map)):
            out.append(f"the KV head reads {print_expr(self.have.head_map)}")
        return out

    def _output(self) -> list[str]:
        """Weights that are no softmax: what the row sum adds up, and what O is divided by."""
        want, have = self.want, self.have
        if want.normaliser != have.normaliser:
            return [f"the rows are '{have.normaliser}', not '{want.normaliser}'"]
        pair = (self.left(want.output), self.right(have.output))
        sums = np.exp(np.asarray(self.env["s"]) / 4) * np.where(np.arange(len(self.env["s"])) % 2, 1.0, -1.0)
        env = bind_unknown({**self.env, "l": sums}, free_vars(pair[0]) | free_vars(pair[1]))
        a, b = (np.asarray(value_at(e, env, self.types)) for e in pair)
        if close(a, b):
            return []
        return [f"O is stored as {print_expr(have.output)}, not {print_expr(want.output)}"]

    def _conventions(self) -> list[str]:
        out: list[str] = []
        if self.want.lse != self.have.lse:
            out.append(f"LSE: {self.have.lse}")
        if self.want.empty_rows != self.have.empty_rows:
            out.append(f"a row without a key gives {self.have.empty_rows}, not {self.want.empty_rows}")
        if self.want.empty_tile_safe and not self.have.empty_tile_safe:
            out.append("a tile without a key for a row gives NaN")
        want, have = ([_plain(p.ctype) for p in k.params] for k in (self.expected, self.got))
        if want != have:
            names = ", ".join(p.name for p in self.got.params)
            out.append(f"the parameters are {names}: other types or another number than intended")
        return out


def _page_words(copy: tuple[str, str, int]) -> str:
    return f"pages of {copy[2]} by {copy[1]}" if copy[1] else "rows of its own"


def _rename(expr: Expr, names: Mapping[str, str]) -> Expr:
    expr = rebuild(expr, lambda e: _rename(e, names))
    return Read(names[expr.tensor], expr.index) if isinstance(expr, Read) and expr.tensor in names else expr


def _plain(ctype: str) -> str:
    return re.sub(r"\b__restrict__\b|\s", "", ctype)


def _stride_names(kernel: Kernel) -> set[str]:
    return {p.name for p in kernel.params if p.role.startswith("stride:")}


def _operand_types(kernel: Kernel) -> dict[str, str]:
    """Types by element type of the pointer: what a read of the operand gives."""
    types: dict[str, str] = {"q0": "int", "kv0": "int"}
    for p in kernel.params:
        if p.role.startswith("operand:"):
            words = set(p.ctype.replace("*", " ").split())
            kind = "bool" if "bool" in words else "int" if words & {"int", "long", "int64_t", "int32_t"} else "float"
            types[p.role.split(":", 1)[1]] = kind
    return types

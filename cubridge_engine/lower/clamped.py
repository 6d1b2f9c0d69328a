"""Reads of operands that need no test: the last row and column stand for those beyond the tensor.

Elements beyond Sq are not stored and those beyond Sk are masked, so what they read only has to be readable. A read
under a condition is a branch for each element; unconditional ones are issued together, and those that several elements
share are made once.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.anchors import MaskSite
from ..ir.expr import Expr, I, J, Read, Var, call, free_vars, rebuild, walk
from .context import Job
from .cuda_expr import Scope, print_cuda, varies
from .fast_math import is_hopper

_LAST: dict[Expr, Expr] = {I: call("min", I, Var("Sq") - 1), J: call("min", J, Var("Sk") - 1)}


def clamp(expr: Expr, *, both: bool = False) -> Expr | None:
    """`expr` with every varying read inside its tensor; None where an index is more than a row or a column, or one
    reads at both and `both` is False.
    """
    possible = True

    def inside(e: Expr) -> Expr:
        nonlocal possible
        if not isinstance(e, Read) or not varies(e):
            return rebuild(e, inside)
        plain = all(index in _LAST or not free_vars(index) & {"i", "j"} for index in e.index)
        possible = possible and plain and (both or len(free_vars(e) & {"i", "j"}) == 1)
        return Read(e.tensor, tuple(_LAST.get(index, index) for index in e.index))

    found = inside(expr)
    return found if possible else None


def clamped_score(job: Job, value: Expr) -> Expr | None:
    """`value` with its reads inside their tensors, to be issued together, where wgmma runs while they are under way.
    Elsewhere None: the registers that hold many reads at once are wanted for the products.
    """
    return clamp(value, both=True) if is_hopper(job.source.data) else None


def any_key(job: Job, expr: Expr, scope: Scope) -> str:
    """The test that there is a last column to read, where `expr` reads at a column and the kernel looks at one tile
    even without keys; empty where no test is needed.
    """
    loop = job.anchors.kv_loop
    if loop is None or not loop.counts_keys:
        return ""
    columns = [e for e in walk(expr) if isinstance(e, Read) and "j" in free_vars(e)]
    return f"{print_cuda(Var('Sk'), scope)} > 0" if columns else ""


def read_before(job: Job, keep: Expr, scope: Scope, *, guarded: bool = False) -> tuple[Expr, list[str], dict[str, str]]:
    """`keep` over names of its varying reads, the declarations of these, and how they are spelled. Nothing changes
    where an index is more than a row or a column. `guarded`: they stand where there are keys.
    """
    if clamp(keep) is None:
        return keep, [], {}
    lines: list[str] = []
    names: dict[str, str] = {}
    made: dict[Read, str] = {}

    def named(e: Expr) -> Expr:
        if not isinstance(e, Read) or not varies(e):
            return rebuild(e, named)
        if e not in made:
            made[e] = job.scopes.hoisted.maker.make(_wanted(e))
            lines.append(_declaration(job, e, made[e], scope, guarded))
            names[made[e]] = made[e]
            job.scopes.hoisted_types[made[e]] = job.scopes.types.get(e.tensor, "float")
        return Var(made[e])

    return named(keep), lines, names


def _declaration(job: Job, read: Read, name: str, scope: Scope, guarded: bool) -> str:
    kind = job.scopes.types.get(read.tensor, "float")
    wide = job.scopes.operands[read.tensor].dtype == "int64"  # identifiers may need all their bits
    inside = clamp(read)
    assert inside is not None
    text = print_cuda(inside, replace(scope, inside=True, wide=wide))
    test = "" if guarded else any_key(job, read, scope)
    if test:
        text = f"{test} && {text}" if kind == "bool" else f"{test} ? {text} : 0"
    return f"const {'long long' if wide else kind} {name} = {text};"


def _wanted(read: Read) -> str:
    """``row_id`` and ``col_id`` of ids[i] and ids[j]."""
    stem = read.tensor.rsplit("_", 1)[-1] if len(read.tensor) > 14 else read.tensor
    stem = stem[:-1] if stem.endswith("s") and not stem.endswith(("ss", "as", "is", "us")) and len(stem) > 2 else stem
    used = free_vars(read)
    where = "row_" if "j" not in used else "col_" if "i" not in used else ""
    return f"{where}{stem}" if where else f"{stem}_here"


def starts_a_line(job: Job, site: MaskSite) -> bool:
    """True when the statement of the test is one of a block, on a line of its own: a declaration can stand before."""
    start, end = site.assignment.start, site.assignment.end
    if job.column(start).strip():
        return False
    node = job.source.root.descendant_for_byte_range(start, end)
    while node is not None and node.parent is not None and node.parent.start_byte == start:
        node = node.parent
    return node is not None and node.parent is not None and node.parent.type == "compound_statement"

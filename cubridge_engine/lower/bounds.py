"""The KV range: the first tile declared once and used for the loop and the prologue; the last tile where the kernel
sets it.
"""

from __future__ import annotations

import re

from ..ir.anchors import LoopSite, TileIndexUse
from ..ir.expr import SK, Call, Const, Expr, Var
from ..ir.nodes import For
from ..transfer.model import RangeEdit, Step
from ..transfer.ranges import tidy
from ..transfer.semantics import kv_loop_of
from .context import Job
from .cuda_expr import Scope, nonnegative, print_cuda
from .hoist import hoist_reads
from .hunks import Hunk

BC = Var("Bc")


def at_loop(job: Job, step: Step, edit: RangeEdit) -> list[Hunk]:
    """Hunks of a range edit."""
    site = job.anchors.kv_loop
    if site is None:
        raise job.missing("the loop over key tiles", step)
    loop = kv_loop_of(job.scopes.kernel)
    in_tiles = loop.step != job.scopes.kernel.Bc
    hunks: list[Hunk] = []
    if edit.hi is not None:
        hunks += _upper(job, step, edit, site, in_tiles and not site.counts_keys)
    if edit.lo is not None:
        hunks += _lower(job, step, edit.lo, site, in_tiles, loop)
    return hunks


def declare_at(job: Job, site: LoopSite, line: str, step: Step) -> Hunk:
    """A new line after the last statement that sets the bound, else in the setup."""
    nl = job.style.newline
    if site.hi_definition_end is not None:
        return job.hunk(site.hi_definition_end, site.hi_definition_end, f"{nl}{site.indent}{line}", step)
    if job.anchors.setup_offset is None:
        raise job.missing("a place before the loop to declare its bounds", step)
    at = job.anchors.setup_offset
    return job.hunk(at, at, f"{job.anchors.setup_indent}{line}{nl}", step)


def _upper(job: Job, step: Step, edit: RangeEdit, site: LoopSite, in_tiles: bool) -> list[Hunk]:
    assert edit.hi is not None
    extra: dict[str, str] = {}
    end: Expr = _named_reads(job, site, edit.hi, extra)
    scope = job.scopes.at(site.names, extra)
    if edit.replace_hi and end != SK:
        end = Call("min", (SK, end))
    tiles = Call("floordiv", (tidy(end + BC - 1, scope.types), BC)) if in_tiles else end
    # C divides towards zero: a negative bound then gives 0 or less, and the loop does not run either way.
    text = _tile_text(tiles, scope) if in_tiles else print_cuda(tiles, scope)
    return set_upper(job, step, site, text, "kv_tiles" if in_tiles else "kv_end", narrow=not edit.replace_hi)


def set_upper(job: Job, step: Step, site: LoopSite, text: str, wanted: str, *, narrow: bool) -> list[Hunk]:
    """The loop's bound becomes `text`, or with `narrow` the smaller of it and the old bound; `wanted` is the name of a
    new variable, if there must be one.
    """
    found = initialiser(job, site)
    if found is not None:
        start, stop = found
        old = job.text(start, stop)
        return [job.hunk(start, stop, f"min({old}, {text})" if narrow else text, step)]
    if site.hi_definition_end is not None and site.hi_name is not None and _is_variable(job, site.hi_name):
        # The prefetch in the loop asks for the same variable, so it is set again rather than shadowed.
        value = f"min({site.hi_name}, {text})" if narrow else text
        return [declare_at(job, site, f"{site.hi_name} = {value};", step)]
    name = job.scopes.hoisted.maker.make(wanted)
    old = job.text(site.hi.start, site.hi.end)
    value = f"min({old}, {text})" if narrow else text
    return [declare_at(job, site, f"const int {name} = {value};", step), job.replace(site.hi, name, step)]


def _named_reads(job: Job, site: LoopSite, bound: Expr, extra: dict[str, str]) -> Expr:
    """`bound` with its reads as the values hoisted to the setup, where the bound is computed in the same function."""
    return bound if site.counts_keys else hoist_reads(bound, job.scopes, extra)


def _tile_text(tiles: Expr, scope: Scope) -> str:
    assert isinstance(tiles, Call)
    top, width = tiles.args
    return f"{print_cuda(top, scope, 70)} / {print_cuda(width, scope, 71)}"


def initialiser(job: Job, site: LoopSite) -> tuple[int, int] | None:
    """Byte range of the value in ``const int n = <value>;``, when that is the statement that ends at the definition."""
    if site.hi_definition_end is None or site.hi_name is None:
        return None
    end = site.hi_definition_end
    node = job.source.root.descendant_for_byte_range(max(end - 1, 0), end)
    while node is not None and node.type != "declaration":
        node = node.parent
    if node is None or node.end_byte != end:
        return None
    for child in node.named_children:
        if child.type != "init_declarator":
            continue
        declarator, value = child.child_by_field_name("declarator"), child.child_by_field_name("value")
        if declarator is not None and value is not None and job.source.text(declarator) == site.hi_name:
            return value.start_byte, value.end_byte
    return None


_INTEGER = re.compile(r"\b(?:int|unsigned|long|auto|size_t)\b")
_CONSTANT = re.compile(r"\bconst(?:expr)?\b")


def _is_variable(job: Job, name: str) -> bool:
    """True for a local that is declared without const, and so can be assigned."""
    pattern = rf"(?P<before>[^;{{}}()]*)\b{re.escape(name)}\s*(?:=|;)"
    declared = [m["before"] for m in re.finditer(pattern, job.code()) if _INTEGER.search(m["before"])]
    return bool(declared) and not any(_CONSTANT.search(before) for before in declared)


def _lower(job: Job, step: Step, lo: Expr, site: LoopSite, in_tiles: bool, loop: For) -> list[Hunk]:
    del loop
    extra: dict[str, str] = {}
    lo = _named_reads(job, site, lo, extra)
    scope = job.scopes.at(site.names, extra)
    name = job.scopes.hoisted.maker.make("kv_begin")
    column: Expr = lo if nonnegative(lo) else Call("max", (Const(0), lo))
    first: Expr = Call("floordiv", (column, BC))
    value = print_cuda(first if in_tiles else first * BC, scope)
    start = name
    if site.counts_keys:  # an item has at least one tile
        start = f"min({name}, {job.text(site.hi.start, site.hi.end)} - 1)"
    hunks = [declare_at(job, site, f"const int {name} = {value};", step), job.replace(site.lo, start, step)]
    for use in site.prologue:
        hunks.append(job.replace(use.span, _in_prologue(job, use, name, in_tiles), step))
    return hunks


def _in_prologue(job: Job, use: TileIndexUse, name: str, in_tiles: bool) -> str:
    """What stands for the first tile in one place of the prologue: its index, its first row, or its slot."""
    kernel = job.scopes.kernel
    if use.what == "slot":
        stages = use.scale if use.scale > 1 else 2
        tile = name if in_tiles else f"{name} / {kernel.Bc}"
        return f"{tile} % {stages}"
    if use.what == "row0":
        bc = job.scopes.names_at(job.scopes.setup)["Bc"]
        return f"{name} * {bc}" if in_tiles else name
    return name if in_tiles else f"{name} / {kernel.Bc}"

"""The KV loop walks a list of tiles: its row is found at setup, bound and first keys of the tiles are read from it."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.anchors import LoopSite, WalkSite, WalkUse
from ..ir.expr import Expr, Var, call
from ..transfer.model import Step, WalkEdit
from ..transfer.tile_lists import COUNT, FIRST, PARTIAL, TileList
from .bounds import set_upper
from .context import Job
from .cuda_expr import print_cuda
from .dead import dead_code
from .deleting import deletions
from .hunks import Hunk, named_in
from .liveness import uses_of


def at_walk(job: Job, step: Step, edit: WalkEdit) -> list[Hunk]:
    """Hunks of a walk: setup, bound, every place that takes a tile. Names the trip and the partial count for the tests
    that are printed later.
    """
    site = job.anchors.kv_loop
    if site is None or site.walk is None:
        raise job.missing("a loop over key tiles whose tiles can come from a list", step)
    operand = job.scopes.operands[edit.tensor]
    assert operand.tiles is not None
    if site.walk.first:
        return _at_items(job, step, edit, site, site.walk)
    index = _index(operand.tiles, job.scopes.names_at(job.scopes.setup))
    row = job.scopes.row_pointer(operand, index, "kv_list")
    partial = job.scopes.hoisted.declare("const int", "kv_partial", f"{row}[{PARTIAL}]")
    job.scopes.hoisted_types.update({edit.iv: "int", edit.partial: "int"})
    maker = job.scopes.hoisted.maker
    if site.walk.header is None:
        trip = site.iv
        hunks = set_upper(job, step, site, f"{row}[{COUNT}]", "kv_count", narrow=False)
    else:
        trip = maker.make("t")
        hunks = _count_trips(job, step, site, site.walk, row, trip)
    job.scopes.local.update({edit.iv: trip, edit.partial: partial})
    names = {use.base: maker.make("first_key") for use in site.walk.uses if use.what == "parameter"}
    return hunks + [_use(job, step, use, row, names) for use in site.walk.uses]


def _at_items(job: Job, step: Step, edit: WalkEdit, site: LoopSite, walk: WalkSite) -> list[Hunk]:
    """Positions of a work item become places in the list: its first and last are set where the item is made, and the
    list is looked up where a position becomes a key.
    """
    operand = job.scopes.operands[edit.tensor]
    assert operand.tiles is not None
    tensor, maker = job.scopes.spelled(operand), job.scopes.hoisted.maker
    partial = f"{walk.first} + max(1, {tensor}[{walk.first} - {FIRST - PARTIAL}])"
    partial = job.scopes.hoisted.declare("const int", "kv_partial", partial)
    job.scopes.hoisted_types.update({edit.iv: "int", edit.partial: "int"})
    job.scopes.local.update({edit.iv: walk.trip, edit.partial: partial})
    first = maker.make("kv_first")
    index = _index(operand.tiles, site.names.text)
    row = print_cuda(job.scopes.row_offset(operand, index), job.scopes.at(site.names))
    made = _statement_at(job, site.hi.start)
    indent, nl = job.line_indent(made), job.style.newline
    lines = [f"const int {first} = static_cast<int>({row}) + {FIRST};"]
    if not job.style.fits(indent + lines[0]):
        whole = maker.make("kv_row")
        lines = [f"const long long {whole} =", f"{job.style.unit * 2}{row};"]
        lines.append(f"const int {first} = static_cast<int>({whole}) + {FIRST};")
    return [
        job.hunk(made, made, "".join(f"{line}{nl}{indent}" for line in lines), step),
        job.replace(site.lo, first, step),
        job.replace(site.hi, f"{first} + max(1, {tensor}[{first} - {FIRST - COUNT}])", step),
        *(job.replace(use.span, f"{tensor}[{use.base}]", step) for use in walk.uses),
    ]


def _statement_at(job: Job, offset: int) -> int:
    """Where the statement begins that holds a byte."""
    node = job.source.root.descendant_for_byte_range(offset, offset)
    while node is not None and node.parent is not None and node.parent.type != "compound_statement":
        node = node.parent
    return node.start_byte if node is not None else offset


def left_without_use(job: Job, step: Step, hunks: list[Hunk]) -> list[Hunk]:
    """Removals of what only the loop's old bound needed."""
    site = job.anchors.kv_loop
    assert site is not None
    inside = site.hi if site.walk is not None and site.walk.first else site.span
    body = job.source.root.descendant_for_byte_range(inside.start, inside.end)
    while body is not None and (body.parent is None or body.parent.type != "function_definition"):
        body = body.parent
    if body is None or body.type != "compound_statement":
        return []
    changed = [(h.start, h.end) for h in hunks if h.end > h.start]
    dead = dead_code(uses_of(body, job.source.data), (), changed, named_in(hunks))
    return [job.hunk(start, end, "", step) for start, end in deletions(job, dead)]


def _index(tiles: TileList, known: Mapping[str, str]) -> tuple[Expr, ...]:
    """Batch, head and Q tile as the names that are `known` have them."""
    q_tile = Var("qt") if "qt" in known else call("floordiv", Var("q0"), Var("Br"))
    return tuple(q_tile if name == "qt" else Var(name) for name in tiles.index)


def _count_trips(job: Job, step: Step, site: LoopSite, walk: WalkSite, row: str, trip: str) -> list[Hunk]:
    """``for (int kv0 = 0; ...)`` counts trips instead and declares kv0 first thing."""
    assert walk.header is not None
    count = job.scopes.hoisted.declare("const int", "kv_count", f"{row}[{COUNT}]")
    nl = job.style.newline
    column = f"const int {site.iv} = {row}[{trip} + {FIRST}] * {_bc(job)};"
    return [
        job.replace(walk.header, f"int {trip} = 0; {trip} < {count}; ++{trip}", step),
        job.hunk(walk.body, walk.body, f"{nl}{walk.indent}{column}", step),
    ]


def _bc(job: Job) -> str:
    return job.scopes.names_at(job.scopes.setup)["Bc"]


def _use(job: Job, step: Step, use: WalkUse, row: str, names: dict[str, str]) -> Hunk:
    place = f"{use.base} + {use.ahead + FIRST}" if use.base else str(use.ahead + FIRST)
    tile = f"{row}[{place}]"
    text = {
        "tile": tile,
        "row0": f"{tile} * {_bc(job)}",
        "argument": f", {tile} * {_bc(job)}",
        "parameter": f", int {names.get(use.base, '')}",
        "name": names.get(use.base, ""),
    }[use.what]
    return job.replace(use.span, _fitting(job, use, text), step)


def _fitting(job: Job, use: WalkUse, text: str) -> str:
    """What is inserted into a list goes on a line of its own where the line gets too long."""
    if use.what not in ("argument", "parameter"):
        return text
    rest = job.text(use.span.end, use.span.end + 3).splitlines()
    if job.style.fits(job.column(use.span.start) + text + (rest[0] if rest else "")):
        return text
    indent = job.line_indent(use.span.start)
    deeper = indent if use.what == "parameter" and indent else indent + job.style.unit * 2
    return f",{job.style.newline}{deeper}{text.removeprefix(', ')}"

"""Keys and values gathered from the pages of a cache: ``k_cache[block_table]`` with its pages joined into rows.

The gather stays a leaf of the core, so that the mathematics is read as for any keys. What is found here says where the
rows lie, for a kernel that looks them up itself.
"""

from __future__ import annotations

from ..ir.expr import Call, Const, Expr, Read, Var
from .attention import Paging
from .cut_graph import CutGraph
from .elements import Elements, Refused
from .lengths import Axis
from .nodes import ZERO
from .recognise import Template
from .rules import RULES

_AXES = 4  # of a cache: pages, rows of a page, heads, features


def paging_of(cut: CutGraph, template: Template) -> Paging | None:
    """How k and v of a core lie in pages; None where they do not, or in different ways."""
    found = [_pages_of(cut, template.roles[role]) for role in "kv"]
    k, v = found
    if k is None or v is None or k[:2] != v[:2]:
        return None
    table, size, k_cache, k_order = k
    return Paging(table, size, k_cache, v[2], k_order, v[3])


def page_axes(cut: CutGraph, paging: Paging) -> set[Axis]:
    """The axes of the function's arguments that are no lengths: the rows of a page are a number of the kernel, and how
    many pages there are changes nothing.
    """
    names = list(cut.whole.names)
    caches = (paging.k, paging.k_order), (paging.v, paging.v_order)
    return {(names.index(cache), order[n]) for cache, order in caches for n in (0, 2)}


def _pages_of(cut: CutGraph, name: str) -> tuple[str, int, str, tuple[int, ...]] | None:
    """(table, rows of a page, cache, order of its axes as [pages, heads, rows, features]) of a leaf."""
    leaf = cut.leaf(name)
    if leaf is None or len(leaf.perm) != _AXES:
        return None
    elements = Elements(cut.whole, RULES)
    index: list[Expr] = []
    for axis, extent in enumerate(leaf.own_shape()):
        elements.algebra.extent[f"x{axis}"] = extent
        index.append(Var(f"x{axis}") if extent > 1 else ZERO)
    try:
        element = elements.at(leaf.node, index)
    except Refused:
        return None
    if not isinstance(element, Read) or element.tensor not in cut.whole.names or len(element.index) != _AXES:
        return None
    row, feature = index[leaf.perm[-2]], index[leaf.perm[-1]]
    page = [n for n, e in enumerate(element.index) if _lookup(e) is not None]
    rest = [n for n in range(_AXES) if n not in page]
    if len(page) != 1 or not isinstance(row, Var):
        return None
    lookup = _lookup(element.index[page[0]])
    assert lookup is not None
    inside = [n for n in rest if _divided(element.index[n], "mod", row)]
    last = [n for n in rest if element.index[n] == feature]
    heads = [n for n in rest if n not in (*inside, *last)]
    if len(inside) != 1 or len(last) != 1 or len(heads) != 1 or lookup.tensor not in cut.whole.names:
        return None
    size = _divided(element.index[inside[0]], "mod", row)
    batch, at = lookup.index if len(lookup.index) == len(("b", "page")) else (ZERO, ZERO)
    outer = [index[d] for d in leaf.perm[:-2]]
    if _divided(at, "floordiv", row) != size or batch not in outer or element.index[heads[0]] not in outer:
        return None
    if batch == element.index[heads[0]] or cut.whole.input_shapes[element.tensor][inside[0]] != size:
        return None
    return lookup.tensor, size, element.tensor, (page[0], heads[0], inside[0], last[0])


def _lookup(expr: Expr) -> Read | None:
    """The element of a table that an index is, with or without Python's negative positions."""
    if isinstance(expr, Call) and expr.op == "where" and isinstance(expr.args[2], Read):
        condition = expr.args[0]
        return expr.args[2] if condition == Call("lt", (expr.args[2], ZERO)) else None
    return expr if isinstance(expr, Read) else None


def _divided(expr: Expr, op: str, row: Expr) -> int:
    """n of ``row // n`` or ``row % n``; 0 for anything else."""
    if not isinstance(expr, Call) or expr.op != op or expr.args[0] != row or not isinstance(expr.args[1], Const):
        return 0
    return int(expr.args[1].value)

"""Tile lists: where no range of keys leaves out every empty tile, the KV loop walks a list of tiles made from the mask.

Used for masks that read data at a row or a column (document ids, bounds per row or column, bool tensors), and for masks
of the indices alone with holes that a range would visit. The list is an operand that the caller computes; its row of a
Q tile also says how many of the tiles need the element test.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np

from ...ir.evaluate import evaluate
from ...ir.expr import FALSE, TRUE, Const, Expr, Read, Var, call, conjoin, free_vars, substitute
from ...ir.nodes import Copy, For, If, Kernel, Let, Op
from ..checks import before_loop, prefetch_distance, prefetch_follows_list
from ..draft import Draft, map_ops
from ..holes import exact_range
from ..model import Check, WalkEdit
from ..place import map_outside_loop
from ..sampling import Array
from ..semantics import kv_loop_of, walk_ops
from ..structure import tile_walk, trips_of
from ..tile_lists import COUNT, FIRST, PARTIAL, TileList, build_tile_list, tile_list_of
from .kv_range import define, fresh
from .operands import unused_name
from .rule import Example, Rule
from .score import used_conjuncts


def _apply(draft: Draft) -> Draft:
    keep = conjoin(used_conjuncts(draft))
    tile = (draft.kernel.Br, draft.kernel.Bc)
    if keep in (TRUE, FALSE):
        return draft
    interval, exact = exact_range(keep, draft.attention, tile, draft.types)
    draft = replace(draft, interval=interval)
    if exact:
        return draft
    why = _unwalkable(draft.kernel) if draft.tile_lists else "its loop over KV tiles cannot be made to follow a list"
    if why:
        return draft.note("CB314", "mask", kernel=draft.kernel.name, why=why)
    tiles = tile_list_of(keep, *tile)
    name = unused_name(draft.kernel, "kv_tiles", draft.reserved | {item.name for item in draft.attention.inputs})
    edit = WalkEdit(name, *_names(draft.kernel))
    after = replace(draft, kernel=_rewrite(draft.kernel, edit, tiles), tiles=tiles, tiles_name=name)
    listed = tile_walk(after.kernel)
    assert listed is not None
    checks = (*_sound(draft, tiles), prefetch_follows_list(after.kernel, listed, draft.sample(keep), draft.types))
    return after.step("tile_list", "mask", _reason(tiles), edit, checks=checks)


def _reason(tiles: TileList) -> str:
    size = tiles.bytes_text()
    return f"only the KV tiles with an attended key are visited, by a list from the caller: {size} at most"


def _unwalkable(kernel: Kernel) -> str:
    """Why the program's loop cannot follow a list; '' when it can."""
    loop = kv_loop_of(kernel)
    if loop.step == -1 and loop.hi == Const(-1):
        copies = [op for op in walk_ops(loop.body) if isinstance(op, Copy)]
        early = any(isinstance(op, Copy) and op.tensor != "q" for op in before_loop(kernel.body, loop))
        return "its loop loads KV tiles ahead" if early or any(op.row0 != Var("kv0") for op in copies) else ""
    if loop.lo != Const(0) or loop.step not in (1, kernel.Bc):
        return "its loop over KV tiles does not go up from the first tile, or down to it"
    in_columns = loop.step == kernel.Bc
    for op in walk_ops(loop.body):
        if isinstance(op, Copy) and in_columns and loop.iv in free_vars(op.slot):
            return "its loop over key columns takes the pipeline slot from the column"
    return ""


def _names(kernel: Kernel) -> tuple[str, str, str]:
    """(loop variable, number of tiles, number of partial tiles). A loop over columns may call its variable kv0."""
    iv = kv_loop_of(kernel).iv
    return iv if iv != "kv0" else fresh(kernel, "t"), fresh(kernel, "kv_count"), fresh(kernel, "kv_partial")


def _entry(edit: WalkEdit, tiles: TileList, place: Expr) -> Read:
    return Read(edit.tensor, (*(Var(name) for name in tiles.index), place))


def _rewrite(kernel: Kernel, edit: WalkEdit, tiles: TileList) -> Kernel:
    """The loop over the list: bound, first column and copies. The slots keep counting trips."""
    loop = kv_loop_of(kernel)
    iv = Var(edit.iv)

    def column(position: Expr) -> Expr:
        return _entry(edit, tiles, position + FIRST if position != Const(0) else Const(FIRST)) * kernel.Bc

    def in_loop(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Let) and op.name == "kv0":
            return ()
        if isinstance(op, Copy):
            ahead = prefetch_distance(op, loop, kernel.Bc)
            return (replace(op, row0=column(iv + ahead) if ahead else Var("kv0")),)
        if isinstance(op, If):
            # The prefetch in the loop asks for the same bound.
            op = replace(op, cond=substitute(op.cond, {loop.hi: Var(edit.count)}))
        # A loop over columns says `iv` where a loop over tiles says kv0.
        return (_with(op, Var(loop.iv), Var("kv0")) if loop.step == kernel.Bc else op,)

    def walked(op: For) -> For:
        body = (Let("kv0", column(iv)), *map_ops(op.body, in_loop))
        return replace(op, iv=edit.iv, hi=Var(edit.count), step=1, body=body)

    ahead: dict[str, int] = {}

    def before(op: Op) -> Op:
        if not isinstance(op, Copy) or op.tensor == "q":
            return op
        n = ahead.get(op.tensor, 0)
        ahead[op.tensor] = n + 1
        return replace(op, row0=column(Const(n)))

    count, partial = _entry(edit, tiles, Const(COUNT)), _entry(edit, tiles, Const(PARTIAL))
    if loop.step == -1:
        # Such a loop has at least one tile, if only to find every key masked: where the list is empty it is tested.
        kernel = _counted_anew(kernel, edit, tiles)
        count, partial = call("max", Const(1), count), call("max", Const(1), partial)
    else:
        kernel = replace(kernel, body=map_outside_loop(kernel.body, before, walked))
    kernel = define(kernel, Let(edit.count, count))
    return define(kernel, Let(edit.partial, partial))


def _counted_anew(kernel: Kernel, edit: WalkEdit, tiles: TileList) -> Kernel:
    """A downward loop over a list: its trips, and the slots that count them, begin with the list's last entry."""
    old = trips_of(kv_loop_of(kernel))

    def renamed(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Let) and op.name == "kv0":
            return (replace(op, value=_entry(edit, tiles, Var(edit.iv) + FIRST) * kernel.Bc),)
        return () if isinstance(op, Let) and Var(op.name) == old else (_with(op, old, Var(edit.count)),)

    return replace(kernel, body=map_ops(kernel.body, renamed))


def _with(op: Op, old: Expr, new: Expr) -> Op:
    """`op` with `new` in place of `old`."""
    changed = {
        f.name: substitute(value, {old: new}) for f in fields(op) if isinstance(value := getattr(op, f.name), Expr)
    }
    return replace(op, **changed)


def _sound(draft: Draft, tiles: TileList) -> tuple[Check, ...]:
    """The list of a small problem with made-up data, against the mask element by element."""
    sq, sk = 2 * tiles.br + 5, 3 * tiles.bc + 7
    sizes = {"B": 2, "H": 2, "Hkv": 1, "Sq": sq, "Sk": sk, "D": draft.kernel.D}
    sizes |= {n: v for n, v in draft.attention.specialised.items() if n in sizes}
    for a, b in draft.attention.equal_sizes:
        if a in sizes and b in sizes:
            sizes[a] = sizes[b] = max(sizes[a], sizes[b])
    if draft.attention.ordered_sizes:
        sizes["Sk"] = max(sizes["Sq"], sizes["Sk"])
    operands = {item.name: _made_up(item.axes, item.dtype, sizes) for item in draft.attention.operands}
    rows = build_tile_list(tiles, sizes, operands)
    rows = rows.reshape(-1, rows.shape[-1])
    covered = _covered(tiles, sizes, operands, rows)
    inside = bool((rows[:, FIRST:] < -(-sizes["Sk"] // tiles.bc)).all() and (rows >= 0).all())
    return (
        Check("list-covers-mask", covered, "" if covered else "the listed tiles are not those with an attended key"),
        Check("list-sorted", _sorted(rows), "partial tiles first, both kinds ascending"),
        Check("bound-within-Sk", inside, "" if inside else "a tile starts at or beyond Sk"),
    )


def _sorted(rows: Array) -> bool:
    """Partial and whole tiles of each row ascend."""
    pieces = [r[FIRST:][a:b] for r in rows for a, b in ((0, r[PARTIAL]), (r[PARTIAL], r[COUNT]))]
    return all(bool((np.diff(piece) > 0).all()) for piece in pieces)


def _made_up(axes: tuple[str, ...], dtype: str, sizes: dict[str, int]) -> Array:
    shape = tuple(int(a) if a.isdigit() else sizes[a] for a in axes)
    rng = np.random.default_rng(5)
    if dtype == "bool":
        return rng.random(shape) < 0.02
    if dtype.startswith(("int", "uint")):
        far = rng.integers(0, 2 * max(sizes["Sk"], 1), shape)
        return np.where(rng.random(shape) < 0.5, rng.integers(0, 6, shape), far)
    return rng.normal(size=shape)


def _covered(tiles: TileList, sizes: dict[str, int], operands: dict[str, Array], rows: Array) -> bool:
    """Listed tiles, and those alone, hold an attended key: the mask is evaluated whole, once per batch and head."""
    i, j = np.arange(sizes["Sq"]).reshape(-1, 1), np.arange(sizes["Sk"]).reshape(1, -1)
    batches = range(sizes["B"] if "B" in tiles.axes else 1)
    heads = range(sizes["H"] if "H" in tiles.axes else 1)
    at = 0
    for b, h in itertools.product(batches, heads):
        env = {**sizes, "b": b, "h": h, "hk": h // max(sizes["H"] // sizes["Hkv"], 1), "i": i, "j": j}
        keep = np.broadcast_to(np.asarray(evaluate(tiles.mask, env, operands), dtype=bool), (i.size, j.size))
        for q0 in range(0, sizes["Sq"], tiles.br):
            row = rows[at]
            at += 1
            want = {int(c) // tiles.bc for c in np.nonzero(keep[q0 : q0 + tiles.br].any(axis=0))[0]}
            if want != set(row[FIRST : FIRST + row[COUNT]].tolist()) or len(want) != row[COUNT]:
                return False
    return True


RULE = Rule(
    "tile_list",
    "Walk a list of the KV tiles with an attended key, where a range of keys would visit empty ones.",
    ("list-covers-mask", "list-sorted", "bound-within-Sk", "prefetch-follows-list"),
    _apply,
    Example(
        {"mask": "ids[b, i] == ids[b, j]", "operand": "ids:B,Sq:int32"},
        "for t in 0 .. n",
        ("for t in 0 .. kv_count", "let kv0 = kv_tiles[b, qt, t + 2] * 16"),
    ),
)

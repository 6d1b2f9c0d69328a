"""A tile list as the user's own program makes it: the text of a torch function that gives what `build_tile_list` does.

The mask's formula becomes a line of torch; the rest is the same for all masks. The text needs nothing but torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.expr import free_vars, reads
from ..ir.text_torch import print_torch
from ..spec.attention import Attention, Paging
from ..spec.dropin_derived import Derived, argument_names
from .tile_lists import Q_TILES, TileList

FUNCTION = "build_tile_list"
_AT, _PACK, _BR, _BC, _BAND = "at", "tile_rows", "Q_TILE", "KV_TILE", "BAND"
_NAMES = (FUNCTION, _AT, _PACK, _BR, _BC, _BAND)
# What the function itself uses; operands of these names get others.
_SCOPE = (
    "q k pages B H Hkv Sq Sk D b h hk i j m n keep live whole tiles width height rows device q_tiles kv_tiles torch "
    "abs float int min max range"
)
_OWN = frozenset(_SCOPE.split(" "))
_SIZES = {"B": "q.shape[0]", "H": "q.shape[1]", "Sq": "q.shape[2]", "D": "q.shape[3]", "Hkv": "k.shape[1]"}
_SIZES["Sk"] = "k.shape[2]"
_TABLE = "pages"


def tile_builder(name: str, tiles: TileList, attention: Attention, lines: Sequence[str] = ()) -> Derived:
    """How the operand `name` is made. `lines` are the user's lines of the mask, for comments. Raises NoTorchText.

    Of a paged cache the function is given the cache for k, and the table behind it.
    """
    items = [item for item in attention.operands if item.name in reads(tiles.mask)]
    paging = attention.paging
    pages, size_of = [], _SIZES
    if paging is not None:
        pages, size_of = [_TABLE], {**_SIZES, "Sk": f"{_TABLE}.shape[1] * {paging.size}"}
    names = argument_names([item.name for item in items], {*_OWN, *_NAMES})
    tensors = {item.name: (own, item.dtype) for item, own in zip(items, names, strict=True)}
    used = free_vars(tiles.mask)
    mask = print_torch(tiles.mask, tensors, {*_SIZES, "b", "h", "hk", "i", "j"} & used)
    sizes = ["B"] * ("B" in tiles.axes) + ["H"] * ("H" in tiles.axes) + ["Sq", "Sk"]
    used |= {"H", "Hkv"} if "hk" in used else set()
    sizes += [size for size in _SIZES if size in used and size not in sizes]
    source = [
        *_FIXED.format(br=tiles.br, bc=tiles.bc).splitlines(),
        "",
        "",
        f"def {FUNCTION}({', '.join(['q', 'k', *pages, *names])}):",
        *_docstring(
            tiles,
            paging,
            [f"{own}: {item.dtype} [{', '.join(item.axes)}]" for own, item in zip(names, items, strict=True)],
        ),
        f"    {', '.join(sizes)} = {', '.join(size_of[size] for size in sizes)}",
        *_TILES.format(extents="".join(f"{s}, " for s in ("B", "H") if s in tiles.axes)).splitlines(),
    ]
    source += _loops(tiles, mask, lines, used)
    what = f"int32 {tiles.shape_text()} at most: the KV tiles that each Q tile visits, as `{FUNCTION}` says"
    table = "" if paging is None else paging.table
    return Derived(name, what, FUNCTION, tuple(item.name for item in items), "\n".join(source) + "\n", _NAMES, table)


_FIXED = f'''
{_BR}, {_BC} = {{br}}, {{bc}}  # rows and keys of a tile of the kernel
{_BAND} = 2**22  # elements of the mask that are evaluated at a time


def {_AT}(tensor, *index):
    """tensor[index], each index taken into its axis: what is read beyond the ends is masked."""
    places = zip(index, tensor.shape, strict=True)
    # A number stays one: as a tensor, it would have to come back from the device.
    inside = (min(max(x, 0), n - 1) if isinstance(x, int) else x.long().clamp(0, n - 1) for x, n in places)
    return tensor[tuple(inside)]


def {_PACK}(live, whole):
    """The rows of the list, from which tiles have an attended key, and of which every key is attended."""
    count = live.sum(-1)
    most = max(int(count.max()) if count.numel() else 0, 1)
    if count.numel() * (2 + most) >= 2**31:
        raise ValueError("the list of KV tiles has 2**31 numbers or more: call the kernel on parts of the batch")
    out = torch.zeros((*count.shape, 2 + most), dtype=torch.int32, device=live.device)
    out[..., 0] = count
    out[..., 1] = (live & ~whole).sum(-1)
    kind = torch.where(live, whole.long(), 2)  # 0: tested key by key, 1: attended whole, 2: not visited
    order = kind.argsort(dim=-1, stable=True)[..., :most]
    named = torch.arange(order.shape[-1], device=live.device) < count[..., None]
    out[..., 2 : 2 + order.shape[-1]] = torch.where(named, order, 0)
    return out
'''.strip("\n")

_TILES = f"""\
    device = q.device
    q_tiles, kv_tiles = -(-Sq // {_BR}), -(-Sk // {_BC})
    live = torch.zeros({{extents}}q_tiles, kv_tiles, dtype=torch.bool, device=device)
    whole = torch.zeros_like(live)
    width = max(min(kv_tiles, 512), 1)
    height = max({_BAND} // ({_BR} * {_BC} * width), 1)"""


def _docstring(tiles: TileList, paging: Paging | None, operands: Sequence[str]) -> list[str]:
    given = "".join(f"\n    {text}." for text in operands)
    keys = "k [B, Hkv, Sk, D]"
    if paging is not None:
        keys = f"{_TABLE} [B, Sk / {paging.size}] (of the cache k)"
    return f'''\
    """The KV tiles that the kernel visits: int32 {tiles.shape_text()}, contiguous, on the device of q.

    The row of a Q tile is `count, partial, t_0, ... t_(count-1), 0, ...`: `count` tiles hold an attended key. The first
    `partial` of them (ascending) are tested key by key, the others (ascending) are attended whole. Rows are as long as
    the longest: {tiles.bytes_text()} at most.

    q [B, H, Sq, D] and {keys} give the lengths and the device.{given}
    The mask is evaluated in bands of Q tiles, {_BAND} elements at a time; the length of a row is the one number that
    the host waits for.
    """'''.splitlines()


def _loops(tiles: TileList, mask: str, lines: Sequence[str], used: frozenset[str]) -> list[str]:
    """The mask over bands of tiles, for each batch and head that matters, reduced to tiles."""
    out: list[str] = []
    indent = "    "

    def say(text: str, deeper: bool = False) -> None:
        nonlocal indent
        out.append(indent + text)
        indent += "    " * deeper

    place = "".join(f"{i}, " for i, axis in zip(tiles.index, tiles.axes, strict=False) if axis != Q_TILES)
    for index, size in (("b", "B"), ("h", "H")):
        if size in tiles.axes:
            say(f"for {index} in range({size}):", deeper=True)
    if "hk" in used:
        say("hk = h // max(H // Hkv, 1)")
    say("for m in range(0, q_tiles, height):", deeper=True)
    say(f"rows = torch.arange(m * {_BR}, min(m + height, q_tiles) * {_BR}, device=device)")
    say("i = rows.clamp(max=Sq - 1)[:, None]  # rows beyond Sq repeat the last one")
    say("for n in range(0, kv_tiles, width):", deeper=True)
    say(f"j = torch.arange(n * {_BC}, min(n + width, kv_tiles) * {_BC}, device=device)[None, :]")
    for line in lines:
        say(f"# {line}")
    say(f"keep = {mask}")
    say("keep = ((j < Sk) & keep).expand(i.shape[0], j.shape[1])")
    say(f"tiles = keep.reshape(-1, {_BR}, j.shape[1] // {_BC}, {_BC})")
    say(f"live[{place}m : m + height, n : n + width] = tiles.any(3).any(1)")
    say(f"whole[{place}m : m + height, n : n + width] = tiles.all(3).all(1)")
    out.append(f"    return {_PACK}(live, whole)")
    return out

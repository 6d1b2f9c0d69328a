"""The tile map of a spec's mask, as JSON for an editor. Runs the user's code: in a worker only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.evaluate import UnboundName, evaluate
from ..ir.expr import reads
from ..ir.text_expr import print_expr
from ..ir.tile_map import TileMap, kept_by, tile_map
from ..source import read_bytes
from ..spec import SpecResult, read_spec
from ..spec.attention import Attention
from .common import diagnostic_dicts
from .files import Options

TILE = 64  # Br and Bc when nothing is asked for: those of most kernels
SHOWN = 16 * TILE  # queries and keys then, where the spec allows other lengths than its example's
SHOWN_SIZES = ("Sq", "Sk", "Br", "Bc", "b", "h")
AXES = {"b": "B", "h": "H", "hk": "Hkv", "i": "Sq", "j": "Sk", "d": "D"}

Sizes = Mapping[str, int]


def spec_mask(spec_path: str, options: Options, asked: Sizes) -> dict[str, Any]:
    """``{state, message, diagnostics, name, definition, sizes, flags, ranges, notes}`` and the picture of `TileMap`.

    `asked` may hold Sq, Sk, Br, Bc, b and h. A mask that reads tensors is that of the spec's example, at its lengths.
    """
    result = _reading(spec_path, options)
    attention, program = result.attention, result.program
    found = {"diagnostics": diagnostic_dicts(result.diagnostics)}
    if attention is None or program is None:
        worst = max(result.diagnostics, key=lambda item: item.severity, default=None)
        return found | _refused(f"{worst.code}: {worst.message}" if worst else "The spec was not understood.")
    try:
        tiles, sizes, notes = tiles_of(attention, program.arguments, asked)
    except NoMap as refusal:
        return found | _refused(str(refusal))
    shown = {name: sizes[name] for name in SHOWN_SIZES}
    return found | {
        "state": "done",
        "message": "",
        "name": attention.name,
        "definition": print_expr(attention.mask) if attention.mask is not None else "nothing is masked",
        "sizes": shown,
        "flags": {},
        "ranges": [],
        "notes": notes,
        **tiles.picture(),
    }


_READ: dict[Any, SpecResult] = {}
_MOST_READ = 4  # they hold the example's tensors


def _reading(path: str, options: Options) -> SpecResult:
    """What the spec means. Drawing the same text at other lengths does not trace it again."""
    try:
        text = read_bytes(path)
        beside = sorted((p.name, (s := p.stat()).st_mtime_ns, s.st_size) for p in Path(path).parent.glob("*.py"))
    except OSError:
        return read_spec(path, **options.reading(), head_dim=options.head_dim)
    key = (path, text, tuple(beside), repr(options))
    result = _READ.pop(key, None) or read_spec(path, **options.reading(), head_dim=options.head_dim)
    _READ[key] = result  # at the end: recently used
    while len(_READ) > _MOST_READ:
        del _READ[next(iter(_READ))]
    return result


class NoMap(Exception):
    """Why there is no map, as a sentence."""


def tiles_of(
    attention: Attention, arguments: tuple[Any, ...], asked: Sizes
) -> tuple[TileMap, dict[str, int], list[str]]:
    """The tile map of a spec, the sizes it was made for, and remarks; `arguments` are the example's. Raises NoMap."""
    sizes, notes = _sizes(attention, example_sizes(attention, arguments), asked)
    if not 0 <= sizes["b"] < sizes["B"] or not 0 <= sizes["h"] < sizes["H"]:
        raise NoMap(f"The example has batches 0 to {sizes['B'] - 1} and heads 0 to {sizes['H'] - 1}.")
    env: dict[str, Any] = {**attention.specialised, **sizes}
    env["hk"] = evaluate(attention.head_map, env)
    data = {name: _array(arguments[attention.input(name).position]) for name in _read(attention)}
    kept = kept_by(attention.mask, env, data)
    try:
        found = tile_map(kept, Sq=sizes["Sq"], Sk=sizes["Sk"], Br=sizes["Br"], Bc=sizes["Bc"])
    except UnboundName as missing:
        raise NoMap(f"The mask depends on {missing.args[0]}, which has no value here.") from None
    except ValueError as error:
        raise NoMap(f"{error}.") from None
    return found, sizes, notes


def _refused(message: str) -> dict[str, Any]:
    return {"state": "refused", "message": message}


def _read(attention: Attention) -> frozenset[str]:
    """The operands that the mask reads."""
    return reads(attention.mask) if attention.mask is not None else frozenset()


def example_sizes(attention: Attention, arguments: tuple[Any, ...]) -> dict[str, int]:
    """B, H, Hkv, Sq, Sk, D of the example."""
    found: dict[str, int] = {}
    for role in ("k", "v", "q"):
        item = attention.input(role)
        for axis, size in zip(item.axes, arguments[item.position].shape, strict=False):
            found[AXES.get(axis, axis)] = int(size)
    found.setdefault("B", 1)
    found.setdefault("H", 1)
    found.setdefault("Hkv", found["H"])
    return found


def _sizes(attention: Attention, example: Sizes, asked: Sizes) -> tuple[dict[str, int], list[str]]:
    """The lengths to draw, and what is to be said about them."""
    tensors = sorted(_read(attention))
    default = {"Br": TILE, "Bc": TILE, "b": 0, "h": 0}
    wanted = {**example, "Sq": SHOWN, "Sk": SHOWN, **default, **asked}
    lengths = f"{example['Sq']} queries and {example['Sk']} keys"
    if tensors:
        names = ", ".join(tensors)
        return {**wanted, "Sq": example["Sq"], "Sk": example["Sk"]}, [
            f"The mask reads {names}: this is that of the example, with {lengths}."
        ]
    if attention.allows({"Sq": wanted["Sq"], "Sk": wanted["Sk"]}):
        return wanted, []
    notes = [f"The spec does not take these lengths: shown are its example's, {lengths}."] if asked else []
    return {**wanted, "Sq": example["Sq"], "Sk": example["Sk"]}, notes


def _array(value: Any) -> Any:
    return np.asarray(value.detach().cpu().float().numpy() if value.is_floating_point() else value.cpu().numpy())

"""The command ``cubridge.maskMap``: which tiles of a mask are empty, full or partial, of a kernel or of a spec."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cubridge_engine.diagnostics import Diagnostic, make

from . import convert, engine, job, looked_at
from .progress import job_progress

if TYPE_CHECKING:
    from cubridge_engine.ir.nodes import Kernel

    from .app import CubridgeServer

NAMES = ("Sq", "Sk", "Br", "Bc", "b", "h")
TILES_SHOWN = 16  # queries and keys when nothing is asked for: so many tiles


async def mask_map(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.maskMap``: ``{state, message, name, definition, sizes, flags,
    tiles_per_cell, cells, ranges, counts, density, notes}``. The argument names a ``kernel`` or a ``spec``, and may
    hold ``sizes`` and ``flags``.
    """
    asked = _numbers(job.as_object(job.field_of(argument, "sizes")), NAMES)
    if isinstance(asked, Diagnostic):
        return _refused(asked)
    spec = job.field_of(argument, "spec")
    if isinstance(spec, str) and job.field_of(argument, "kernel") is None:
        token = job.field_of(argument, "workDoneToken")
        return await _of_spec(ls, convert.path_of(spec), asked, token if isinstance(token, str) else None)
    found = await looked_at.look(ls, "cubridge.maskMap", argument)
    if found.view is None:
        return {"state": found.head["state"], "message": found.head["message"]}
    program = found.view.program
    switches = [p.name for p in program.params if p.role == "flag"]
    flags = _numbers(job.as_object(job.field_of(argument, "flags")), switches)
    if isinstance(flags, Diagnostic):
        return _refused(flags)
    # A switch that is off masks nothing: what one wants to see is the mask that it turns on.
    return await asyncio.to_thread(_of_kernel, program, asked, dict.fromkeys(switches, 1) | flags)


def _numbers(given: Mapping[str, Any] | None, names: Any) -> dict[str, int] | Diagnostic:
    """The integers of an argument's object; anything else is refused."""
    given = given or {}
    wrong = [name for name, value in given.items() if name not in names or not isinstance(value, int)]
    if wrong:
        return make("CB072", command="cubridge.maskMap", problem=f"{', '.join(wrong)}: not a size, or not an integer")
    return {name: int(value) for name, value in given.items()}


def _of_kernel(kernel: Kernel, asked: Mapping[str, int], flags: dict[str, int]) -> dict[str, Any]:
    from cubridge_engine.ir.evaluate import UnboundName
    from cubridge_engine.ir.kernel_mask import conditions, kernel_mask
    from cubridge_engine.ir.text_expr import print_expr

    length = TILES_SHOWN * max(kernel.Br, kernel.Bc)
    sizes = {"Sq": length, "Sk": length, "b": 0, "h": 0, **asked, "Br": kernel.Br, "Bc": kernel.Bc}
    if min(sizes["b"], sizes["h"]) < 0:
        return _failed("b and h count from 0.")
    heads = {"B": sizes["b"] + 1, "H": sizes["h"] + 1, "Hkv": sizes["h"] + 1, "Sq": sizes["Sq"], "Sk": sizes["Sk"]}
    try:
        found = kernel_mask(kernel, heads, flags, b=sizes["b"], h=sizes["h"])
    except UnboundName as missing:
        return _failed(f"What this kernel attends to depends on {missing.args[0]}, which only a launch gives.")
    except ValueError as error:
        return _failed(f"{error}.")
    kept = " & ".join(print_expr(keep) for keep in conditions(kernel)) or "every key that the loop visits"
    picture = found.tiles.picture()
    return {
        "state": "done",
        "message": "",
        "name": kernel.name,
        "definition": kept,
        "sizes": sizes,
        "flags": flags,
        "ranges": _joined(found.ranges, picture["tiles_per_cell"]),
        "notes": [f"Br = {kernel.Br} and Bc = {kernel.Bc} are the kernel's own."] if _other_tiles(asked, sizes) else [],
    } | picture


def _other_tiles(asked: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    return any(asked.get(name, sizes[name]) != sizes[name] for name in ("Br", "Bc"))


def _joined(ranges: tuple[tuple[int, int], ...], step: int) -> list[list[int]]:
    """The ranges of rows of cells: from the first to the last key that any of a cell's tiles visits."""
    groups = [[r for r in ranges[at : at + step] if r[1] > r[0]] for at in range(0, len(ranges), step)]
    return [[min(a for a, _ in group), max(b for _, b in group)] if group else [0, 0] for group in groups]


async def _of_spec(ls: CubridgeServer, path: str, asked: Mapping[str, int], token: str | None) -> dict[str, Any]:
    if not ls.settings.trusted:
        return _refused(make("CB071", job="reading the spec"))
    given = engine.JobInput("", path, {"sizes": dict(asked)}, job.unsaved(ls, [path]))
    with ls.running.current_task():
        try:
            async with job_progress(ls, f"Drawing the mask of {convert.base_name(path)}", token) as progress:
                found = await job.work(ls, "spec_mask", given, progress)
        except asyncio.CancelledError:
            return {"state": "cancelled", "message": ""}
    if found.crashed or not found.result:
        worst = max(found.diagnostics, key=lambda item: item.severity, default=None)
        return _refused(worst) if worst else _failed("Reading the spec gave nothing.")
    return found.result


def _refused(why: Diagnostic) -> dict[str, Any]:
    return _failed(f"{why.code}: {why.message}")


def _failed(message: str) -> dict[str, Any]:
    return {"state": "refused", "message": message}

"""Watching a kernel run: what it computes, what each instruction holds, who reads what in which order.

    found = watch_contract(load_contract(path))
    found.function.name, found.grid.axes, found.walks[0].order, [(s.role, s.units, s.line) for s in found.sites]

The kernel is compiled with line information and executed in the simulator on a small problem of distinct random
inputs. Its output is compared with a list of functions; the results of its instructions with every table that such a
function can contain. A label that unrelated inputs would get too is none.
"""

from .codes import CODES
from .model import (
    AXES,
    ROLES,
    AxisMap,
    Function,
    GridMap,
    KvWalk,
    Label,
    LaneMap,
    Meaning,
    Problem,
    Site,
    Variant,
    WarpRole,
    Watched,
)
from .watch import Cancelled, watch, watch_contract

__all__ = [
    "AXES",
    "CODES",
    "ROLES",
    "AxisMap",
    "Cancelled",
    "Function",
    "GridMap",
    "KvWalk",
    "Label",
    "LaneMap",
    "Meaning",
    "Problem",
    "Site",
    "Variant",
    "WarpRole",
    "Watched",
    "watch",
    "watch_contract",
]

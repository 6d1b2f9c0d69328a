"""The bodies of functions and methods in a kernel's file: which one a place is in."""

from __future__ import annotations

from .state import Emission
from .syntax import Syn
from .tree import Range


def all_bodies(e: Emission) -> list[Syn]:
    """The bodies of the file's own functions and methods."""
    found = [x.body for kind in e.machine.struct_types.values() for listed in kind.methods.values() for x in listed]
    found += [d.body for listed in e.machine.functions.values() for d in listed if d.at is None]
    return [b for b in found if e.source.data[b.start : b.start + 1] == b"{"]  # a header's stand at its #include


def body_around(e: Emission, at: Range) -> Syn | None:
    """The body of the function or method that contains a byte range."""
    around = [b for b in all_bodies(e) if b.start <= at[0] and at[1] <= b.end]
    return min(around, key=lambda b: b.end - b.start, default=None)


def innermost(place: object) -> Range:
    """Where an event's statement stands: in the function that is called, if it is in one."""
    callee: Range | None = getattr(place, "callee", None)
    site: Range = getattr(place, "site", (0, 0))
    return callee or site

"""A unit of emission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .trace import Place


@dataclass(slots=True)
class Job:
    """Something to emit at a position; `writes` names what stays unknown when it fails."""

    order: float
    place: Place
    run: Callable[[], None]
    writes: tuple[str, ...] = ()
    recover: Callable[[], None] = lambda: None  # after a failure: later steps may still refer to what this one wrote

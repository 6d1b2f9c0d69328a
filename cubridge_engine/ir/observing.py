"""What an observer of an execution sees: called after each operation, with the state of the CTAs that execute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import NDArray

from .memory import SharedMemory
from .nodes import Op

Array = NDArray[Any]


class CtaState(Protocol):
    """What an observer sees of the CTAs that execute together: tiles [batch, rows, cols], row vectors
    [batch, Br, lanes], scalars, and which batch and head each CTA works on ([batch, 1, 1]).
    """

    tiles: dict[str, Array]
    rows: dict[str, Array]
    env: dict[str, Any]
    shared: SharedMemory
    b: Array
    h: Array


Observer = Callable[[Op, CtaState], None]  # called after each operation

"""Observing a run: a hook for the results of instructions and for what is accessed in global memory.

Off, it costs nothing: the calls are generated into the code of a launch that has an observer, and into no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from .model import Instruction, registers_of

if TYPE_CHECKING:
    from .emit import Emitter
    from .lanes import LaneState

Array = NDArray[Any]

HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
# Instructions that give 32 bits of any meaning: they may hold a float or two halves.
_BITS = frozenset({"ld", "ldu", "ldmatrix", "shfl", "wmma", "selp", "mma", "wgmma", "movmatrix"})
_WORDS = frozenset({"b32", "u32", "f32", "b16", "tf32"})


class Observer(Protocol):
    """What a launch calls while it runs. `lanes` says whose values they are; a mask of None is all of them."""

    def value(self, lanes: LaneState, site: int, result: int, value: Any, mask: Array | None) -> None:
        """Instruction `site` left `value` (one per lane, or a scalar for all) in its result number `result`."""
        ...

    def access(self, lanes: LaneState, kind: str, offset: Array, nbytes: int, chosen: Array | None, site: int) -> None:
        """The lanes `chosen` (indices, None: all) access `nbytes` at byte `offset` of the heap: ``read``, ``store`` or
        ``atomic``."""
        ...


class ProductObserver(Observer, Protocol):
    """An observer that is told the operands of mma.sync and wmma, too."""

    def product(self, lanes: LaneState, sites: tuple[int, ...], a: Array, b: Array, mask: Array | None) -> None:
        """Warps multiply A [warps, M, K] and B [warps, K, N], in float32. Several instructions of one shape come
        together: with K' and N' those of one, the first K / K' of `sites` add up on the first N' columns, and so on.
        """
        ...


def is_observed(ins: Instruction, key: str) -> bool:
    """True for a result that may be a float or packed halves. A copy holds what its source holds."""
    name = ins.parts[0]
    if name == "mov":  # under a guard it selects
        return ins.guard is not None and key in ("f32", "u32")
    if key == "f32":
        return True
    if key == "u16":
        return bool(HALVES & set(ins.parts)) and name != "ld"
    if key != "u32":
        return False
    return bool(HALVES & set(ins.parts)) or (name in _BITS and bool(_WORDS & set(ins.parts)))


def owner(e: Emitter, register: str, behind: int) -> tuple[int, int] | None:
    """The last instruction of the block before `behind` that gives the register, and the number of the result."""
    code = e.unit.flow.code
    for site in range(behind - 1, e.block.start - 1, -1):
        ins = code[site]
        results = registers_of(ins.args[0]) if ins.args else ()
        if register in results:
            return site, results.index(register)
    return None

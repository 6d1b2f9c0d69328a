"""Instructions that lanes of a warp execute together: who must have arrived before a block with them runs.

PTX: a ``.sync`` instruction of a warp waits until all lanes that its mask names execute it. Lanes that a loop or a wait
keeps elsewhere are waited for, at the beginning of the block. A wgmma waits for the four warps of its warpgroup.
"""

from __future__ import annotations

from collections.abc import Sequence

from .flow import Block
from .model import Imm, Instruction, Operand, Reg

ALL = 0xFFFFFFFF
# Where the mask stands among the operands.
_MASK = {"shfl": -1, "vote": -1, "match": -1, "redux": -1, "elect": -1, "bar": 0}


def named_lanes(code: Sequence[Instruction], block: Block) -> tuple[int | str, ...]:
    """The masks of a block's warp instructions: numbers, or registers that hold them when the block begins.

    Left out are guarded instructions and masks that the block computes: for them nobody is waited for.
    """
    found: dict[int | str, None] = {}
    known: dict[str, int | None] = {}  # registers that the block has written, by constant
    for ins in code[block.start : block.stop]:
        mask = _mask(ins)
        if mask is not None and ins.guard is None:
            if isinstance(mask, Imm):
                found[mask.bits & ALL] = None
            elif isinstance(mask, Reg) and mask.name not in known:
                found[mask.name] = None
            elif isinstance(mask, Reg) and (constant := known[mask.name]) is not None:
                found[constant] = None
        _note_constant(ins, known)
    return tuple(found)


def needs_warpgroup(code: Sequence[Instruction], block: Block) -> bool:
    """True when a block starts a product of a warpgroup: its four warps may come one after the other."""
    return any(ins.parts[:2] == ("wgmma", "mma_async") for ins in code[block.start : block.stop])


def _mask(ins: Instruction) -> Operand | None:
    name = ins.parts[0]
    if "aligned" in ins.parts and name in ("mma", "ldmatrix", "stmatrix", "wmma", "wgmma"):
        return Imm(ALL)
    if name in ("bar", "barrier") and "warp" not in ins.parts:
        return Imm(ALL)  # a barrier of the CTA counts whole warps
    return ins.args[_MASK[name]] if name in _MASK and "sync" in ins.parts and ins.args else None


def _note_constant(ins: Instruction, known: dict[str, int | None]) -> None:
    target, source = (*ins.args[:2], None, None)[:2]
    if isinstance(target, Reg):
        whole = ins.parts[0] == "mov" and ins.guard is None
        if whole and isinstance(source, Imm):
            known[target.name] = source.bits & ALL
        else:
            known[target.name] = known.get(source.name) if whole and isinstance(source, Reg) else None

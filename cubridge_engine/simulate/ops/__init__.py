"""The opcode table: first word of an opcode -> the function that generates its NumPy.

A handler gets the ``Emitter`` and the instruction, writes code, and returns the closing ``return`` statement when the
instruction ends its block. A form without semantics raises ``Unsupported``: an unknown opcode is never a silent no-op.
"""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported
from ..model import Instruction
from . import control, convert, exact, floating, hopper, integer, matrix, memory, moves, warp

Handler = Callable[[Emitter, Instruction], str | None]

TABLE: dict[str, Handler] = {}
for _room in (integer, exact, floating, convert, moves, memory, warp, matrix, control, hopper):
    for _name, _handler in _room.ROWS.items():
        if _name in TABLE:
            raise ValueError(f"opcode {_name} has two rows")
        TABLE[_name] = _handler


def handler(ins: Instruction) -> Handler:
    """The row of an instruction. Raises Unsupported when there is none."""
    row = TABLE.get(ins.parts[0])
    if row is None:
        raise Unsupported("there is no such row in its opcode table")
    return row

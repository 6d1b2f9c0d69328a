"""Instructions of a warp: shfl, vote, match, redux, activemask, elect."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..model import Instruction, Pair

Handler = Callable[[Emitter, Instruction], str | None]


def _shfl(e: Emitter, ins: Instruction) -> None:
    if "sync" not in ins.parts:
        raise Unsupported("shfl without .sync")
    mode = ins.parts[2]
    value = e.lanes(ins.args[1], "u", 32)
    b, c, members = (e.lanes(x, "u", 32) for x in ins.args[2:5])
    result = e.temp(f"X.shfl({mode!r},{value},{b},{c},{members},{e.mask(ins)},{e.site})")
    dst = ins.args[0]
    if isinstance(dst, Pair):
        e.write(dst.first, f"{result}[0]", "u32", ins)
        e.write(dst.second, f"{result}[1]", "p1", ins)
    else:
        e.write(dst, f"{result}[0]", "u32", ins)


def _vote(e: Emitter, ins: Instruction) -> None:
    mode = ins.parts[2]
    if "sync" not in ins.parts or mode not in ("all", "any", "uni", "ballot"):
        raise Unsupported("this form of vote")
    predicate = e.lanes(ins.args[1], "p")
    members = e.lanes(ins.args[2], "u", 32)
    value = f"X.vote({mode!r},{predicate},{members},{e.mask(ins)},{e.site})"
    e.write(ins.args[0], value, "u32" if mode == "ballot" else "p1", ins)


def _match(e: Emitter, ins: Instruction) -> None:
    _, width = kind_width(types_of(ins)[-1])
    value, members = e.lanes(ins.args[1], "u", width), e.lanes(ins.args[2], "u", 32)
    result = e.temp(f"X.match({ins.parts[1]!r},{value},{members},{e.mask(ins)},{e.site})")
    dst = ins.args[0]
    if isinstance(dst, Pair):
        e.write(dst.first, f"{result}[0]", "u32", ins)
        e.write(dst.second, f"{result}[1]", "p1", ins)
    else:
        e.write(dst, f"{result}[0]", "u32", ins)


def _redux(e: Emitter, ins: Instruction) -> None:
    kind, width = kind_width(types_of(ins)[-1])
    op = ins.parts[2]
    if width != 32 or kind == "f" or op not in ("add", "min", "max", "and", "or", "xor"):
        raise Unsupported("this form of redux")
    value, members = e.lanes(ins.args[1], kind, 32), e.lanes(ins.args[2], "u", 32)
    e.write(ins.args[0], f"X.redux({op!r},{value},{members},{e.mask(ins)},{e.site})", f"{kind}32", ins)


def _activemask(e: Emitter, ins: Instruction) -> None:
    e.write(ins.args[0], f"X.active_mask({e.mask(ins)})", "u32", ins)


def _elect(e: Emitter, ins: Instruction) -> None:
    dst = ins.args[0]
    if not isinstance(dst, Pair):
        raise Unsupported("elect with one result")
    result = e.temp(f"X.elect({e.lanes(ins.args[1], 'u', 32)},{e.mask(ins)},{e.site})")
    e.write(dst.first, f"{result}[0]", "u32", ins)
    e.write(dst.second, f"{result}[1]", "p1", ins)


ROWS: dict[str, Handler] = {
    "shfl": _shfl,
    "vote": _vote,
    "match": _match,
    "redux": _redux,
    "activemask": _activemask,
    "elect": _elect,
}

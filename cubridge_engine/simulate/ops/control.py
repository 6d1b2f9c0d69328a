"""Branches, ends, barriers of the CTA, calls that stay, and instructions that only advise the hardware."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported
from ..flow import EXIT
from ..model import Instruction, Operand, Sym, Vec

Handler = Callable[[Emitter, Instruction], str | None]


def _target(e: Emitter, ins: Instruction) -> int:
    for arg in ins.args:
        if isinstance(arg, Sym):
            block = e.unit.flow.block_of.get(arg.name)
            if block is None:
                raise Unsupported(f"a branch to the unknown label {arg.name}")
            return block
    raise Unsupported("a branch without a label")


def _bra(e: Emitter, ins: Instruction) -> str:
    target = _target(e, ins)
    if e.site in e.unit.spins:  # the way back of a loop that waits for memory
        e.line(f"X.spin({e.mask(ins)},{e.site})")
    return f"return ({e.guard(ins)},{target},{e.block.index + 1})" if ins.guard else f"return {target}"


def _brx(e: Emitter, ins: Instruction) -> str:
    table = ins.args[1]
    labels = e.unit.flow.tables.get(table.name, ()) if isinstance(table, Sym) else ()
    if not labels or ins.guard:
        raise Unsupported("this form of brx.idx")
    blocks = ",".join(str(e.unit.flow.block_of[label]) for label in labels)
    return f"return np.array([{blocks}])[np.minimum({e.lanes(ins.args[0], 'u', 32)},{len(labels) - 1})]"


def _leave(e: Emitter, ins: Instruction) -> str:
    return f"return ({e.guard(ins)},{EXIT},{e.block.index + 1})" if ins.guard else f"return {EXIT}"


def _bar(e: Emitter, ins: Instruction) -> str | None:
    if ins.has("warp"):
        e.line(f"X.sync_warp({e.lanes(ins.args[0], 'u', 32)},{e.mask(ins)},{e.site})")
        return None
    if ins.has("cluster"):
        mode = "arrive" if ins.has("arrive") else "wait"
        e.line(f"X.cluster_barrier({mode!r},{e.mask(ins)},{e.site},{ins.has('relaxed')})")
        return f"return {e.block.index + 1}"
    args: list[Operand] = list(ins.args)
    vote = "None"
    if ins.has("red"):
        predicate = args.pop()
        vote = f"X.full({e.read(predicate, 'p')})"
    identifier = e.lanes(args[0], "u", 32)
    count = e.lanes(args[1], "u", 32) if len(args) > 1 else "None"
    kind = "arrive" if ins.has("arrive") else "sync"
    e.line(f"X.barrier({kind!r},{identifier},{count},{vote},{e.mask(ins)},{e.site})")
    return f"return {e.block.index + 1}"


def _barrier_result(e: Emitter, ins: Instruction) -> None:
    """The reduction of a barrier that is complete (see ``flow``)."""
    mode = next(m for m in ("popc", "and", "or") if m in ins.parts)
    value = f"X.barrier_result({mode!r},{e.lanes(ins.args[1], 'u', 32)})"
    e.write(ins.args[0], value, "u32" if mode == "popc" else "p1", ins)


def _trap(e: Emitter, ins: Instruction) -> str:
    e.line(f"X.trap({ins.parts[0]!r},{e.mask(ins)},{e.site})")
    return f"return ({e.guard(ins)},{EXIT},{e.block.index + 1})" if ins.guard else f"return {EXIT}"


def _call(e: Emitter, ins: Instruction) -> None:
    """Functions of the runtime that have no body in the module."""
    names = [a.name for a in ins.args if isinstance(a, Sym)]
    if "__assertfail" in names:
        e.line(f"X.trap('assert',{e.mask(ins)},{e.site})")
    elif "vprintf" in names:
        returned = ins.args[0].items if isinstance(ins.args[0], Vec) else ()
        for item in returned:
            if isinstance(item, Sym) and item.name in e.unit.symbols.local:
                address = f"X.full(u64({e.unit.symbols.local[item.name]}))"
                e.line(f"X.store('local',{address},[X.full(u32(0))],4,{e.mask(ins)},{e.site})")
    else:
        raise Unsupported(f"a call of {', '.join(names) or 'a pointer'}")


def _nothing(_e: Emitter, _ins: Instruction) -> None:
    """Advice: register counts, sleeping, dependent launches, profiling. No effect on values."""


ROWS: dict[str, Handler] = {
    "bra": _bra,
    "brx": _brx,
    "ret": _leave,
    "exit": _leave,
    "bar": _bar,
    "barrier": _bar,
    "barrier_result": _barrier_result,
    "trap": _trap,
    "call": _call,
    "brkpt": _nothing,
    "nanosleep": _nothing,
    "pmevent": _nothing,
    "setmaxnreg": _nothing,
    "griddepcontrol": _nothing,
}

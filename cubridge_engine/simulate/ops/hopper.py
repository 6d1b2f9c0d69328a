"""sm_90: mbarriers, bulk copies, wgmma, clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..flow import mem_operand, reads_writes
from ..model import Imm, Instruction, Mem, Operand, Reg, Vec, registers_of
from .matrix import items, shape_of

Handler = Callable[[Emitter, Instruction], str | None]
_ACCUMULATOR = {"f32": ("f", "f32"), "f16": ("u", "u32"), "s32": ("s", "s32")}
_ARITHMETIC = {
    "add", "sub", "mul", "mad", "fma", "neg", "min", "max", "and", "or", "xor", "not", "shl", "shr", "shf", "lop3",
    "prmt", "bfe", "bfi", "cvt", "mov", "setp", "selp", "ex2",
}  # fmt: skip
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor", "inc", "dec")


def _address(e: Emitter, operand: Operand, width: int = 0) -> str:
    if not isinstance(operand, Mem):
        raise Unsupported("an operand that is no address")
    value, own = e.address(operand)
    return value if own == width or not width else f"{value}.astype(u{width})"


def _mbarrier(e: Emitter, ins: Instruction) -> str | None:
    action = ins.parts[1]
    if action in ("try_wait", "test_wait"):
        return _wait(e, ins)
    if action == "pending_count":
        e.write(ins.args[0], f"({e.read(ins.args[1], 'u', 64)}>>u64(32)).astype(u32)", "u32", ins)
        return None
    position = 0 if isinstance(ins.args[0], Mem) else 1
    address = _address(e, ins.args[position])
    numbers = [e.lanes(a, "u", 32) for a in ins.args[position + 1 :]]
    mask = e.mask(ins)
    if action == "init":
        e.line(f"X.mbarrier_init({address},{numbers[0]},{mask},{e.site})")
    elif action == "inval":
        e.line(f"X.mbarrier_inval({address},{mask},{e.site})")
    elif action == "complete_tx":
        e.line(f"X.mbarrier_complete({address},{numbers[0]},{mask},{e.site})")
    elif action == "expect_tx":
        e.line(f"X.mbarrier_arrive({address},None,{numbers[0]},False,{mask},{e.site})")
    elif action in ("arrive", "arrive_drop"):
        transactions = ins.has("expect_tx")
        one = "X.full(u32(1))"
        count = one if transactions or not numbers else numbers[0]
        expected = numbers[0] if transactions else "None"
        call = f"X.mbarrier_arrive({address},{count},{expected},{action == 'arrive_drop'},{mask},{e.site})"
        if position and ins.args[0] != Reg("_"):
            e.write(ins.args[0], call, "u64", ins)
        else:
            e.line(call)
    else:
        raise Unsupported(f"mbarrier.{action}")
    return None


def _wait(e: Emitter, ins: Instruction) -> str:
    address = _address(e, ins.args[1])
    parity = ins.has("parity")
    phase = e.lanes(ins.args[2], "u", 32 if parity else 64)
    result = e.temp(f"X.mbarrier_wait({address},{phase},{parity},{e.mask(ins)},{e.site})")
    e.write(ins.args[0], f"{result}[1]", "p1", ins)
    return f"return ({result}[0],{e.block.index + 1},{e.block.index})"


def _coords(e: Emitter, mem: Mem) -> str:
    return "[" + ",".join(e.lanes(c, "s", 32) for c in mem.coords) + "]"


def bulk_copy(e: Emitter, ins: Instruction) -> str | None:
    """All instructions of the form cp.async.bulk... and cp.reduce.async.bulk..."""
    mask = e.mask(ins)
    if ins.has("commit_group"):
        e.line(f"X.bulk_commit({mask})")
        return None
    if ins.has("wait_group"):
        if not isinstance(ins.args[0], Imm):
            raise Unsupported("wait_group of a register")
        e.line(f"X.bulk_wait({ins.args[0].bits},{mask})")
        return None
    if ins.has("prefetch"):
        return None
    _refuse_modes(ins)
    reduce = next((p for p in ins.parts if p in _REDUCTIONS), "") if ins.has("reduce") else ""
    spaces = [p.split("::")[0] for p in ins.parts if p.split("::")[0] in ("global", "shared")]
    if spaces == ["global", "shared"]:
        _bulk_store(e, ins, ins.args[0], ins.has("tensor"), reduce, mask)
    elif spaces == ["shared", "shared"]:
        target, source, size, barrier = ins.args[:4]
        kind = types_of(ins)[-1] if reduce else ""
        e.line(
            f"X.remote_copy({_address(e, target)},{_address(e, source)},{e.lanes(size, 'u', 32)},"
            f"{_address(e, barrier)},{reduce!r},{kind!r},{mask},{e.site})"
        )
    elif ins.has("tensor"):
        _tensor_load(e, ins, mask)
    else:
        target, source, size, barrier = ins.args[:4]
        multicast = e.lanes(ins.args[4], "u", 16) if ins.has("multicast::cluster") else "None"
        e.line(
            f"X.bulk_load({_address(e, target)},{_address(e, source, 64)},{e.lanes(size, 'u', 32)},"
            f"{_address(e, barrier)},{multicast},{mask},{e.site})"
        )
    return None


def _refuse_modes(ins: Instruction) -> None:
    """Modes that change which bytes move: those of later architectures, and stores of columns (an H200 stops there)."""
    for part in ins.parts:
        if part in (
            "im2col::w",
            "im2col::w::128",
            "im2col_no_offs",
            "tile::gather4",
            "tile::scatter4",
            "cp_mask",
            "ignore_oob",
        ):
            raise Unsupported(f"mode .{part} of a bulk copy")
        if part.startswith("cta_group"):
            raise Unsupported(f"modifier .{part}: the barrier of a pair of CTAs")


def _tensor_load(e: Emitter, ins: Instruction, mask: str) -> None:
    source, barrier, *rest = ins.args[1:]
    if not isinstance(source, Mem):
        raise Unsupported("this form of a tensor copy")
    coords = _coords(e, source)
    if ins.has("im2col"):
        moved = rest.pop(0)
        offsets = ",".join(e.lanes(x, "u", 16) for x in (moved.items if isinstance(moved, Vec) else (moved,)))
        coords = f"[*{coords},{offsets}]"
    multicast = e.lanes(rest[0], "u", 16) if ins.has("multicast::cluster") else "None"
    target, where = _address(e, ins.args[0]), _address(e, source, 64)
    e.line(f"X.tensor_load({target},{where},{coords},{_address(e, barrier)},{multicast},{mask},{e.site})")


def _bulk_store(e: Emitter, ins: Instruction, first: Operand, tensor: bool, reduce: str, mask: str) -> None:
    if not isinstance(first, Mem):
        raise Unsupported("a bulk store without an address")
    source = _address(e, ins.args[1])
    if tensor:
        where = _address(e, Mem(first.base, first.offset), 64)
        coords = _coords(e, first)
        e.line(f"X.tensor_store({where},{coords},{source},{reduce!r},{mask},{e.site})")
    else:
        kind = types_of(ins)[-1] if reduce else ""
        size = e.lanes(ins.args[2], "u", 32)
        e.line(f"X.bulk_store({_address(e, first, 64)},{source},{size},{reduce!r},{kind!r},{mask},{e.site})")


def _wgmma(e: Emitter, ins: Instruction) -> None:
    action = ins.parts[1]
    if action == "fence":
        return  # orders registers: see lint.py
    if action == "commit_group":
        e.line(f"X.wgmma_commit({e.mask(ins)})")
        return
    if action == "wait_group":
        if not isinstance(ins.args[0], Imm):
            raise Unsupported("wait_group of a register")
        e.line(f"X.wgmma_wait({ins.args[0].bits},{e.mask(ins)})")
        return
    if action != "mma_async" or ins.has("sp"):
        raise Unsupported("this form of wgmma")
    m, n, k = shape_of(ins)
    kinds = tuple(types_of(ins)[:3]) if len(types_of(ins)) >= 3 else ins.parts[-3:]
    if m != 64 or kinds[0] not in _ACCUMULATOR:
        raise Unsupported("this shape of wgmma")
    d, a, b, scale = ins.args[:4]
    extra = [x.bits for x in ins.args[4:] if isinstance(x, Imm)]
    signs = (extra[0], extra[1]) if len(extra) >= 2 else (1, 1)
    major = extra[2:]
    from_registers = isinstance(a, Vec)
    majors = (False, bool(major[0])) if from_registers and major else tuple(bool(x) for x in (*major, 0, 0)[:2])
    left = "[" + ",".join(e.lanes(r, "u", 32) for r in a.items) + "]" if isinstance(a, Vec) else e.lanes(a, "u", 64)
    part = f"({left},{e.lanes(b, 'u', 64)},{e.lanes(scale, 'p')},{e.site})"
    form = ((n, k), kinds, signs, majors, from_registers, e.mask(ins))
    chain = e.deferred
    if isinstance(chain, _Chain) and chain.d == d and chain.form == form:
        chain.parts.append(part)
        return
    e.flush()
    e.deferred = _Chain(e, ins, d, form, [part])
    if ins.guard:  # may have another value later
        e.flush()


@dataclass(slots=True)
class _Chain:
    """Products on the same registers, with nothing between them but arithmetic on others: they become one product."""

    e: Emitter
    ins: Instruction
    d: Operand
    form: tuple[Any, ...]
    parts: list[str]

    def waits(self, ins: Instruction) -> bool:
        """True for another product, and for arithmetic that has nothing to do with the accumulators."""
        own = set(registers_of(self.d))
        if ins.parts[0] == "wgmma":
            others = {name for a in ins.args[1:] for name in registers_of(a)}
            return ins.parts[1] == "fence" or (ins.parts[1] == "mma_async" and not others & own)
        reads, writes = reads_writes(ins)
        return ins.parts[0] in _ARITHMETIC and not (reads | writes) & own

    def write(self) -> None:
        """The call, and its results."""
        e, (shape, kinds, signs, majors, _, mask) = self.e, self.form
        kind, key = _ACCUMULATOR[kinds[0]]
        old = "[" + ",".join(e.read(r, kind, 32) for r in items(self.d)) + "]"
        parts = ",".join(self.parts)
        value = e.temp(f"X.wgmma([{parts}],{shape},{kinds},{old},{signs},{majors},{mask})")
        for i, reg in enumerate(items(self.d)):
            e.write(reg, f"{value}[{i}]", key, self.ins)


def remote_store(e: Emitter, ins: Instruction) -> None:
    """st.async and red.async."""
    if not ins.has("mbarrier::complete_tx::bytes") or len(ins.args) != 3:
        raise Unsupported("a form without an mbarrier")
    target, value, barrier = ins.args
    kind = types_of(ins)[-1]
    _, width = kind_width(kind)
    reduce = next((p for p in ins.parts if p in _REDUCTIONS), "") if ins.parts[0] == "red" else ""
    values = ",".join(e.lanes(x, "u", width) for x in items(value))
    e.line(
        f"X.remote_store({_address(e, target)},[{values}],{_address(e, barrier)},{reduce!r},{kind!r},"
        f"{e.mask(ins)},{e.site})"
    )


def _mapa(e: Emitter, ins: Instruction) -> None:
    _, width = kind_width(types_of(ins)[-1])
    address, rank = e.lanes(ins.args[1], "u", width), e.lanes(ins.args[2], "u", 32)
    e.write(ins.args[0], f"X.mapa({address},{rank})", f"u{width}", ins)


def _getctarank(e: Emitter, ins: Instruction) -> None:
    _, width = kind_width(types_of(ins)[-1])
    e.write(ins.args[0], f"X.rank_of({e.lanes(ins.args[1], 'u', width)}.astype(u64))", "u32", ins)


__all__ = ["ROWS", "bulk_copy", "mem_operand", "remote_store"]

ROWS: dict[str, Handler] = {"mbarrier": _mbarrier, "wgmma": _wgmma, "mapa": _mapa, "getctarank": _getctarank}

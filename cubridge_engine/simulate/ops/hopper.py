"""sm_90: mbarriers, bulk copies, wgmma, clusters."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import Emitter, Unsupported, kind_width, types_of
from ..flow import mem_operand
from ..model import Imm, Instruction, Mem, Operand, Reg, Vec
from .matrix import items, shape_of

Handler = Callable[[Emitter, Instruction], str | None]
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
        raise Unsupported("mbarrier.pending_count")
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
    if ins.has("im2col", "im2col::w", "im2col::w::128", "tile::gather4", "tile::scatter4"):
        raise Unsupported("this mode of a tensor copy")
    first = ins.args[0]
    tensor = ins.has("tensor")
    reduce = next((p for p in ins.parts if p in _REDUCTIONS), "") if ins.has("reduce") else ""
    to_global = ins.parts.index("global") < min(
        (i for i, p in enumerate(ins.parts) if p.startswith("shared")), default=len(ins.parts)
    )
    if to_global:
        _bulk_store(e, ins, first, tensor, reduce, mask)
    elif tensor:
        source, barrier = ins.args[1], ins.args[2]
        if not isinstance(source, Mem) or reduce:
            raise Unsupported("this form of a tensor copy")
        multicast = "None"
        if ins.has("multicast::cluster"):
            multicast = e.lanes(ins.args[3], "u", 16)
        target, where = _address(e, first), _address(e, source, 64)
        bar = _address(e, barrier)
        e.line(f"X.tensor_load({target},{where},{_coords(e, source)},{bar},{multicast},{mask},{e.site})")
    else:
        if "global" not in ins.parts or reduce or ins.has("multicast::cluster"):
            raise Unsupported("a bulk copy between CTAs")
        target, source, size, barrier = ins.args[:4]
        e.line(
            f"X.bulk_load({_address(e, target)},{_address(e, source, 64)},{e.lanes(size, 'u', 32)},"
            f"{_address(e, barrier)},{mask},{e.site})"
        )
    return None


def _bulk_store(e: Emitter, ins: Instruction, first: Operand, tensor: bool, reduce: str, mask: str) -> None:
    if not isinstance(first, Mem):
        raise Unsupported("a bulk store without an address")
    source = _address(e, ins.args[1])
    if tensor:
        where = _address(e, Mem(first.base, first.offset), 64)
        e.line(f"X.tensor_store({where},{_coords(e, first)},{source},{reduce!r},{mask},{e.site})")
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
    d_kind, a_kind, b_kind = types_of(ins)[:3] if len(types_of(ins)) >= 3 else [*ins.parts[-3:]]
    if m != 64 or d_kind not in ("f32", "f16", "s32"):
        raise Unsupported("this shape of wgmma")
    d, a, b, scale = ins.args[:4]
    extra = [x.bits for x in ins.args[4:] if isinstance(x, Imm)]
    signs = (extra[0], extra[1]) if len(extra) >= 2 else (1, 1)
    major = extra[2:]
    from_registers = isinstance(a, Vec)
    majors = (False, bool(major[0])) if from_registers and major else tuple(bool(x) for x in (*major, 0, 0)[:2])
    left = "[" + ",".join(e.lanes(r, "u", 32) for r in a.items) + "]" if isinstance(a, Vec) else e.lanes(a, "u", 64)
    kind, key = {"f32": ("f", "f32"), "f16": ("u", "u32"), "s32": ("s", "s32")}[d_kind]
    keep = e.lanes(scale, "p")
    old = "[" + ",".join(e.read(r, kind, 32) for r in items(d)) + "]"
    value = e.temp(
        f"X.wgmma({left},{e.lanes(b, 'u', 64)},({n},{k}),{a_kind!r},{b_kind!r},{old},{d_kind!r},{keep},"
        f"{signs},{majors},{e.mask(ins)},{e.site})"
    )
    for i, reg in enumerate(items(d)):
        e.write(reg, f"{value}[{i}]", key, ins)


def _mapa(e: Emitter, ins: Instruction) -> None:
    _, width = kind_width(types_of(ins)[-1])
    address, rank = e.lanes(ins.args[1], "u", width), e.lanes(ins.args[2], "u", 32)
    e.write(ins.args[0], f"X.mapa({address},{rank})", f"u{width}", ins)


def _getctarank(e: Emitter, ins: Instruction) -> None:
    _, width = kind_width(types_of(ins)[-1])
    e.write(ins.args[0], f"X.rank_of({e.lanes(ins.args[1], 'u', width)}.astype(u64))", "u32", ins)


__all__ = ["ROWS", "bulk_copy", "mem_operand"]

ROWS: dict[str, Handler] = {"mbarrier": _mbarrier, "wgmma": _wgmma, "mapa": _mapa, "getctarank": _getctarank}

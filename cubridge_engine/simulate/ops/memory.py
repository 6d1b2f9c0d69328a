"""ld, st, atom, red, cp.async, ldmatrix, stmatrix, address conversions, fences."""

from __future__ import annotations

from collections.abc import Callable

from ..emit import LOCAL_BASE, SHARED_BASE, Emitter, Unsupported, kind_width, types_of
from ..flow import mem_operand
from ..global_races import is_device_fence
from ..model import Imm, Instruction, Mem, Operand, Pair, Reg, Sym, Vec

Handler = Callable[[Emitter, Instruction], str | None]
_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def space_of(e: Emitter, ins: Instruction, mem: Mem) -> str:
    """The state space of an access; parameters of inlined calls live in local memory."""
    space = ins.space
    if space == "param":
        base = mem.base
        if isinstance(base, Sym) and base.name in e.unit.symbols.local:
            return "local"
        return "param"
    return space or "generic"


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def _load(e: Emitter, ins: Instruction) -> None:
    mem = mem_operand(ins)
    kind, width = kind_width(types_of(ins)[-1])
    if types_of(ins)[-1] == "b128":
        raise Unsupported("128-bit registers")
    dst = _items(ins.args[0])
    space = space_of(e, ins, mem)
    if space == "param" and isinstance(mem.base, Sym):
        offset = e.unit.symbols.params[mem.base.name].offset + mem.base.offset + mem.offset
        for i, reg in enumerate(dst):
            e.write(reg, f"X.param({offset + i * width // 8},u{width})", f"u{width}", ins, kind == "s")
        return
    space = "generic" if space == "param" else "global" if space == "const" else space
    address, _ = e.address(mem)
    value = e.temp(f"X.load({space!r},{address},{width // 8},{len(dst)},{e.mask(ins)},{e.site})")
    note_poll(e, ins, address, width // 8 * len(dst))
    for i, reg in enumerate(dst):
        if reg != Reg("_"):
            e.write(reg, f"{value}[{i}]", f"u{width}", ins, kind == "s")


def note_poll(e: Emitter, ins: Instruction, address: str, nbytes: int) -> None:
    """A read in a loop that waits: remember what was read."""
    if e.site in e.unit.spins:
        e.line(f"X.polled({address},{nbytes},{e.mask(ins)},{e.site})")


def _store(e: Emitter, ins: Instruction) -> None:
    mem = mem_operand(ins)
    _, width = kind_width(types_of(ins)[-1])
    if ins.has("async"):
        from .hopper import remote_store

        remote_store(e, ins)
        return
    if types_of(ins)[-1] == "b128":
        raise Unsupported("128-bit registers")
    space = space_of(e, ins, mem)
    if space == "param":
        raise Unsupported("a store to a parameter")
    address, _ = e.address(mem)
    values = ",".join(e.lanes(x, "u", width) for x in _items(ins.args[1]))
    e.line(f"X.store({space!r},{address},[{values}],{width // 8},{e.mask(ins)},{e.site})")


def _atomic(e: Emitter, ins: Instruction) -> None:
    if ins.has("async"):
        from .hopper import remote_store

        remote_store(e, ins)
        return
    mem = mem_operand(ins)
    position = ins.args.index(mem)
    op = next((p for p in ins.parts[1:] if p in _ATOMIC), None)
    kind_name = types_of(ins)[-1]
    if op is None:
        raise Unsupported("this form of atom")
    if "b128" in ins.op.split("."):
        _wide_atomic(e, ins, mem, op)
        return
    if isinstance(ins.args[position + 1], Vec):
        _vector_atomic(e, ins, mem, op, kind_name)
        return
    halves, kind, width = _element(kind_name)
    address, _ = e.address(mem)
    values = ",".join(e.lanes(x, kind, width) for x in ins.args[position + 1 :])
    space = space_of(e, ins, mem)
    result = e.temp(f"X.atomic({space!r},{op!r},{address},[{values}],{halves!r},{e.mask(ins)},{e.site})")
    if ins.parts[0] == "atom":
        note_poll(e, ins, address, width // 8)
        e.write(ins.args[0], result, f"{kind}{width}", ins)


def _element(kind_name: str) -> tuple[str, str, int]:
    """How an atomic sees a type: as halves (the name, or ''), its kind and its bits."""
    kind, width = kind_width(kind_name)
    if kind_name in ("f16x2", "bf16x2", "f16", "bf16"):
        return kind_name, "u", 32 if kind_name.endswith("x2") else 16
    return "", kind, width


def _vector_atomic(e: Emitter, ins: Instruction, mem: Mem, op: str, kind_name: str) -> None:
    """Each element is atomic by itself, but the whole vector must be aligned."""
    position = ins.args.index(mem)
    given = _items(ins.args[position + 1])
    results = _items(ins.args[0]) if position else ()
    halves, kind, width = _element(kind_name)
    space, mask = space_of(e, ins, mem), e.mask(ins)
    address, _ = e.address(mem)
    e.line(f"X.aligned({address},{len(given) * width // 8},{mask},{e.site})")
    old: list[str] = []
    for i, value in enumerate(given):
        step = f"({address}+u64({i * width // 8}))" if i else address
        operand = e.lanes(value, kind, width)
        old.append(e.temp(f"X.atomic({space!r},{op!r},{step},[{operand}],{halves!r},{mask},{e.site})"))
    for register, value in zip(results, old, strict=False):
        if register != Reg("_"):
            e.write(register, value, f"{kind}{width}", ins)


def _wide_atomic(e: Emitter, ins: Instruction, mem: Mem, op: str) -> None:
    """exch and cas of 128 bits: both halves at once."""
    position = ins.args.index(mem)
    address, _ = e.address(mem)
    values = ",".join(
        f"E.joined({','.join(e.lanes(half, 'u', 64) for half in _items(x))})" for x in ins.args[position + 1 :]
    )
    call = f"X.atomic({space_of(e, ins, mem)!r},{op!r},{address},[{values}],'',{e.mask(ins)},{e.site})"
    result = e.temp(f"E.parted({call})")
    for i, register in enumerate(_items(ins.args[0])):
        e.write(register, f"{result}[{i}]", "u64", ins)


def _ldmatrix(e: Emitter, ins: Instruction) -> None:
    if not ins.has("m8n8") or not ins.has("b16"):
        raise Unsupported("this shape of ldmatrix")
    dst = _items(ins.args[0])
    address, width = e.address(mem_operand(ins))
    space = "shared" if ins.space == "shared" or width == 32 else "generic"
    value = e.temp(f"X.ldmatrix({space!r},{address},{len(dst)},{ins.has('trans')},{e.mask(ins)},{e.site})")
    for i, reg in enumerate(dst):
        e.write(reg, f"{value}[{i}]", "u32", ins)


def _stmatrix(e: Emitter, ins: Instruction) -> None:
    if not ins.has("m8n8") or not ins.has("b16"):
        raise Unsupported("this shape of stmatrix")
    address, width = e.address(mem_operand(ins))
    space = "shared" if ins.space == "shared" or width == 32 else "generic"
    values = ",".join(e.lanes(x, "u", 32) for x in _items(ins.args[1]))
    e.line(f"X.stmatrix({space!r},{address},[{values}],{ins.has('trans')},{e.mask(ins)},{e.site})")


def _cp(e: Emitter, ins: Instruction) -> str | None:
    if ins.has("bulk", "reduce"):
        from .hopper import bulk_copy

        return bulk_copy(e, ins)
    if ins.has("commit_group"):
        e.line(f"X.cp_commit({e.mask(ins)})")
    elif ins.has("wait_group"):
        if not isinstance(ins.args[0], Imm):
            raise Unsupported("wait_group of a register")
        e.line(f"X.cp_wait({ins.args[0].bits},{e.mask(ins)})")
    elif ins.has("wait_all"):
        e.line(f"X.cp_wait(-1,{e.mask(ins)})")
    elif ins.has("mbarrier"):
        address, _ = e.address(mem_operand(ins))
        e.line(f"X.cp_arrive({address},{ins.has('noinc')},{e.mask(ins)},{e.site})")
    else:
        target, source = (a for a in ins.args if isinstance(a, Mem))
        numbers = [a for a in ins.args[2:] if not isinstance(a, Mem)]
        if not numbers or not isinstance(numbers[0], Imm):
            raise Unsupported("the size of cp.async")
        size = numbers[0].bits
        # Behind the size: bytes to read (the rest is zero), and a cache policy, which has no effect on values.
        given = numbers[1:-1] if ins.has("L2::cache_hint") else numbers[1:]
        source_size = e.lanes(given[0], "u", 32) if given and not e_is_predicate(e, given[0]) else "None"
        if given and e_is_predicate(e, given[0]):  # ignore-src: nothing is read, all bytes are zero
            source_size = f"np.where({e.lanes(given[0], 'p')},u32(0),u32({size}))"
        to, _ = e.address(target)
        fro, _ = e.address(source)
        e.line(f"X.cp_async({to},{fro},{size},{source_size},{e.mask(ins)},{e.site})")
    return None


def e_is_predicate(e: Emitter, operand: Operand) -> bool:
    """True when the operand is a predicate register."""
    return isinstance(operand, Reg) and e.unit.flow.registers.get(operand.name) == "pred"


def _cvta(e: Emitter, ins: Instruction) -> None:
    _, width = kind_width(types_of(ins)[-1])
    value = e.read(ins.args[1], "u", width)
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE}.get(ins.space)
    if base is None or width == 32:
        e.write(ins.args[0], f"{value}+u{width}(0)", f"u{width}", ins)
    else:
        sign = "-" if ins.has("to") else "+"
        e.write(ins.args[0], f"{value}{sign}u64({base})", "u64", ins)


def _isspacep(e: Emitter, ins: Instruction) -> None:
    space = ins.parts[1].split("::")[0]
    e.write(ins.args[0], f"X.in_space({space!r},{e.lanes(ins.args[1], 'u', 64)})", "p1", ins)


def _fence(e: Emitter, ins: Instruction) -> None:
    if "mbarrier_init" in ins.parts:
        e.line(f"X.mbarrier_fence({e.mask(ins)})")
    if ins.has("async") or any(p.startswith("async") for p in ins.parts):
        e.line(f"X.proxy_fence({e.mask(ins)})")
    elif is_device_fence(ins):
        e.line(f"X.device_fence({e.mask(ins)})")
    if not ins.has("cta") and not any(p.startswith(("proxy", "mbarrier_init")) for p in ins.parts):
        e.line(f"X.cluster_fence({e.mask(ins)})")


def _nothing(_e: Emitter, _ins: Instruction) -> None:
    """Hints of caches: no effect on values."""


def _discard(e: Emitter, ins: Instruction) -> None:
    """The line need not be written back: what it holds is undefined from now on, here all bits."""
    address, _ = e.address(mem_operand(ins))
    poison = ",".join(["X.full(u64(0xFFFFFFFFFFFFFFFF))"] * 16)
    e.line(f"X.store({ins.space or 'generic'!r},{address},[{poison}],8,{e.mask(ins)},{e.site})")


def _multimem(_e: Emitter, ins: Instruction) -> None:
    raise Unsupported("memory that several GPUs share is not simulated")


def _policy(e: Emitter, ins: Instruction) -> None:
    dst = ins.args[0]
    if isinstance(dst, Pair):
        raise Unsupported("createpolicy with two results")
    e.write(dst, "u64(0)", "u64", ins)


ROWS: dict[str, Handler] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "cp": _cp,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "fence": _fence,
    "membar": _fence,
    "prefetch": _nothing,
    "prefetchu": _nothing,
    "discard": _discard,
    "multimem": _multimem,
    "applypriority": _nothing,
    "createpolicy": _policy,
}

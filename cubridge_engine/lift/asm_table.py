"""PTX instructions in inline assembly, by mnemonic."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from . import arithmetic, hopper, places, reinterpreted
from .machine import Machine
from .syntax import Syn
from .trace import AsyncCopy, Sync
from .values import UNDEFINED, NotUnderstood, Poly, Ptr, Value

_SPECIAL = {f"%%tid.{axis}": axis for axis in "xyz"}


@dataclass(slots=True)
class Instruction:
    """One PTX instruction: `parts` of the mnemonic, operand texts by group, and how to read and write them."""

    parts: list[str]
    groups: list[list[str]]
    machine: Machine
    outputs: list[Ptr]
    values: list[Value]
    local: dict[str, Value]
    predicate: Value
    syn: Syn

    def read(self, text: str) -> Value:
        """The value of an operand."""
        if text.startswith("%") and text[1:].isdigit():
            return self.values[int(text[1:])]
        if text in _SPECIAL:
            return self.machine.thread[_SPECIAL[text]]
        if text in self.local:
            return self.local[text]
        try:
            return int(text, 0)
        except ValueError:
            if text.lower().startswith("0f"):
                import struct

                return float(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
            raise NotUnderstood(f"the PTX operand {text}") from None

    def target(self, text: str) -> Ptr:
        """The variable of an output operand."""
        return self.outputs[int(text.removeprefix("%"))]

    def write(self, text: str, value: Value) -> None:
        """Assign an output operand."""
        if text.startswith("%") and text[1:].isdigit():
            at = int(text[1:])
            self.values[at] = value
            target = self.outputs[at]
            if target.space == "local" and isinstance(target.offset, int) and reinterpreted.width(target) == 1:
                self.machine.write(target.root, target.offset, value)  # bits, whatever the variable's type
            else:
                places.assign(self.machine, target, None, value, self.syn)
        else:
            self.local[text] = value


def run(m: Machine, text: str, outputs: list[Ptr], values: list[Value], syn: Syn) -> None:
    """Execute the instructions of one asm statement. Raises NotUnderstood."""
    local: dict[str, Value] = {}
    for piece in re.split(r"[;\n]", text.replace("{", " { ").replace("}", " } ")):
        piece = piece.strip()
        while piece.startswith(("{ ", "} ")) or piece in ("{", "}"):
            piece = piece[1:].strip()
        if not piece or piece.startswith((".reg", "//")) or piece.endswith(":"):
            continue
        predicate: Value = True
        if piece.startswith("@"):
            guard, _, piece = piece[1:].partition(" ")
            negated = guard.startswith("!")
            predicate = local.get(guard.lstrip("!"), UNDEFINED)
            if predicate is UNDEFINED:
                raise NotUnderstood(f"the predicate {guard}")
            if negated:
                predicate = arithmetic.negate(m, predicate)
        mnemonic, _, rest = piece.strip().partition(" ")
        rule = _rule(mnemonic)
        if rule is None:
            raise NotUnderstood(f"the PTX instruction {mnemonic}")
        if rule is not _NOTHING:
            instruction = Instruction(mnemonic.split("."), _groups(rest), m, outputs, values, local, predicate, syn)
            try:
                rule(instruction)
            except (IndexError, ValueError):
                raise NotUnderstood(f"the operands of {mnemonic}") from None


def _groups(text: str) -> list[list[str]]:
    """``{%0, %1}, [%2], 16`` -> [[%0, %1], [%2], [16]]."""
    groups: list[list[str]] = []
    for match in re.finditer(r"\{([^}]*)\}|\[([^\]]*)\]|([^,\s]+)", text):
        inner = next(g for g in match.groups() if g is not None)
        groups.append([word.strip() for word in inner.split(",") if word.strip()])
    return groups


def _rule(mnemonic: str) -> Callable[[Instruction], None] | None:
    for prefix, rule in TABLE:
        if mnemonic == prefix or mnemonic.startswith(prefix + "."):
            return rule
    return None


# ---- rules
# ------------------------------------------------------------------------------------------------------------


def _cp_async(i: Instruction) -> None:
    m = i.machine
    shared, pointer = i.read(i.groups[0][0]), i.read(i.groups[1][0])
    size = i.read(i.groups[2][0])
    live = i.read(i.groups[3][0]) if len(i.groups) > 3 and "cache_hint" not in i.parts else size
    if isinstance(shared, Ptr):
        shared = shared.offset
    if not isinstance(pointer, Ptr) or not isinstance(size, int):
        raise NotUnderstood("cp.async from something that is no global pointer")
    m.epoch += 1
    predicates = (*m.predicates, *(() if i.predicate is True else (i.predicate,)))
    m.record(AsyncCopy(m.next_order(), m.place(), shared, pointer, size, live, predicates, m.epoch))
    m.observer.access(m, "shared", None, shared, size, True, "async")
    m.observer.access(m, "global", pointer.root, pointer.offset, size, False, "async")


def _commit(i: Instruction) -> None:
    i.machine.record(Sync(i.machine.next_order(), i.machine.place(), "commit"))


def _wait(i: Instruction) -> None:
    pending = i.read(i.groups[0][0]) if i.groups else 0
    if not isinstance(pending, int):
        raise NotUnderstood("wait_group with a count that is not constant")
    i.machine.record(Sync(i.machine.next_order(), i.machine.place(), "wait", pending))


def _barrier(i: Instruction) -> None:
    scope = "warp" if "warp" in i.parts else "cta"
    number, count = (i.read(i.groups[at][0]) if len(i.groups) > at else 0 for at in (0, 1))
    part = None
    if scope == "cta" and isinstance(count, int) and 0 < count < i.machine.threads:
        scope, part = "part", (number, count)
    i.machine.record(Sync(i.machine.next_order(), i.machine.place(), "barrier", scope=scope))
    named = len(i.groups) > 1 or i.groups[:1] not in ([], [["0"]])
    i.machine.observer.meeting(i.machine, scope, named, part)


def _ldmatrix(i: Instruction) -> None:
    m = i.machine
    address = i.read(i.groups[1][0])
    if isinstance(address, Ptr):
        address = address.offset
    m.observer.access(m, "shared", None, address, 16, False, "matrix")
    for at, target in enumerate(i.groups[0]):
        i.write(target, m.store.node("frag", (address,), (at, "trans" in i.parts, m.epoch), "reg"))


def _mma(i: Instruction) -> None:
    m = i.machine
    shape = next((p for p in i.parts if re.fullmatch(r"m\d+n\d+k\d+", p)), "")
    if shape not in ("m16n8k16", "m16n8k8") or i.parts[-1] != "f32":
        raise NotUnderstood(f"mma shape {shape} with accumulator {i.parts[-1]}")
    d, a, b, c = i.groups
    operands = (*(i.read(x) for x in a), *(i.read(x) for x in b))
    starts = [i.read(x) for x in c]
    starts = [reinterpreted.bits_as_float(x) if isinstance(x, int) else x for x in starts]
    results = [m.store.node("mma", (x, *operands), (at, shape, i.parts[-3])) for at, x in enumerate(starts)]
    for target, value in zip(d, results, strict=True):
        i.write(target, value)


def _pack(i: Instruction) -> None:
    dtype = "fp16" if "f16x2" in i.parts else "bf16"
    high, low = (i.read(g[0]) for g in i.groups[1:3])
    halves = tuple(i.machine.store.node(dtype, (x,)) for x in (low, high))
    i.write(i.groups[0][0], i.machine.store.node("pack", halves, dtype, "reg"))


def _unary(op: str) -> Callable[[Instruction], None]:
    return lambda i: i.write(i.groups[0][0], arithmetic.float_op(i.machine, op, i.read(i.groups[1][0])))


def _reciprocal(i: Instruction) -> None:
    i.write(i.groups[0][0], arithmetic.float_op(i.machine, "div", 1.0, i.read(i.groups[1][0])))


def _max(i: Instruction) -> None:
    i.write(i.groups[0][0], arithmetic.float_op(i.machine, "max", *(i.read(g[0]) for g in i.groups[1:])))


def _setp(i: Instruction) -> None:
    a, b = (i.read(g[0]) for g in i.groups[1:3])
    i.local[i.groups[0][0]] = arithmetic.boolean(i.machine, arithmetic.compare(i.machine, i.parts[1], a, b))


def _to_shared(i: Instruction) -> None:
    value = i.read(i.groups[1][0])
    i.write(i.groups[0][0], value.offset if isinstance(value, Ptr) and value.space == "shared" else value)


def _move(i: Instruction) -> None:
    if len(i.groups[1]) == 1:
        i.write(i.groups[0][0], i.read(i.groups[1][0]))
        return
    low, high = (i.read(word) for word in i.groups[1])  # two words make a long one
    if not isinstance(high, int):
        raise NotUnderstood("a register of two words of which the high one is not constant")
    number = isinstance(low, int) or (isinstance(low, Poly) and low.numeric() is not None)
    store = i.machine.store
    joined = store.add(low, high << 32) if number else store.node("bitor", (low, high << 32), kind="int")
    i.write(i.groups[0][0], joined)


def _no_operation(i: Instruction) -> None:
    return None


_NOTHING = _no_operation

# Longest prefixes first where one is a prefix of another.
TABLE: tuple[tuple[str, Callable[[Instruction], None]], ...] = (
    ("cp.async.bulk.tensor", hopper.tma),
    ("mbarrier.init", hopper.arrive),
    ("mbarrier.arrive.expect_tx", hopper.expect),
    ("mbarrier.arrive", _NOTHING),  # a stage is free: the producer waits for that
    ("mbarrier.try_wait", hopper.wait),
    ("bra", hopper.jump),
    ("wgmma.mma_async", hopper.wgmma),
    ("wgmma.fence", _NOTHING),
    ("wgmma.commit_group", hopper.commit_products),
    ("wgmma.wait_group", hopper.wait_products),
    ("setmaxnreg", _NOTHING),
    ("fence.mbarrier_init", _NOTHING),
    ("fence.proxy", _NOTHING),
    ("cp.async.commit_group", _commit),
    ("cp.async.wait_group", _wait),
    ("cp.async.wait_all", _wait),
    ("cp.async.ca", _cp_async),
    ("cp.async.cg", _cp_async),
    ("ldmatrix", _ldmatrix),
    ("mma.sync", _mma),
    ("cvt.rn.f16x2.f32", _pack),
    ("cvt.rn.bf16x2.f32", _pack),
    ("ex2.approx", _unary("exp2")),
    ("lg2.approx", _unary("log2")),
    ("tanh.approx", _unary("tanh")),
    ("rcp", _reciprocal),
    ("max", _max),
    ("setp", _setp),
    ("bar.sync", _barrier),
    ("bar.arrive", _NOTHING),  # it lets others pass, and orders nothing that this thread reads
    ("barrier.sync", _barrier),
    ("cvta.to.shared", _to_shared),
    ("mov", _move),
    ("prefetch", _NOTHING),
    ("griddepcontrol", _NOTHING),
)

"""Functions inlined, basic blocks, liveness: the shape of a kernel before code is generated for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .explicit import plain
from .model import Function, Instruction, Mem, Operand, Pair, Reg, Sym, Variable, Vec, registers_of, renamed

EXIT = -1  # the "block" of a thread that has ended

_ENDS = {"bra", "brx", "ret", "exit", "trap"}
# First operand is read although it is a register.
_NO_RESULT = {"bar", "barrier", "nanosleep", "brx", "setmaxnreg", "red", "st", "tensormap", "prefetch"}
_MAX_DEPTH = 16


@dataclass(slots=True)
class Block:
    """Instructions ``code[start:stop]``; registers live at both ends, as the generator stores only those."""

    index: int
    start: int
    stop: int
    successors: list[int] = field(default_factory=list)
    live_in: set[str] = field(default_factory=set)
    live_out: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Flow:
    """A kernel with every call inlined: code, registers, variables, blocks; `block_of` maps labels to block indices."""

    name: str
    code: list[Instruction]
    registers: dict[str, str]
    variables: list[Variable]
    blocks: list[Block]
    block_of: dict[str, int]
    tables: dict[str, tuple[str, ...]]


def is_wait(ins: Instruction) -> bool:
    """True for instructions that may have to be executed again: they stand alone in a block."""
    p = ins.parts
    return p[0] == "mbarrier" and len(p) > 1 and p[1] in ("try_wait", "test_wait")


def ends_block(ins: Instruction) -> bool:
    """True when control does not simply go on to the next instruction of the block."""
    p = ins.parts
    if p[0] in ("bar", "barrier"):
        return "warp" not in p
    return p[0] in _ENDS or is_wait(ins)


def reads_writes(ins: Instruction) -> tuple[set[str], set[str]]:
    """Names of the registers read and written. A guarded write keeps the old value, so it reads too."""
    reads: set[str] = set()
    writes: set[str] = set()
    name = ins.parts[0]
    first_is_result = name not in _NO_RESULT
    for position, arg in enumerate(ins.args):
        target = writes if position == 0 and first_is_result and isinstance(arg, Reg | Vec | Pair) else reads
        target.update(registers_of(arg))
    if name == "wgmma" and "mma_async" in ins.parts:
        reads |= writes
    if ins.guard:
        reads.add(ins.guard.name)
        reads |= writes
    return reads, writes


class _Inliner:
    """Copies functions that were not inlined into the kernel, with fresh names per call."""

    def __init__(self, functions: dict[str, Function], kernel: Function) -> None:
        self.functions = functions
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.registers = dict(kernel.registers)
        self.variables = list(kernel.variables)
        self.tables: dict[str, tuple[str, ...]] = {}
        self.calls = 0
        self.copy(kernel, {}, None, 0)

    def copy(self, function: Function, names: dict[str, str], end: str | None, depth: int) -> None:
        at: dict[int, list[str]] = {}
        for label, index in function.labels.items():
            at.setdefault(index, []).append(names.get(label, label))
        for label, targets in function.tables.items():
            self.tables[names.get(label, label)] = tuple(names.get(t, t) for t in targets)
        for index, ins in enumerate(function.code):
            for label in at.get(index, ()):
                self.labels[label] = len(self.code)
            new = renamed(ins, names) if names else ins
            callee = self.callee(new)
            if end is not None and new.parts[0] == "ret":
                self.code.append(replace(new, op="bra", parts=("bra",), args=(Sym(end),)))
            elif new.parts[0] in ("bar", "barrier") and "red" in new.parts:
                # The result exists when the barrier is complete: an instruction of its own, in the next block.
                parts = ("barrier_result", *new.parts[1:])
                self.code.append(replace(new, args=new.args[1:]))
                self.code.append(replace(new, op=".".join(parts), parts=parts, args=new.args[:2]))
            elif callee is not None and callee.code and depth < _MAX_DEPTH:
                self.call(new, callee, depth)
            else:
                self.code += plain(new, self.registers)
        for label in at.get(len(function.code), ()):
            self.labels[label] = len(self.code)

    def callee(self, ins: Instruction) -> Function | None:
        if ins.parts[0] != "call":
            return None
        return next((self.functions[a.name] for a in ins.args if isinstance(a, Sym) and a.name in self.functions), None)

    def call(self, ins: Instruction, callee: Function, depth: int) -> None:
        self.calls += 1
        mark = f"#{self.calls}"
        names = {n: n + mark for n in (*callee.registers, *callee.labels)}
        names |= {v.name: v.name + mark for v in callee.variables if v.space in ("local", "param")}
        position = next(k for k, a in enumerate(ins.args) if isinstance(a, Sym) and a.name == callee.name)
        lists = [a.items if isinstance(a, Vec) else () for a in ins.args]
        results = lists[0] if position == 1 else ()
        actuals = lists[position + 1] if len(lists) > position + 1 else ()
        for param, actual in (*zip(callee.returns, results, strict=False), *zip(callee.params, actuals, strict=False)):
            if isinstance(actual, Sym):
                names[param.name] = actual.name
        self.registers.update({names[n]: t for n, t in callee.registers.items()})
        self.variables += [replace(v, name=names.get(v.name, v.name)) for v in callee.variables]
        end = f"end{mark}"
        self.copy(callee, names, end, depth + 1)
        self.labels[end] = len(self.code)


def build_flow(kernel: Function, functions: dict[str, Function]) -> Flow:
    """Inline, split into blocks, compute liveness."""
    inlined = _Inliner(functions, kernel)
    code = inlined.code
    if not code or code[-1].parts[0] not in ("ret", "exit") or len(code) in inlined.labels.values():
        last = code[-1] if code else None
        code.append(
            Instruction(
                "ret", ("ret",), (), None, False, last.line if last else kernel.line, last.loc if last else None
            )
        )
    starts = {0, *inlined.labels.values()}
    for index, ins in enumerate(code):
        if ends_block(ins):
            starts.add(index + 1)
        if is_wait(ins):
            starts.add(index)
    ordered = sorted(s for s in starts if s < len(code))
    blocks = [
        Block(n, start, stop) for n, (start, stop) in enumerate(zip(ordered, [*ordered[1:], len(code)], strict=True))
    ]
    index_of = {block.start: block.index for block in blocks}
    block_of = {label: index_of[at] for label, at in inlined.labels.items() if at in index_of}
    flow = Flow(kernel.name, code, inlined.registers, inlined.variables, blocks, block_of, inlined.tables)
    for block in blocks:
        block.successors = _successors(flow, block)
    _liveness(flow)
    return flow


def _targets(flow: Flow, ins: Instruction) -> list[str]:
    if ins.parts[0] == "bra":
        return [a.name for a in ins.args if isinstance(a, Sym)]
    if ins.parts[0] == "brx" and isinstance(ins.args[1], Sym):
        return list(flow.tables.get(ins.args[1].name, ()))
    return []


def _successors(flow: Flow, block: Block) -> list[int]:
    last = flow.code[block.stop - 1]
    found = [flow.block_of[t] for t in _targets(flow, last) if t in flow.block_of]
    leaves = last.parts[0] in ("bra", "brx", "ret", "exit", "trap") and last.guard is None
    if not leaves and block.index + 1 < len(flow.blocks):
        found.append(block.index + 1)
    if is_wait(last):
        found.append(block.index)
    return found


def _liveness(flow: Flow) -> None:
    uses: list[set[str]] = []
    kills: list[set[str]] = []
    for block in flow.blocks:
        use: set[str] = set()
        kill: set[str] = set()
        for ins in flow.code[block.start : block.stop]:
            reads, writes = reads_writes(ins)
            use |= (reads & flow.registers.keys()) - kill
            block.written |= writes & flow.registers.keys()
            if ins.guard is None:
                kill |= writes
        uses.append(use)
        kills.append(kill)
        block.live_in = set(use)
    changed = True
    while changed:
        changed = False
        for block in reversed(flow.blocks):
            out: set[str] = set()
            for successor in block.successors:
                out |= flow.blocks[successor].live_in
            new = uses[block.index] | (out - kills[block.index])
            if out != block.live_out or new != block.live_in:
                block.live_out, block.live_in = out, new
                changed = True


def mem_operand(ins: Instruction) -> Mem:
    """The first memory operand. Raises ValueError when there is none."""
    for arg in ins.args:
        if isinstance(arg, Mem):
            return arg
    raise ValueError(f"{ins.op} has no memory operand")


__all__ = ["EXIT", "Block", "Flow", "Operand", "build_flow", "ends_block", "is_wait", "mem_operand", "reads_writes"]

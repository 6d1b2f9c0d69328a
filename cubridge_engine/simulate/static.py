"""What neither numbers nor schedules show, found on the code: sizes that are too large to execute, alignments that no
tested tensor has, shared memory of instances that were not run, and what ptxas says about wgmma.

``static_findings(module, kernel, launches, ...)``. Only what certainly happens is a finding: an address that has no
value in a slice (it depends on memory, say) is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..diagnostics import Diagnostic, make
from .emit import SHARED_START, kind_width, types_of
from .findings import Findings
from .flow import EXIT
from .kernel import Kernel
from .model import Imm, Instruction, Mem, Vec
from .run import Module
from .slices import LAST, Slice, StaticLaunch, Triple, Values

_ALIGNED = 1 << 12  # bytes: more than any access needs
_ROUNDS = 4  # iterations of a loop that are looked at for shared memory: a ring of up to four stages
_NOT_LISTED = {"wgmma", "mbarrier", "tcgen05"}  # reach shared memory through descriptors, or in ways not counted here

# The notes of ptxas that speak of a kernel's behaviour, in plain words.
_NOTES = {
    "C7510": "wgmma is serialised: every one waits for the one before it",
    "C7515": "wgmma is serialised: every one waits for the one before it",
    "C7519": "a wgmma.wait_group was added where accumulators are used",
    "C7520": "registers are moved between wgmma instructions, which then wait for each other",
}


@dataclass(frozen=True, slots=True)
class Alignment:
    """What is promised of an argument: its value (an address, or elements of a stride) is a multiple of `multiple`."""

    name: str
    position: int
    multiple: int


def static_findings(
    module: Module,
    kernel: str,
    launches: Sequence[StaticLaunch],
    *,
    promises: Sequence[Alignment] = (),
    notes: Sequence[str] = (),
) -> tuple[Diagnostic, ...]:
    """Findings CB534..CB538 of one entry, none for a module that cannot be read.

    `launches`: from small to large, all of them allowed; the first one shows shared memory, the one with most heads
    alignment, all of them overflow. `promises`: the pointers and strides that may be aligned to no more than that.
    `notes`: what ptxas said, as ``C7510: text``. Raises KeyError for an unknown `kernel`.
    """
    ready = module.kernel(kernel)
    found = [make("CB538", None, note=code, message=text) for code, text in _ptxas(notes)]
    if module.diagnostics or ready.unsupported or not launches:
        return tuple(found)
    findings = module.collector(ready)
    with np.errstate(all="ignore"):  # 64-bit address arithmetic wraps, as on the device
        _shared(ready, launches[0], findings)
        _overflow(ready, launches, findings)
        _alignment(ready, max(launches, key=lambda one: one.grid[1] * one.grid[2]), promises, findings)
    return (*findings.diagnostics(), *found)


def _ptxas(notes: Sequence[str]) -> Iterator[tuple[str, str]]:
    for note in notes:
        m = re.match(r"\(?(C75\d\d)\)?:?\s*(.*)", note)
        if m:
            yield m[1], _NOTES.get(m[1], m[2])


@dataclass(frozen=True, slots=True)
class _Access:
    """A memory operand of an instruction: bytes that one thread touches, and whether it is in shared memory."""

    site: int
    memory: Mem
    bytes: int
    shared: bool
    block: int


def _accesses(kernel: Kernel) -> Iterator[_Access]:
    blocks = [b.index for b in kernel.flow.blocks for _ in range(b.start, b.stop)]
    for site, ins in enumerate(kernel.flow.code):
        name, block = ins.parts[0], blocks[site]
        memory = [a for a in ins.args if isinstance(a, Mem)]
        if name in ("ld", "st", "atom", "red") and memory and ins.space in ("global", "shared", ""):
            yield _Access(site, memory[0], _width(ins), ins.space == "shared", block)
        elif name in ("ldmatrix", "stmatrix") and memory:
            yield _Access(site, memory[0], 16, True, block)
        elif name == "cp" and len(memory) == 2 and not ins.has("bulk") and isinstance(ins.args[2], Imm):
            yield _Access(site, memory[0], ins.args[2].bits, True, block)
            yield _Access(site, memory[1], ins.args[2].bits, False, block)


def _width(ins: Instruction) -> int:
    types = types_of(ins)
    unit = kind_width(types[-1])[1] // 8 if types and types[-1] != "b128" else 16
    return unit * next((len(a.items) for a in ins.args if isinstance(a, Vec)), 1)


# Shared memory.


def _shared(kernel: Kernel, launch: StaticLaunch, findings: Findings) -> None:
    """CB534: bytes beyond the launched ones. CB535: launched ones that nothing touches, if all accesses are known."""
    size = kernel.shared_bytes + launch.dynamic_shared
    slices = [Slice(kernel, launch, (0, 0, 0), n) for n in range(_ROUNDS)]
    whole = _whole_blocks(kernel, slices[0])
    masks = [s.threads() for s in slices]
    touched, all_known = 0, not any(i.parts[0] in _NOT_LISTED or i.has("bulk") for i in kernel.flow.code)
    for access in _accesses(kernel):
        if not access.shared:
            all_known &= kernel.flow.code[access.site].space != ""
            continue
        addresses = [s.address(access.memory) for s in slices]
        tops = [
            int(np.max(np.broadcast_to(address, here[access.block].shape)[here[access.block]]))
            + access.bytes
            - SHARED_START
            for address, here in zip(addresses, masks, strict=True)
            if address is not None and bool(np.any(here[access.block]))
        ]
        all_known &= all(address is not None for address in addresses)
        touched = max([touched, *tops])
        if tops and max(tops) > size and access.site in whole and kernel.flow.code[access.site].guard is None:
            findings.add("CB534", access.site, 1, last=max(tops), size=size, label=launch.label)
    if all_known and 0 < touched < size and launch.dynamic_shared:
        findings.add("CB535", -1, 1, size=size, touched=touched, unused=size - touched, label=launch.label)


def _whole_blocks(kernel: Kernel, values: Slice) -> set[int]:
    """Instructions before which no branch parts the threads in a way that is not known."""
    flow = kernel.flow
    after = _postdominators(kernel)
    parted: set[int] = set()
    for block in flow.blocks:
        ending = flow.code[block.stop - 1]
        if ending.guard is None:
            continue
        if ending.parts[0] == "bra" and values.value(ending.guard) is not None:
            continue  # which threads pass is known
        if ending.parts[0] == "bra" and not _by_thread(kernel, values, ending.guard.name):
            continue
        work = list(block.successors)
        while work:  # up to where the ways meet again
            here = work.pop()
            if here not in parted and here not in after[block.index]:
                parted.add(here)
                work += flow.blocks[here].successors
    return {i for b in flow.blocks if b.index not in parted for i in range(b.start, b.stop)}


def _by_thread(kernel: Kernel, values: Slice, name: str) -> bool:
    """True unless a register depends on parameters and CTA indices alone."""
    for register in {name, *values.depends(name)}:
        for site in values.definitions.get(register, ()):
            ins = kernel.flow.code[site]
            texts = [str(getattr(a, "name", "")) for a in ins.args]
            if ins.parts[0] in ("shfl", "atom", "vote") or any(
                ("tid." in t and "cta" not in t) or "lane" in t for t in texts
            ):
                return True
            if ins.parts[0] == "ld" and ins.space != "param":
                return True
    return False


def _postdominators(kernel: Kernel) -> list[set[int]]:
    """For each block the blocks that every way from it to the end passes, itself left out."""
    blocks = kernel.flow.blocks
    everything = {EXIT, *range(len(blocks))}
    after = [set(everything) for _ in blocks]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            ways = [after[s] | {s} if s >= 0 else {EXIT} for s in block.successors] or [{EXIT}]
            new = set.intersection(*ways)
            if new != after[block.index]:
                after[block.index] = new
                changed = True
    return after


# Overflow.


def _overflow(kernel: Kernel, launches: Sequence[StaticLaunch], findings: Findings) -> None:
    """CB536: a 32-bit value that is part of an address of global memory wraps at sizes the caller may pass."""
    seen: set[int] = set()
    for launch in launches:
        x, y, z = launch.grid
        cta = (x - 1, y - 1, z - 1)
        masks = Slice(kernel, launch, cta, LAST, strict=False).threads()
        slices: dict[bytes, Slice] = {}
        for access in _accesses(kernel):
            mask = masks[access.block]
            if access.shared or not bool(np.any(mask)):
                continue
            key = mask.tobytes()
            if key not in slices:
                slices[key] = Slice(kernel, launch, cta, LAST, strict=False)
                slices[key].judged = mask
            values = slices[key]
            values.address(access.memory)
            for site in values.overflows.keys() - seen:
                largest, opcode = values.overflows[site], kernel.flow.code[site].op
                findings.add("CB536", site, 1, access.site, value=largest, label=launch.label, opcode=opcode)
                seen.add(site)


# Alignment.


def _alignment(kernel: Kernel, launch: StaticLaunch, promises: Sequence[Alignment], findings: Findings) -> None:
    """CB537: an access of several bytes that is misaligned when one argument has only its promised alignment."""
    wide = [a for a in _accesses(kernel) if not a.shared and a.bytes > 1]
    aligned = list(launch.arguments)
    for promise in promises:
        aligned[promise.position] = _raised(launch.arguments[promise.position], _ALIGNED)
    needs: dict[_Access, list[str]] = {}
    for promise in promises:
        for access in _misaligned(kernel, launch, wide, aligned, promise, promise.multiple):
            need = 2 * promise.multiple
            while need < _ALIGNED and _misaligned(kernel, launch, [access], aligned, promise, need):
                need *= 2
            needs.setdefault(access, []).append(f"{promise.name} of {need} (promised: {promise.multiple})")
    for access, arguments in needs.items():
        findings.add("CB537", access.site, 1, bytes=access.bytes, multiples=", ".join(arguments))


def _raised(value: int | None, multiple: int) -> int | None:
    return None if value is None else -(-value // multiple) * multiple


def _misaligned(
    kernel: Kernel, launch: StaticLaunch, accesses: Sequence[_Access], aligned: Sequence[int | None],
    promise: Alignment, multiple: int,
) -> list[_Access]:  # fmt: skip
    """The accesses that are misaligned when the argument is an odd multiple of `multiple`, and all others are round."""
    value = aligned[promise.position]
    if value is None:
        return []
    arguments = list(aligned)
    arguments[promise.position] = value + multiple
    x, y, z = (max(n, 2) for n in launch.grid)
    changed = replace(launch, arguments=tuple(arguments), grid=(x, y, z))
    ctas: tuple[Triple, ...] = ((1, 1, 1), (x - 1, y - 1, z - 1))  # odd indices: an even one hides half of a stride
    slices = [Slice(kernel, changed, cta, n, strict=False) for cta in ctas for n in (0, 1)]
    masks = [s.threads() for s in slices]
    return [
        a
        for a in accesses
        if any(_odd(s.address(a.memory), a.bytes, here[a.block]) for s, here in zip(slices, masks, strict=True))
    ]


def _odd(address: Values | None, size: int, threads: Values) -> bool:
    return address is not None and bool(np.any((address % size != 0) & threads))

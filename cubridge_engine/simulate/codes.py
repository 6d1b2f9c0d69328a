"""Findings of executing PTX. CB501..CB509 are those of executing CuIR; these speak of threads and bytes."""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

E = Severity.ERROR
W = Severity.WARNING

CODES: dict[str, Row] = {
    "CB510": Row(
        E,
        "the simulator does not know the instruction {opcode} (PTX line {ptx_line}): {reason}",
        "compile for another architecture, verify on a GPU, or report the instruction",
    ),
    "CB511": Row(
        E, "the PTX cannot be read at line {ptx_line}: {reason}", "pass the text that nvcc -ptx or NVRTC wrote"
    ),
    "CB512": Row(E, "the launch is not possible: {reason}", "correct the grid, the block or the arguments: {hint}"),
    "CB513": Row(
        E,
        "{access} of {bytes} bytes at {where} is outside every buffer ({count} accesses)",
        "predicate the access by the number of rows, or correct the offset",
    ),
    "CB514": Row(
        E,
        "{access} of {bytes} bytes at address {address} is not aligned to {bytes} bytes ({count} accesses)",
        "use a narrower access, or require the alignment of the pointer and of every stride",
    ),
    "CB515": Row(
        E,
        "{access} of {bytes} bytes at shared address {address} is outside the CTA's {size} bytes ({count} accesses)",
        "check the index, and the dynamic shared memory of the launch",
    ),
    "CB516": Row(
        E,
        "race: {access} of {buffer} is not ordered after the {other} by {other_warp} ({count} accesses)",
        "put a barrier (__syncthreads, mbarrier) between the two",
    ),
    "CB517": Row(
        E,
        "{access} of {buffer} before the asynchronous {other} has completed ({count} accesses)",
        "wait for it (cp.async.wait_group, mbarrier, wgmma.wait_group) before this access",
    ),
    "CB518": Row(
        E,
        "{access} of {buffer} where nothing was written ({count} accesses)",
        "check the index, and what the copy into it covers",
    ),
    "CB519": Row(
        E,
        "a barrier is reached by {lanes} of the 32 lanes of warp {warp} ({count} times)",
        "let every thread of the warp reach the barrier: no barrier inside a divergent if, no return before it",
    ),
    "CB520": Row(
        E,
        "deadlock: {threads} threads wait here for ever; {why}",
        "check that every thread that is counted arrives, and that phase and byte count are right",
    ),
    "CB521": Row(
        E,
        "{opcode} names lanes that do not execute it: mask {mask}, executing {active} ({count} times)",
        "call it where all named lanes are active, or compute the mask with __activemask() before the branch",
    ),
    "CB522": Row(
        E,
        "{access} into {buffer}, which is an input ({count} accesses)",
        "check the pointer and the offset of the store",
    ),
    "CB523": Row(
        E,
        "{missing} of {total} elements of {buffer} were never written; the first is {first}",
        "check the grid, the loop over rows and the store predicate",
    ),
    "CB524": Row(
        W,
        "two CTAs write the same element of {buffer} ({count} elements): CTA {cta} after CTA {other_cta}",
        "check the batch, head and row offsets of the store",
    ),
    "CB525": Row(
        E,
        "mbarrier at shared address {address}: {problem} ({count} times)",
        "initialise it with the number of arrivals per phase, and let exactly these threads arrive",
    ),
    "CB526": Row(
        E,
        "address {address} belongs to no memory ({access}, {count} accesses)",
        "the pointer is null, truncated, or of another address space",
    ),
    "CB527": Row(
        E,
        "race inside {warp}: {access} of {buffer} by lane {lane}, {other} by lane {other_lane}, no __syncwarp() "
        "between ({count} accesses)",
        "put a __syncwarp() between the two",
    ),
    "CB528": Row(E, "the kernel executed {what} ({count} threads)", "the program stops itself here: see the condition"),
    "CB529": Row(
        E,
        "wgmma: {problem}",
        "order register writes with wgmma.fence, and touch accumulators and fragments only after wgmma.wait_group",
    ),
    "CB530": Row(
        E,
        "{buffer} written by {other_warp} is the target of {access} without fence.proxy.async ({count} accesses)",
        "put fence.proxy.async after the writes and before the barrier",
    ),
    "CB531": Row(
        E,
        "{what} needs {need} bytes alignment of shared memory, the address is {address} ({count} times)",
        "align the shared buffer (swizzle 128B: 1024, 64B: 512, 32B: 256, none: 128)",
    ),
    "CB533": Row(
        E,
        "a bulk tensor copy at coordinates {coords} of {buffer} stops the kernel: {problem} ({count} times)",
        "load a larger aligned box and use a part of it, or store with ordinary instructions at the edge",
    ),
    "CB532": Row(
        E,
        "the kernel still runs after {steps} steps of the scheduler",
        "a loop does not end, or it waits for another CTA; raise max_steps if the launch is really this long",
    ),
    "CB534": Row(
        E,
        "shared memory is touched up to byte {last}, but the CTA has {size} bytes ({label})",
        "launch with more dynamic shared memory, or correct the index",
    ),
    "CB535": Row(
        Severity.NOTE,
        "of {size} launched bytes of shared memory the kernel touches {touched}, {unused} are unused ({label})",
        "launch with less dynamic shared memory, so that more CTAs fit on a multiprocessor",
    ),
    "CB536": Row(
        W,
        "{opcode} wraps: the address needs {value}, which is beyond 32 bits, at {label}",
        "widen one factor to 64 bits before the product: static_cast<long long>(row) * stride",
    ),
    "CB537": Row(
        W,
        "this access of {bytes} bytes is not always aligned: it needs multiples, {multiples}",
        "raise the alignment limit of the contract, or use a narrower access",
    ),
    "CB538": Row(
        W,
        "ptxas {note}: {message}",
        "keep accumulators and fragments in registers, and touch them only behind wgmma.wait_group",
    ),
    "CB539": Row(
        E,
        "race in global memory: {access} of CTA {cta} to {buffer} is not ordered after the {other} by {other_warp} of "
        "the same CTA ({count} accesses)",
        "put a __syncthreads() between the two",
    ),
    "CB540": Row(
        E,
        "race between CTAs: {access} of {buffer} by CTA {cta} is not ordered after the {other} by CTA {other_cta}: "
        "{missing} ({count} accesses)",
        "publish with __threadfence() and an atomic on a counter or flag (or a release), and access it behind an "
        "atomic or volatile read of that counter or flag and another __threadfence() (or an acquire)",
    ),
    "CB541": Row(
        E,
        "{opcode} is executed by lane {lane}, which its mask {mask} does not name ({count} times)",
        "name every lane that executes it: 0xffffffff, or __activemask() taken before the branch",
    ),
    "CB542": Row(
        E,
        "no progress: {threads} threads read {where} again and again, and nothing that still runs writes it; {why}",
        "check who sets this value, and that it runs: a CTA may wait only for CTAs that do not wait for it",
    ),
    "CB543": Row(
        E,
        "{access} uses the mbarrier {buffer} of another CTA, which need not see yet that it was initialised ({count} "
        "times)",
        "put fence.mbarrier_init.release.cluster behind mbarrier.init, before a relaxed arrival at the cluster barrier",
    ),
    "CB545": Row(
        W,
        "{access} uses the mbarrier {buffer}, and the copy engine need not see yet that it was initialised ({count} "
        "times)",
        "put fence.mbarrier_init.release.cluster or fence.proxy.async behind mbarrier.init, before the barrier",
    ),
    "CB544": Row(
        E,
        "{opcode}: metadata {metadata} of lane {lane} does not name two different elements of four in rising order "
        "({count} lanes)",
        "encode for every four elements two indices, the lower one first",
    ),
}
register(CODES)

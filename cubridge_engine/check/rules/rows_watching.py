"""The table of rules, third part: what watching and expectations find. Nothing here runs while reading."""

from __future__ import annotations

from ...simulate import codes as _codes  # registers the sentences of the simulator's findings
from ...watch import codes as _watch_codes  # registers that of a disagreement
from ..model import Example, Kind, Rule
from .rows_orchestration import SM80

_FIRST_WRONG = Rule(
    "CB880",
    "numeric",
    "The first step that is wrong",
    "The kernel was executed, and its output is not that of the attention that is expected (with --expect or a spec) or"
    " promised (by its contract). Every step was then compared with what the mathematics gives for it: the tiles of Q,"
    " K and V, S, the mask, the maximum, P, l, O, and what is stored. The finding is on the first one that is wrong;"
    " all before it were right, for every element. Where the program cannot be read, the operands of every product"
    " are looked at, on inputs whose elements are all different. The sentence says for which elements of the tile the"
    " numbers are wrong, and which single fault explains them, if one does.",
    "Mend what the sentence names, and check again: what comes behind a wrong step was not judged.",
    Example(
        SM80,
        (("pack2<T>(s[2 * kk][0], s[2 * kk][1]),", "pack2<T>(s[2 * kk][1], s[2 * kk][0]),"),),
        "mma_m16n8k16<T>(o[2 * np], pf, vf[0], vf[1]);",
    ),
    method="watching",
)
_WRONG = Rule(
    "CB881",
    "numeric",
    "The output is wrong, and no step could be named",
    "The kernel was executed, and its output is not that of the attention that is expected or promised. Its program"
    " could not be read as a whole, and the operands of its products are those of attention, so that the fault lies in"
    " what happens between them: scaling, mask, softmax or store.",
    "Look at the element that is named: which rows and columns are wrong, and from which length on. With --expect the"
    " kernel is compared with what it is meant to compute.",
    None,
    method="watching",
)
_ONE_CHANGE = Rule(
    "CB883",
    "numeric",
    "One change makes the output right",
    "The kernel was executed, and its output is not that of the attention that is expected or promised. No step of it"
    " could be judged by itself, so that changes of one place were tried: the faults that people make, undone. With the"
    " one that is named the output is right on every problem of the grid, and nothing is said against the execution."
    " Another place may be the one that was meant to change: where several changes do it, all are named.",
    "Apply the fix where it is what was meant. A change that only makes up for a fault elsewhere is as right in"
    " numbers; the sentence says what the kernel lacks if it is this one.",
    None,
    method="watching",
)
_EXPECTED = Rule(
    "CB882",
    "mask",
    "The kernel computes something else than expected",
    "What the kernel computes was read from its text, and compared as mathematics with the expectation: score, mask,"
    " fill, sink, weights, head map and log-sum-exp. The sentence has both sides, and the first element in order of b,"
    " h, i, j at which they differ. Two ways to write the same condition are no difference.",
    "Change the line, or the expectation. Words of --expect: full, causal, causal_top_left, strict, window=N or"
    " window=L:R, gqa, mha, softcap=X, scale=X, lse.",
    Example(
        SM80,
        (("(causal && col > row + sk - sq)", "(causal && col >= row + sk - sq)"),),
        "if (col >= sk || (causal && col >= row + sk - sq)) {",
    ),
    method="expectation",
)


def _watched(code: str, kind: Kind, title: str, why: str, repair: str) -> Rule:
    return Rule(code, kind, title, why, repair, None, method="watching")


# Code of the simulator, kind, title, why it matters, how to mend it.
_SIMULATED: tuple[tuple[str, Kind, str, str, str], ...] = (
    (
        "CB132",
        "softmax",
        "Reading and watching disagree",
        "The kernel was read as a whole, and its compiled code was executed on a small problem. What the text"
        " says of its function (score, mask, sink, log-sum-exp, head map), or the place of a step, is not what"
        " the numbers of that run say. Everything else that is said of this kernel by reading is then in doubt,"
        " and so is an adapted text.",
        "Look on the line for what the compiler sees otherwise than the reader: a macro, the side of an #if, another"
        " header. If there is nothing of the kind, the reading is wrong: please report it with the kernel.",
    ),
    (
        "CB513",
        "memory",
        "An access outside every tensor",
        "Every tensor of the launch lies apart from the others, so that an access behind its end is seen. On a device"
        " it reads or overwrites whatever is there, and mostly nothing happens.",
        "Predicate rows by the length of their own tensor, and address each tensor by its own strides.",
    ),
    (
        "CB514",
        "memory",
        "A misaligned access",
        "An access of 8 or 16 bytes must be aligned to its size; the device stops the kernel otherwise.",
        "Use a narrower access, or require the alignment of pointers and strides.",
    ),
    (
        "CB515",
        "memory",
        "An access outside shared memory",
        "The kernel uses more shared memory than the launch gives it.",
        "Launch with enough dynamic shared memory, or correct the index.",
    ),
    (
        "CB516",
        "pipeline",
        "A race in shared memory",
        "Two warps access the same bytes, one of them writes, and no barrier orders the two. Whether it shows on a"
        " device depends on timing.",
        "Put a __syncthreads() between the two accesses that are named.",
    ),
    (
        "CB517",
        "pipeline",
        "A read of data that is still on its way",
        "An asynchronous copy is complete only behind the wait that covers its group. On a device the copy is mostly"
        " fast enough, and fails under load.",
        "Wait for the group of the copy before the barrier; count the groups that may be pending.",
    ),
    (
        "CB518",
        "memory",
        "A read of shared memory that nothing wrote",
        "What shared memory holds at the start is arbitrary.",
        "Check the stage that is read, and what the copy covers.",
    ),
    (
        "CB519",
        "barrier",
        "A barrier that not all threads reach",
        "A barrier inside a branch that threads of a warp take differently is undefined.",
        "Move the barrier out of the branch.",
    ),
    (
        "CB520",
        "barrier",
        "A deadlock",
        "Threads wait for others that never come: they ended, or wait at another barrier.",
        "Let every thread that is counted arrive.",
    ),
    (
        "CB521",
        "warp",
        "A warp instruction that names absent lanes",
        "The mask of a shuffle or vote names lanes that do not execute it, which is undefined.",
        "Execute it where all named lanes are active.",
    ),
    (
        "CB522",
        "memory",
        "A write into an input",
        "Q, K and V are inputs: what is written there changes the caller's data.",
        "Check pointer and offset of the store.",
    ),
    (
        "CB523",
        "memory",
        "Output that is never written",
        "Elements of the output keep whatever the memory held.",
        "Check the grid, the loop over rows and the predicate of the store.",
    ),
    (
        "CB524",
        "memory",
        "Two CTAs write the same element",
        "Which one is last decides.",
        "Check the batch, head and row offsets of the store.",
    ),
    (
        "CB526",
        "memory",
        "An address of no memory",
        "The pointer is null, was truncated, or belongs to another address space.",
        "Keep addresses in 64 bits, and check what is passed.",
    ),
    (
        "CB527",
        "pipeline",
        "A race between lanes of a warp",
        "Lanes of a warp run apart since Volta: what one writes, another sees only behind a __syncwarp().",
        "Put a __syncwarp() between the two.",
    ),
    (
        "CB536",
        "overflow",
        "An address that wraps",
        "At the sizes that are named a product in an address is beyond 32 bits, though the tensors fit into a device's"
        " memory. The kernel then reads other rows, or faults.",
        "Widen one factor to 64 bits before the product.",
    ),
    (
        "CB537",
        "memory",
        "An alignment that nobody promised",
        "The access needs more than the contract says of pointers and strides.",
        "Raise the alignment in the contract, or use a narrower access.",
    ),
    (
        "CB539",
        "barrier",
        "A race in global memory",
        "Warps of a CTA access the same bytes of global memory, and nothing orders them.",
        "Put a __syncthreads() between the two, or let one warp do it.",
    ),
)
assert _codes
assert _watch_codes
ROWS: tuple[Rule, ...] = (_FIRST_WRONG, _WRONG, _ONE_CHANGE, _EXPECTED, *(_watched(*row) for row in _SIMULATED))

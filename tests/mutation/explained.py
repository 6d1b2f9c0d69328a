"""Survivors that were looked at, and why nothing can be found: kernel -> (rule, text of the source line, reason).

A text of the source line is named, not a register or a PTX line, so that the entries outlive a change of the compiler.
"""

from __future__ import annotations

QUAD = "equivalent: the four lanes of a quad hold the same sums, so three lanes store what one stored before"
LOG = (
    "equivalent: a limit of the library's logf (denormal, infinite); the row sum of a row that sees a key is at least 1"
)
ROUNDS = "equivalent: every thread makes the same whole number of rounds; the compiler's code for a rest never runs"
EDGE = "equivalent: at equality the tile is masked although no element of it needs to be"

GROUPS = "equivalent: two groups of copies become one, and both are waited for at the same place"
BEHIND = "nothing to find: copies in flight behind the loop fill, with zeros, memory that the epilogue does not use"

SCRATCH = "equivalent: what is written behind it was last read before another barrier that all warps have passed"

EXPLAINED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "flash_fwd_sm80": (
        (
            "comparison",
            "if (tile + 1 < n_tiles)",
            "equivalent: one more tile is copied, all its rows are beyond the end, and it is never read",
        ),
        ("comparison", "if (kv0 + Bc > sk ||", EDGE),
        ("comparison", "const T* q = Q + b * q_stride_b", QUAD),
        ("comparison", "lse[row] = l[r] == 0.f", LOG),
    ),
    "flash_fwd_scalar": (
        (
            "comparison",
            ", 512;",
            "equivalent: one more round of thread 0 writes four elements behind Q, in the K tile, where that thread "
            "writes again before anybody reads",
        ),
        ("comparison", "for (int idx = tid; idx < Br * D", ROUNDS),
        ("comparison", "Qs[i * kLd<D> + d] = q0 + i < sq", ROUNDS),
        ("comparison", "Ks[j * kLd<D> + d] = kv0 + j < sk", ROUNDS),
        ("comparison", "Vs[j * kLd<DV> + d] = kv0 + j < sk", ROUNDS),
        ("comparison", ", 384;", ROUNDS),
        (
            "comparison",
            "for (int kv0 = 0; kv0 < sk; kv0 += Bc)",
            "equivalent: one more tile, all of whose keys are beyond the end and masked",
        ),
        ("comparison", "if (part == 0)", QUAD),
        ("comparison", "lse[row] = l == 0.f", LOG),
    ),
    "attention_f16_sm80": (
        ("remove commit", "cp.async.commit_group", GROUPS),
        ("wait off by one", "cp.async.wait_group", BEHIND),
    ),
    "attention_bf16_sm90": (
        ("remove commit", "cp.async.commit_group", GROUPS),
        ("remove wait", "cp.async.wait_group", BEHIND),
        ("wait off by one", "cp.async.wait_group", BEHIND),
        (
            "remove proxy fence",
            "fence.proxy.async",
            "equivalent: K and V were waited for together, and the first of the two fences comes behind that",
        ),
        ("remove barrier", "bar.sync", SCRATCH),
        ("move barrier down", "bar.sync", SCRATCH),
    ),
    "product_f16_sm80": (
        ("no predicate", "ld.global.b16", "needs K below 32: at K = 200 the first tile of B is inside in every row"),
    ),
}

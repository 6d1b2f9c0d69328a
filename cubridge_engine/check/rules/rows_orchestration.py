"""The table of rules, first part: threads, barriers, pipelines, memory."""

from __future__ import annotations

from ..model import Example, Rule
from . import barriers, memory, overflow, pipeline, races

SCALAR, SM80 = "flash_fwd_scalar", "flash_fwd_sm80"

ROWS: tuple[Rule, ...] = (
    Rule(
        "CB845",
        "warp",
        "Lanes of a warp share memory without __syncwarp",
        "Since Volta the lanes of a warp may run apart. What one lane writes to shared memory and another lane of the"
        " same warp reads is ordered by __syncwarp() or by a barrier of the block, not by the order of the "
        "statements. Shuffles do not order memory. The kernel often gives the right answer all the same, until a "
        "compiler or a device schedules it otherwise; hence a warning.",
        "Put __syncwarp() between the write and the read. A __syncthreads() that is there for another reason does it "
        "too.",
        Example(
            SCALAR,
            (("    l = correction * l + row_sum;\n    __syncthreads();", "    l = correction * l + row_sum;"),),
            "o[i] += Ps[r * kLdP + j]",
        ),
        races.races,
    ),
    Rule(
        "CB850",
        "pipeline",
        "A tile is read before its asynchronous copy has landed",
        "cp.async starts a copy and goes on. The bytes are there after cp.async.wait_group N, which waits for all but"
        " the N newest groups that this thread has committed. A wait that leaves one group too many in flight reads "
        "the tile of an earlier trip, or nothing, now and then: on an idle device the copy is mostly done in time.",
        "Count the groups that are committed after the tile's own up to the wait: that is the largest N. With one "
        "group per trip and a ring of S stages, wait_group S - 2.",
        Example(SM80, (("    cp_async_wait<0>();", "    cp_async_wait<1>();"),), "    cp_async_wait<1>();"),
        pipeline.pipeline,
    ),
    Rule(
        "CB851",
        "barrier",
        "Shared memory is overwritten while others still read it",
        "Warps of a block run apart by as much as they like. Where a tile is written over the one before it, the "
        "fastest warp does so while the slowest still multiplies the old one, unless a barrier lies between the last "
        "read and the next write. The result is wrong for a few rows, and differs from run to run.",
        "Put __syncthreads() at the end of the trip, behind the last read of the buffer; or use another stage of a "
        "ring, and one barrier per trip.",
        Example(
            SCALAR,
            (("    __syncthreads();  // the next tile overwrites Ks, Vs and Ps\n", ""),),
            "Vs[j * kLd<DV> + d] = kv0 + j < sk",
        ),
        pipeline.pipeline,
    ),
    Rule(
        "CB852",
        "barrier",
        "Shared memory is read before a barrier shows what others wrote",
        "A thread sees what other threads wrote to shared memory only behind a barrier that comes after the write. "
        "cp.async.wait_group is no such barrier: it waits for the copies of the calling thread alone.",
        "Put __syncthreads() between the copy (for cp.async: its wait) and the first read.",
        Example(
            SCALAR,
            (("    __syncthreads();\n\n    // S = scale * Q K^T", "\n    // S = scale * Q K^T"),),
            "s[i] += Qs[r * kLd<D> + d]",
        ),
        pipeline.pipeline,
    ),
    Rule(
        "CB853",
        "pipeline",
        "Another pipeline stage is read than the one that was filled",
        "In a ring of stages, the copy of tile t and the products with tile t must name the same stage. With the "
        "parity the wrong way round, the first trip reads memory that nothing was written to, and every later one the"
        " tile before or after.",
        "Work out the stage once, from the number of the tile, and use it for the copy of that tile and for its reads.",
        Example(
            SM80,
            (
                (
                    "const int stage = tile & 1;\n    const int kv0",
                    "const int stage = (tile + 1) & 1;\n    const int kv0",
                ),
            ),
            "const int stage = (tile + 1) & 1;",
        ),
        pipeline.pipeline,
    ),
    Rule(
        "CB854",
        "barrier",
        "A barrier in a branch that threads part at",
        "__syncthreads() is for all threads of the block. Where some of them do not come to it, the others wait for "
        "ever, or meet them at another barrier; neither is an error that CUDA reports.",
        "Move the barrier out of the branch. Guard the loads and stores inside it instead.",
        Example(
            SCALAR,
            (
                (
                    "    __syncthreads();\n\n    // S = scale * Q K^T",
                    "    if (row < sq) {\n      __syncthreads();\n    }\n\n    // S = scale * Q K^T",
                ),
            ),
            "      __syncthreads();\n    }",
        ),
        barriers.barriers,
    ),
    Rule(
        "CB855",
        "barrier",
        "Threads return before a barrier",
        "A thread whose row lies beyond the end of the sequence looks idle, but it also loads its part of K and V, "
        "and the others wait for it at the next barrier. With an early return the last tile of queries hangs, or "
        "reads tiles that were loaded in part.",
        "Keep all threads to the end; test the row where the result is stored.",
        Example(
            SCALAR,
            (("  // Load the Q tile;", "  if (row >= sq) return;\n  // Load the Q tile;"),),
            "if (row >= sq) return;",
        ),
        barriers.barriers,
    ),
    Rule(
        "CB856",
        "memory",
        "More dynamic shared memory is used than the launch gives",
        "The bytes of extern __shared__ memory are the third number of a launch. What lies beyond them belongs to "
        "another block, or to nobody: the launch fails, or another block's tile is overwritten.",
        "Work out the bytes from the same constants as the pointers into it, once, for the kernel and the launch.",
        Example(
            SCALAR,
            (("  float* Ps = Vs + Bc * kLd<DV>;", "  float* Ps = Vs + 2 * Bc * kLd<DV>;"),),
            "Ps[r * kLdP + part + kQuad * i] = p;",
        ),
        memory.shared_bytes,
    ),
    Rule(
        "CB857",
        "memory",
        "More shared memory than the target has",
        "A block of sm_80 may have 163 KiB of shared memory, of sm_86 and sm_89 99 KiB, of sm_90 227 KiB. A kernel "
        "that needs more compiles and cannot be launched.",
        "Use smaller tiles, fewer stages of the ring, or keep Q in registers.",
        Example(
            SCALAR,
            (
                (
                    "  extern __shared__ float smem[];",
                    "  __shared__ float extra[60000];\n  extra[threadIdx.x] = 0.f;\n  extern __shared__ float smem[];",
                ),
            ),
            "Ps[r * kLdP + part + kQuad * i] = p;",
        ),
        memory.shared_bytes,
    ),
    Rule(
        "CB858",
        "memory",
        "A wide access at a crooked address",
        "An access of 8 or 16 bytes needs an address that is a multiple of its width; otherwise the device stops with"
        " a misaligned address. The widths of rows, strides and offsets in elements must all be multiples of it, and "
        "so must the tensors that callers pass.",
        "Make every index a multiple of the width, or load narrower. For rows of a shared tile, pad by whole vectors.",
        Example(SM80, (("stride_row + chunk * 8;", "stride_row + chunk * 4;"),), "load_tile<T, D>(smem_q, q"),
        memory.alignment,
    ),
    Rule(
        "CB859",
        "overflow",
        "An offset in 32 bits",
        "A product of two ints is an int, whatever it is added to. B * H * S * D passes 2^31 at sizes that people "
        "use: 64 sequences of 4096 tokens with 64 heads of 128. The address wraps to somewhere before the tensor.",
        "Widen the first factor: static_cast<long long>(b) * stride. Widening the sum is too late.",
        Example(
            SCALAR,
            (
                (
                    "LSE + (static_cast<long long>(b) * heads + h) * sq;",
                    "LSE + (b * heads + h) * sq;",
                ),
            ),
            "LSE + (b * heads + h) * sq;",
        ),
        overflow.overflow,
    ),
    Rule(
        "CB860",
        "warp",
        "The mask of a shuffle names other lanes than those that execute it",
        "Every lane that executes a shuffle must be in its mask, and every lane of the mask must come to it. "
        "Otherwise what is exchanged is undefined, and the warp may hang.",
        "Use 0xffffffff where the whole warp comes, and move shuffles out of branches that lanes part at.",
        Example(
            SCALAR,
            (("__shfl_xor_sync(0xffffffffu, m_new, 2)", "__shfl_xor_sync(0xffffu, m_new, 2)"),),
            "__shfl_xor_sync(0xffffu, m_new, 2)",
        ),
        barriers.shuffles,
    ),
)

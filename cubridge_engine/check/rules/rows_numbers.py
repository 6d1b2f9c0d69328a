"""The table of rules, second part: the softmax, masks and ranges, parameters."""

from __future__ import annotations

from ..model import Example, Rule
from . import interface, limits, masks, softmax
from .rows_orchestration import SCALAR, SM80

ROWS: tuple[Rule, ...] = (
    Rule(
        "CB843",
        "interface",
        "A tensor is addressed with another one's length",
        "Where strides are worked out from sizes, K and V have the number of keys in them, Q and O the number of "
        "queries. With equal lengths both are the same, so that it shows only in a cache or in cross attention.",
        "Use the tensor's own length.",
        Example(
            SCALAR,
            (
                (
                    "const float* k = K + b * k_stride_b + hk * k_stride_h;",
                    "const float* k = K + (static_cast<long long>(b) * kv_heads + hk) * sq * D;",
                ),
                ("k[(kv0 + j) * k_stride_row + d]", "k[(kv0 + j) * D + d]"),
            ),
            "Ks[j * kLd<D> + d] = kv0 + j < sk",
        ),
        interface.strides,
    ),
    Rule(
        "CB846",
        "interface",
        "K's stride is used for V",
        "K and V mostly have the same strides, so that a V addressed with K's stride passes every test, until a "
        "caller passes a V that is a slice or of another width. A parameter for V's own stride that is never used "
        "gives it away.",
        "Use V's own stride for V.",
        Example(
            SCALAR, (("v[(kv0 + j) * v_stride_row + d]", "v[(kv0 + j) * k_stride_row + d]"),), "long long v_stride_row"
        ),
        interface.parameters,
    ),
    Rule(
        "CB847",
        "softmax",
        "O is not divided by the row sum",
        "The online softmax accumulates O = sum of exp(s - m) V without the divisor; the division by l comes at the "
        "end.",
        "Store O / l, and 0 where l is 0.",
        Example(
            SCALAR,
            (("part + kQuad * i] = o[i] * inv_l;", "part + kQuad * i] = o[i];"),),
            "part + kQuad * i] = o[i];",
        ),
        softmax.normalised,
    ),
    Rule(
        "CB848",
        "mask",
        "Mask and tile guard are for different diagonals",
        "With Sq != Sk there are two causal masks: one aligned to the last key of the last row (j <= i + Sk - Sq), "
        "one to the first key of the first row (j <= i). Where the tile guard and the range of keys are for one and "
        "the mask for the other, lengths that are equal hide it.",
        "Write one of them in all three places. PyTorch's is_causal is the upper left one, FlashAttention's the lower"
        " right one.",
        Example(
            SM80,
            (("(causal && col > row + sk - sq)", "(causal && col > row)"),),
            "if (col >= sk || (causal && col > row)) {",
        ),
        masks.masks,
    ),
    Rule(
        "CB849",
        "mask",
        "Masked scores are set to a number that scores may have",
        "A masked key must have no weight, so its score must be minus infinity before the maximum and the exponential. "
        "With 0 it has the weight of an average key.",
        "Use -INFINITY. A finite number must be far below all scores, such as -1e30.",
        Example(
            SCALAR,
            (("        s[i] = -INFINITY;", "        s[i] = 0.f;"),),
            "        s[i] = 0.f;",
        ),
        masks.fills,
    ),
    Rule(
        "CB861",
        "softmax",
        "What earlier tiles added is not rescaled",
        "Every exponential of the online softmax has the row maximum of its tile subtracted. When a later tile raises"
        " the maximum, O and l must be multiplied by exp(m_old - m_new), or the tiles are added in different units. "
        "The result is right as long as the first tile holds the maximum, which random data of few tiles often do.",
        "Multiply O and l by the correction in every trip, before the tile is added.",
        Example(
            SCALAR,
            (("      o[i] *= correction;", "      o[i] *= 1.f;"),),
            "o[i] += Ps[r * kLdP + j]",
        ),
        softmax.softmax,
    ),
    Rule(
        "CB862",
        "softmax",
        "Maximum and exponent in different units",
        "Scores, maximum and exponential must be in one unit. exp2 takes everything times log2(e), mostly folded into"
        " the scale; exp takes it natural. A factor at one of the places and not at the others changes how sharp the "
        "softmax is, or lets it overflow for large scores only.",
        "Decide on one unit, and write the scale at every use of a score and of the maximum.",
        Example(
            SM80,
            (
                (
                    "exp2_approx(s[nb][e] * scale_log2 - m_scaled[e / 2])",
                    "exp2_approx(s[nb][e] - m_scaled[e / 2])",
                ),
            ),
            "s[nb][e] = exp2_approx(s[nb][e] - m_scaled[e / 2]);",
        ),
        softmax.softmax,
    ),
    Rule(
        "CB863",
        "mask",
        "The mask is tested on the wrong tiles",
        "Only tiles that cross an edge of the mask need the test, so a condition on the tile stands around it. Where "
        "that condition is false for a tile that does hold masked elements, they are attended to. It takes a length "
        "at which the edge falls into that tile to see it.",
        "A tile of columns kv0 .. kv0 + Bc - 1 needs the test if its last column is masked for the tile's first row.",
        Example(
            SM80,
            (("if (kv0 + Bc > sk ||", "if (kv0 > sk ||"),),
            "if (kv0 > sk || (causal",
        ),
        masks.masks,
    ),
    Rule(
        "CB864",
        "range",
        "The loop leaves out keys that the mask keeps",
        "The loop over key tiles ends where no row of the query tile sees anything more. An end that is rounded down,"
        " or one tile short at the diagonal, leaves out the last keys of every row, mostly those with the largest "
        "weights.",
        "Round the number of tiles up, and let the last row of the tile decide where the range ends.",
        Example(
            SM80,
            (("const int n_tiles = (kv_end + Bc - 1) / Bc;", "const int n_tiles = kv_end / Bc;"),),
            "const int n_tiles = kv_end / Bc;",
        ),
        masks.masks,
    ),
    Rule(
        "CB865",
        "mask",
        "Keys beyond the end are attended to",
        "The last tile of keys is mostly not full. Its rows beyond the end are loaded as zeros, which have the score "
        "0, not minus infinity: they take part in the softmax, and make every weight too small.",
        "Set scores of keys j >= Sk to minus infinity.",
        Example(SCALAR, (("if (col >= sk) {", "if (col > sk) {"),), "if (col > sk) {"),
        masks.masks,
    ),
    Rule(
        "CB866",
        "softmax",
        "A row that has keys becomes NaN",
        "Where the first tile of a row is wholly masked, its maximum is still minus infinity, and exp(-inf - -inf) is"
        " NaN. One NaN in l or O stays there for all later tiles, so the row is lost although it has keys.",
        "Subtract 0 instead of the maximum while it is minus infinity.",
        Example(
            SCALAR,
            (
                ("if (col >= sk) {", "if (col >= sk || col + Br < row) {"),
                ("const float m_safe = m_new == -INFINITY ? 0.f : m_new;", "const float m_safe = m_new;"),
            ),
            "const float correction = expf(m - m_safe);",
        ),
        masks.nan_rows,
    ),
    Rule(
        "CB867",
        "softmax",
        "A row without a key becomes NaN",
        "A row that sees no key has l = 0, and O / l is 0 / 0. PyTorch gives NaN there too; many callers want 0, and "
        "a gradient or a merge of partial results is lost with one NaN.",
        'Test l before dividing. If NaN is meant, say empty_rows = "nan" in the contract.',
        Example(
            SM80,
            (("inv_l[r] = l[r] == 0.f ? 0.f : 1.f / l[r];", "inv_l[r] = 1.f / l[r];"),),
            "inv_l[r] = 1.f / l[r];",
        ),
        masks.nan_rows,
    ),
    Rule(
        "CB868",
        "heads",
        "An unusual map from query heads to KV heads",
        "In grouped-query attention neighbouring query heads share a KV head: h // (H / Hkv), the order of "
        "repeat_interleave. h % Hkv is the order of repeat. Weights trained with one give nonsense with the other, "
        "and with H = Hkv both are the same.",
        "Use h / (heads / kv_heads), unless the model was trained otherwise.",
        Example(SCALAR, (("h / (heads / kv_heads)", "h % kv_heads"),), "h % kv_heads"),
        interface.head_map,
    ),
    Rule(
        "CB869",
        "interface",
        "A parameter is never used",
        "A parameter that the body never names is a promise that is not kept: a scale that is not applied, a length "
        "that is not tested. For an integer that only a launcher needs it is a note.",
        "Use it, or take it out of the signature.",
        Example(SCALAR, (("      s[i] *= scale;", "      s[i] *= 0.125f;"),), "float scale) {"),
        interface.parameters,
    ),
    Rule(
        "CB870",
        "softmax",
        "The row maximum starts too high",
        "A maximum that starts at 0 is right for rows with a positive score. Where all scores of a row are far below "
        "0, every exp(s - 0) underflows, l is 0, and the row is lost.",
        "Start at minus infinity, or at the lowest finite number.",
        Example(SCALAR, (("float m = -INFINITY;", "float m = 0.f;"),), "float m = 0.f;"),
        softmax.softmax,
    ),
    Rule(
        "CB871",
        "warp",
        "Not all lanes that share a row are combined",
        "With mma fragments four lanes share a row. Their maxima and sums are combined by shuffles over 1 and over 2;"
        " with one of them missing, half of the row has another maximum or another sum than the rest.",
        "Shuffle over every power of two below the number of lanes that share a row.",
        Example(
            SCALAR,
            (("    m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 2));\n", ""),),
            "m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 1));",
        ),
        interface.lanes,
    ),
    Rule(
        "CB872",
        "softmax",
        "The stored log-sum-exp mixes units",
        "LSE = m + log(l) needs m and the logarithm in one unit. Where m is kept times log2(e), it must be multiplied"
        " by ln 2 before the natural logarithm is added. O does not depend on it: the mistake shows in the backward "
        "pass, or where partial results are merged.",
        "Natural: m * scale + log(l). Base two: m * scale_log2 + log2(l).",
        Example(
            SM80,
            (("m[r] * scale_log2 * kLn2 + logf(l[r])", "m[r] * scale_log2 + logf(l[r])"),),
            "m[r] * scale_log2 + logf(l[r])",
        ),
        softmax.softmax,
    ),
    Rule(
        "CB873",
        "memory",
        "Rows are stored by another length than their tensor's",
        "The last tile of queries is mostly not full. Rows beyond the end that are stored all the same overwrite the "
        "next head; with the length of the keys in place of that of the queries, it depends on which is longer.",
        "Compare the row with the number of queries.",
        Example(SCALAR, (("  if (row < sq) {", "  if (row < sk) {"),), "out[row * o_stride_row"),
        limits.limits,
    ),
    Rule(
        "CB874",
        "numeric",
        "Fragments of a matrix product that do not belong together",
        "ldmatrix gives four registers of 8 x 8 blocks; which pair belongs to which product follows from the order in"
        " which lanes name rows. V needs ldmatrix.trans, K does not. With the wrong pair the product sums over the "
        "wrong index for half of its columns.",
        "Draw the four blocks of the ldmatrix, and name for each product the two that hold its columns.",
        Example(
            SM80,
            (
                (
                    "mma_m16n8k16<T>(s[2 * np], qf[kk], kf[0], kf[1]);",
                    "mma_m16n8k16<T>(s[2 * np], qf[kk], kf[0], kf[2]);",
                ),
            ),
            "kf[0], kf[2]",
        ),
        interface.products,
    ),
)

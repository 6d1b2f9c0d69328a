"""Keys dealt to warps that keep a softmax each and merge them: what a warp holds is told, and what is merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.compile import read_contract
from cubridge_engine.watch import Variant, watch_contract
from cubridge_engine.watch.problem import meaning_of, problem_of
from cubridge_engine.watch.roles import dealt
from cubridge_engine.watch.tables import tables

SOURCE = """\
__global__ void decode(const float* q, const float* k, const float* v, float* out, int heads, int kv_heads, int sk) {
  constexpr int D = 64, Warps = 4;
  __shared__ float parts_m[Warps], parts_l[Warps], parts_o[Warps][D];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int b = blockIdx.x / heads, h = blockIdx.x % heads, g = h / (heads / kv_heads);
  q += (b * heads + h) * D;
  k += (size_t)(b * kv_heads + g) * sk * D;
  v += (size_t)(b * kv_heads + g) * sk * D;
  float m = -INFINITY, l = 0, o0 = 0, o1 = 0;
  for (int key = warp; key < sk; key += Warps) {
    float s = q[lane] * k[key * D + lane] + q[lane + 32] * k[key * D + lane + 32];
    for (int off = 16; off > 0; off /= 2)
      s += __shfl_xor_sync(~0u, s, off);
    const float score = s * 0.125f;
    const float m_new = fmaxf(m, score);
    const float fix = expf(m - m_new);
    const float p = expf(score - m_new);
    l = l * fix + p;
    o0 = o0 * fix + p * v[key * D + lane];
    o1 = o1 * fix + p * v[key * D + lane + 32];
    m = m_new;
  }
  parts_m[warp] = m, parts_l[warp] = l, parts_o[warp][lane] = o0, parts_o[warp][lane + 32] = o1;
  __syncthreads();
  if (threadIdx.x >= D) return;
  float top = -INFINITY, total = 0, o = 0;
  for (int w = 0; w < Warps; ++w) top = fmaxf(top, parts_m[w]);
  for (int w = 0; w < Warps; ++w) {
    const float share = expf(parts_m[w] - top);
    total += parts_l[w] * share;
    o += parts_o[w][threadIdx.x] * share;
  }
  out[(b * heads + h) * D + threadIdx.x] = o / total;
}
"""
CONTRACT = """\
schema = 1
name = "decode"
source = "kernel.cu"
summary = ""
parameters = [
  { name = "q", role = "q", type = "float*" },
  { name = "k", role = "k", type = "float*" },
  { name = "v", role = "v", type = "float*" },
  { name = "out", role = "o", type = "float*" },
  { name = "heads", role = "H", type = "int32" },
  { name = "kv_heads", role = "Hkv", type = "int32" },
  { name = "sk", role = "Sk", type = "int32" },
]
[launch]
grid = ["B * H", "1", "1"]
block = [128, 1, 1]
dynamic_shared_bytes = "0"
[tiles]
br = 1
bc = 4
stages = 1
[semantics]
masks = ["full"]
gqa = true
scale = "1/sqrt(D) in the kernel"
lse = "none"
empty_rows = "undefined"
[limits]
archs = ["sm_80"]
alignment_bytes = 4
scale_positive = true
grid_max = [2147483647, 65535, 65535]
requires = ["Sq == 1"]
[[instances]]
expression = "decode"
dtype = "float32"
head_dim = 64
"""
# Role -> the lines that may hold it; the first must be found.
KEY = {
    "S": ("const float score =", "s += __shfl"),
    "m": ("const float m_new =", "parts_m[warp] = m", "top = fmaxf", "for (int w = 0; w < Warps; ++w) top"),
    "correction": ("const float fix =",),
    "P": ("const float p =",),
    "l": ("l = l * fix", "parts_m[warp] = m", "total +="),
    "tile PV": ("o0 = o0 * fix", "o1 ="),
    "O unnormalised": ("o0 = o0 * fix", "o1 =", "parts_m[warp] = m", "o += parts_o"),
    "O": ("out[",),
}


def test_a_softmax_of_each_warp_is_told_and_nothing_else(tmp_path: Path):
    (tmp_path / "kernel.cu").write_text(SOURCE)
    (tmp_path / "contract.toml").write_text(CONTRACT)
    contract, problems = read_contract(tmp_path / "contract.toml")
    assert contract is not None, problems
    found = watch_contract(contract)
    assert found.variant == Variant(1, False, "online", parts=4)
    text = [line.strip() for line in SOURCE.splitlines()]
    seen = [(site.role, text[site.line]) for site in found.sites if site.role not in ("Q", "K", "V")]
    assert [(r, t) for r, t in seen if not t.startswith(KEY.get(r, ()))] == []
    assert [r for r, starts in KEY.items() if not any(s == r and t.startswith(starts[0]) for s, t in seen)] == []


@pytest.mark.parametrize("variant", [Variant(1, False, "online", parts=4), Variant(4, False, "online", parts=2)])
def test_what_the_parts_hold_and_what_is_merged(variant: Variant):
    problem = problem_of({"B": 1, "H": 2, "Hkv": 1, "Sq": 3, "Sk": 26, "D": 16, "Dv": 16}, "float32")
    meaning = meaning_of(problem, np.ones((3, 26), bool), 0.25)
    made = {(t.role, t.units): t.values for t in tables(meaning, variant)}
    scores, v = meaning.scores, meaning.v
    part = np.arange(26) // variant.bc % variant.parts
    mine = np.flatnonzero(part == 1)
    tile = int(mine[-1]) // variant.bc
    top = scores[..., mine].max(-1)
    weights = np.exp(scores[..., mine] - top[..., None])
    np.testing.assert_allclose(made["m", "scaled"][..., tile], top)
    np.testing.assert_allclose(made["l", ""][..., tile], weights.sum(-1))
    np.testing.assert_allclose(made["O unnormalised", ""][..., tile], weights @ v[..., mine, :])
    np.testing.assert_allclose(made["P", ""][..., mine[-1]], weights[..., -1])
    whole = np.exp(scores - scores.max(-1, keepdims=True))
    merged = 0 if variant.bc == 1 else -1
    np.testing.assert_allclose(made["l", ""][..., merged], whole.sum(-1))
    np.testing.assert_allclose(made["O unnormalised", ""][..., merged], whole @ v)
    np.testing.assert_allclose(made["O", ""], whole @ v / whole.sum(-1)[..., None])
    assert variant in dealt(26)

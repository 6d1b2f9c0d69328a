"""Modules and functions as KernelBench, papers and notebooks have them, written here."""

from __future__ import annotations

from ..form import Form

_MASKED = """
def attention(q, k, v{extra}):
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    {change}
    return {result}
"""


def _own(
    name: str,
    family: str,
    change: str,
    *,
    extra: str = "",
    result: str = "s.softmax(-1) @ v",
    inputs: str = "",
    **options: object,
) -> Form:
    """A plain attention whose scores `s` are changed by one statement over the index grids i and j."""
    body = _MASKED.format(extra=", " + extra if extra else "", change=change, result=result)
    given = "q, k, v" + (", " + inputs if inputs else "")
    return Form(f"own {name}", family, "own", body, given, **options)  # type: ignore[arg-type]


def _whole(name: str, family: str, body: str, inputs: str = "q, k, v", **options: object) -> Form:
    return Form(f"own {name}", family, "own", body, inputs, **options)  # type: ignore[arg-type]


_MODULE = """
class Attention(nn.Module):
    def __init__(self, width=128, heads=4, context=512):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("past", torch.ones(context, context).tril().view(1, 1, context, context))

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        s = q @ k.transpose(-1, -2) * (1.0 / math.sqrt(k.shape[-1]))
        s = s.masked_fill(self.past[:, :, :n, :n] == 0, float("-inf"))
        y = {weights} @ v
        return self.out(y.transpose(1, 2).reshape(b, n, width))


attention = shaken(Attention())
"""
_X = "randn(B, Sq, 128)"

FORMS = [
    # plain, masks from indices
    _whole("sdpa", "plain", "def attention(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v)", fast=True),
    _whole(
        "sdpa causal gqa",
        "GQA",
        "def attention(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
        sizes={"Hkv": 2},
        fast=True,
    ),
    _whole(
        "multi-query",
        "GQA",
        "def attention(q, k, v):\n    return torch.einsum('bhij,bjd->bhid',"
        " torch.einsum('bhid,bjd->bhij', q / 8, k).softmax(-1), v)",
        "q, k[:, 0], v[:, 0]",
        sizes={"Hkv": 1},
    ),
    _whole(
        "grouped einsum",
        "GQA",
        """
        def attention(q, k, v):
            b, h, n, d = q.shape
            grouped = q.view(b, k.shape[1], h // k.shape[1], n, d)
            s = torch.einsum("bkgnd,bksd->bkgns", grouped, k) / d ** 0.5
            return torch.einsum("bkgns,bksd->bkgnd", s.softmax(-1), v).reshape(b, h, n, d)
        """,
        sizes={"Hkv": 2},
        fast=True,
    ),
    _whole(
        "heads by modulo",
        "GQA",
        "def attention(q, k, v):\n    g = q.shape[1] // k.shape[1]\n"
        "    return F.scaled_dot_product_attention(q, k.repeat(1, g, 1, 1), v.repeat(1, g, 1, 1))",
        sizes={"Hkv": 2},
        why="kv head is h % Hkv, as tiling (not interleaving) gives it",
        fast=True,
    ),
    _own("chunked", "chunked", "s = s.masked_fill((i // 16 != j // 16) | (j > i), -torch.inf)", fast=True),
    _own(
        "streaming llm", "global + window mask", "s = s.masked_fill((j > i) | ((j >= 4) & (i - j >= 16)), -torch.inf)"
    ),
    _own(
        "document ids",
        "document mask",
        "s = s.masked_fill(ids[:, None, :, None] != ids[:, None, None], -torch.inf)",
        extra="ids",
        inputs="ids(B, Sq)",
        fast=True,
    ),
    _own(
        "key lengths",
        "lengths",
        "s = s.masked_fill(j >= n[:, None, None, None], -torch.inf)",
        extra="n",
        inputs="lengths(B, Sk)",
        fast=True,
    ),
    _own(
        "cu_seqlens",
        "document mask",
        "d = torch.searchsorted(cu, torch.arange(q.shape[2]), right=True)\n"
        "    s = s.masked_fill((d[:, None] != d) | (j > i), -torch.inf)",
        extra="cu",
        inputs="torch.tensor([0, Sq // 3, Sq // 2, Sq])",
    ),
    _own(
        "dense bool mask",
        "bool mask",
        "s = torch.where(m, s, -torch.inf)",
        extra="m",
        inputs="keep(B, 1, Sq, Sk)",
        fast=True,
    ),
    _own(
        "tree mask",
        "bool mask",
        "n = tree.shape[0]\n    past = k.shape[2] - n\n"
        "    s = s.masked_fill(~torch.cat([torch.ones(n, past, dtype=torch.bool), tree], 1), -torch.inf)",
        extra="tree",
        inputs="torch.eye(Sq, dtype=torch.bool) | keep(Sq, Sq).tril()",
        sizes={"Sq": 8, "Sk": 40},
    ),
    _own(
        "random eviction",
        "bool mask",
        "s = s.masked_fill((j > i) | (j >= gone[:, :, None]) & (i > j), -torch.inf)",
        extra="gone",
        inputs="numbers(0, Sk, 1, H, Sk)",
    ),
    # score expressions
    _own(
        "alibi by distance",
        "ALiBi",
        "s = s - slopes[:, None, None] * (i - j).abs()",
        extra="slopes",
        inputs="positive(H)",
        fast=True,
    ),
    _own(
        "alibi by key",
        "ALiBi",
        "s = (s + slopes[:, None, None] * j).masked_fill(j > i, -torch.inf)",
        extra="slopes",
        inputs="positive(H)",
        fast=True,
    ),
    _own(
        "temperature per head",
        "cosine",
        "s = s * t.exp().clamp(max=100)[:, None, None]",
        extra="t",
        inputs="randn(H)",
        fast=True,
    ),
    _own(
        "cosine",
        "cosine",
        "s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * t.clamp(max=4).exp()[:, None, None]",
        extra="t",
        inputs="randn(H)",
        why="q and k are normalised first: computed inputs",
    ),
    _own(
        "softcap after mask",
        "softcap",
        "s = 5 * torch.tanh(s.masked_fill(j > i, -1e4) / 5)",
        fast=True,
        why="masked keys keep the weight of -5: no key may be skipped",
    ),
    _own(
        "softcap and bias",
        "softcap",
        "s = 5 * torch.tanh((s + bias) / 5)",
        extra="bias",
        inputs="randn(H, Sq, Sk)",
        fast=True,
    ),
    _own(
        "t5 buckets",
        "T5",
        "n = (j - i).abs()\n"
        "    far = 8 + (torch.log(n.clamp(min=1).float() / 8) / math.log(16) * 8).long()\n"
        "    bucket = (j > i) * 16 + torch.where(n < 8, n, far.clamp(max=15))\n"
        "    s = s * math.sqrt(q.shape[-1]) + table[bucket].permute(2, 0, 1)",
        extra="table",
        inputs="randn(32, H)",
        fast=True,
    ),
    _own(
        "clipped relative table",
        "table by i - j",
        "s = s + table[:, (j - i).clamp(-16, 16) + 16]",
        extra="table",
        inputs="randn(H, 33)",
        fast=True,
    ),
    _own(
        "shaw",
        "Shaw q.R",
        "s = s + (q @ r.mT).gather(-1, ((j - i).clamp(-16, 16) + 16).expand(*q.shape[:2], -1, -1)) / 8",
        extra="r",
        inputs="randn(33, D)",
        why="an operand q.R of one row per query",
    ),
    _own(
        "transformer-xl shift",
        "Transformer-XL shift",
        "b, h, n, d = q.shape\n"
        "    rel = q @ r.mT\n"
        "    rel = F.pad(rel, (1, 0)).view(b, h, -1, n)[:, :, 1:].reshape(b, h, n, -1)[..., :n]\n"
        "    s = (q @ k.mT + rel) / d ** 0.5",
        extra="r",
        inputs="randn(H, 2 * Sq - 1, D)",
        why="an operand q.R of one row per query, shifted by views",
    ),
    _own(
        "decomposed 2-D",
        "decomposed rel-pos",
        "n = int(q.shape[2] ** 0.5)\n"
        "    g = q.reshape(*q.shape[:2], n, n, -1)\n"
        "    a, w = torch.einsum('bhyxd,yrd->bhyxr', g, rh), torch.einsum('bhyxd,xrd->bhyxr', g, rw)\n"
        "    s = (s.view(*q.shape[:2], n, n, n, n) + a[..., None] + w[..., None, :]).view_as(s)",
        extra="rh, rw",
        inputs="randn(8, 8, D), randn(8, 8, D)",
        sizes={"Sq": 64, "Sk": 64},
        why="two operands of one short row per query",
    ),
    _own(
        "sink zero column",
        "softmax off by one",
        "s = torch.cat([s, torch.zeros_like(s[..., :1])], -1)",
        result="s.softmax(-1)[..., :-1] @ v",
        fast=True,
    ),
    _own(
        "softmax off by one",
        "softmax off by one",
        "m = s.amax(-1, keepdim=True).clamp(min=0)\n    e = torch.exp(s - m)",
        result="(e / (e.sum(-1, keepdim=True) + torch.exp(-m))) @ v",
    ),
    _own(
        "memory keys",
        "memory keys",
        "s = torch.cat([mk @ q.mT, s.mT], -2).mT / 2",
        extra="mk, mv",
        inputs="randn(H, 3, D), randn(H, 3, D)",
        result="s.softmax(-1) @ torch.cat([mv.expand(v.shape[0], -1, -1, -1), v], 2)",
        why="keys from another tensor before k: k' = cat(mk, k) is computed before the attention",
    ),
    _own(
        "empty rows guarded",
        "empty rows",
        "s = s.masked_fill(~m, -torch.inf)",
        extra="m",
        inputs="keep(B, 1, Sq, Sk)",
        result="s.softmax(-1).nan_to_num(0.0) @ v",
        fast=True,
    ),
    _own(
        "probabilities masked",
        "weights masked after softmax",
        "keep = j <= i",
        result="(s.softmax(-1) * keep) @ v",
        why="the divisor counts all keys, the product only some",
    ),
    _own(
        "hand-made softmax",
        "plain",
        "e = torch.exp(s - s.amax(-1, keepdim=True))",
        result="(e @ v) / e.sum(-1, keepdim=True)",
        fast=True,
    ),
    _own("both outputs", "LSE", "pass", result="(s.softmax(-1) @ v, s.logsumexp(-1))", fast=True),
    _own(
        "weights returned",
        "weights returned",
        "p = s.softmax(-1)",
        result="(p @ v, p)",
        why="the output can be computed when the weights are given up",
    ),
    # other weights
    _own(
        "sigmoid", "sigmoid or ReLU weights", "s = torch.sigmoid(s - math.log(k.shape[2]))", result="s @ v", fast=True
    ),
    _own("relu", "sigmoid or ReLU weights", "s = F.relu(s.masked_fill(j > i, 0.0)) / k.shape[2]", result="s @ v"),
    _own("relu squared", "sigmoid or ReLU weights", "s = F.relu(s) ** 2", result="s @ v"),
    _own("polynomial", "sigmoid or ReLU weights", "s = (1 + s) ** 2", result="(s / s.sum(-1, keepdim=True)) @ v"),
    _own(
        "retention",
        "decay",
        "g = 1 - torch.exp2(-5.0 - torch.arange(q.shape[1]))\n"
        "    s = s * torch.where(j <= i, g[:, None, None] ** (i - j), 0.0)",
        result="(s / s.sum(-1, keepdim=True).abs().clamp(min=1)) @ v",
    ),
    _own(
        "squared distance",
        "distance",
        "s = -torch.cdist(q, k) ** 2 / 16",
        why="|q - k|^2 is |q|^2 + |k|^2 - 2 q.k: a bias per key, computed before",
    ),
    # modules
    _whole("kernelbench 43", "module, window buffer", _MODULE.format(weights="F.softmax(s, dim=-1)"), _X, fast=True),
    _whole("kernelbench 50", "sigmoid or ReLU weights", _MODULE.format(weights="F.relu(s)"), _X),
    _whole(
        "module qk-norm",
        "qk-norm",
        _MODULE.format(weights="F.softmax(s, dim=-1)").replace(
            "s = q @", "q, k = (F.rms_norm(t, t.shape[-1:]) for t in (q, k))\n        s = q @"
        ),
        _X,
    ),
    _whole(
        "module gated",
        "gated output",
        _MODULE.format(weights="F.softmax(s, dim=-1)").replace(
            "self.out(y.transpose(1, 2).reshape(b, n, width))",
            "self.out(y.transpose(1, 2).reshape(b, n, width) * torch.sigmoid(x))",
        ),
        _X,
    ),
    _whole(
        "module torch",
        "module, plain",
        "core = shaken(nn.MultiheadAttention(128, 4, batch_first=True))\n\n\n"
        "def attention(x, y, z):\n    return core(x, y, z, need_weights=False)[0]",
        "randn(B, Sq, 128), randn(B, Sk, 128), randn(B, Sk, 128)",
    ),
    _whole(
        "differential",
        "differential",
        """
        def attention(q, k, v):
            q1, q2 = q.chunk(2, -1)
            k1, k2 = k.chunk(2, -1)
            a1, a2 = (a @ b.mT / 4 for a, b in ((q1, k1), (q2, k2)))
            return (a1.softmax(-1) - 0.4 * a2.softmax(-1)) @ v
        """,
        why="two softmaxes over one V: the core called twice, or a second accumulator",
    ),
    _whole(
        "mla absorbed",
        "MLA",
        """
        def attention(q, q_rope, c, k_rope):
            s = (torch.einsum("bhid,bjd->bhij", q, c) + torch.einsum("bhid,bjd->bhij", q_rope, k_rope)) / 8
            return torch.einsum("bhij,bjd->bhid", s.softmax(-1), c)
        """,
        "q, randn(B, H, Sq, 16), randn(B, Sk, D), randn(B, Sk, 16)",
        why="s is a sum of two products: q and k are cat(nope, rope) computed before; V is part of K",
    ),
    # what one fused kernel cannot do
    _own(
        "talking heads",
        "head mixing",
        "s = torch.einsum('bhij,hg->bgij', s, w)",
        extra="w",
        inputs="randn(H, H)",
        fused=False,
        why="scores of different heads are mixed",
        fast=True,
    ),
    _own(
        "top-k",
        "top-k",
        "s = s.masked_fill(s < s.topk(8, -1).values[..., -1:], -torch.inf)",
        fused=False,
        why="needs a whole row before any key is dropped",
        fast=True,
    ),
    _own(
        "sparsemax",
        "sort",
        "z = s.sort(-1, descending=True).values\n    c = z.cumsum(-1)\n"
        "    n = torch.arange(1, k.shape[2] + 1)\n    m = (1 + n * z > c).sum(-1, keepdim=True)\n"
        "    p = (s - (c.gather(-1, m - 1) - 1) / m).clamp(min=0)",
        result="p @ v",
        fused=False,
        why="the normaliser needs a sort of the row",
    ),
    _own(
        "softmax over queries",
        "wrong axis",
        "pass",
        result="s.softmax(-2) @ v",
        fused=False,
        why="couples all rows",
        fast=True,
    ),
    _own(
        "running sum of scores",
        "running sum",
        "s = s + F.logsigmoid(s).flip(-1).cumsum(-1).flip(-1)",
        fused=False,
        why="a sum of scores along the keys",
        fast=True,
    ),
    _own(
        "dropout", "dropout", "s = F.dropout(s.softmax(-1), 0.1)", result="s @ v", fused=False, why="random", fast=True
    ),
    _own(
        "weights used twice",
        "second use of P",
        "p = s.softmax(-1)",
        result="p @ v + p.mT @ v",
        fused=False,
        why="P is also used transposed",
    ),
    _own(
        "entropy of weights",
        "second use of P",
        "p = s.softmax(-1)",
        result="(p @ v) * (p * p).sum(-1, keepdim=True)",
        fused=False,
        why="a second accumulator over P",
    ),
    _own(
        "convolved scores",
        "convolution over scores",
        "s = F.avg_pool1d(s.flatten(0, 2), 3, 1, 1).view_as(s)",
        fused=False,
        why="a score depends on its neighbours",
        fast=True,
    ),
    _whole(
        "channel attention",
        "channel attention",
        "def attention(q, k, v):\n    return ((q.mT @ k / 8).softmax(-1) @ v.mT).mT",
        fused=False,
        why="a D x D matrix",
        fast=True,
    ),
    _whole(
        "linear attention",
        "linear attention",
        "def attention(q, k, v):\n    q, k = F.elu(q) + 1, F.elu(k) + 1\n"
        "    return (q @ (k.mT @ v)) / (q @ k.sum(2)[..., None])",
        fused=False,
        why="(K^T V) first is cheaper; there is no score",
        fast=True,
    ),
    _whole(
        "data-dependent branch",
        "branch on data",
        "def attention(q, k, v):\n    if q.sum() > 0:\n        q = -q\n"
        "    return F.scaled_dot_product_attention(q, k, v)",
        fused=False,
        why="which code runs depends on values",
        fast=True,
    ),
    _whole(
        "two layers",
        "two attentions",
        "def attention(q, k, v):\n    x = F.scaled_dot_product_attention(q, k, v)\n"
        "    return F.scaled_dot_product_attention(x, k, v)",
        why="the same kernel called twice",
    ),
]

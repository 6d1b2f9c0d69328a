"""Forms of families that were once refused wrongly, written after the reader had learnt them. Of the 13, 8 were read at
first sight and 3 more after a change made with them in view; 2 are still refused.
"""

from __future__ import annotations

from ..form import Form


def _again(name: str, family: str, body: str, inputs: str = "q, k, v", **options: object) -> Form:
    return Form(f"again {name}", family, "own", body, inputs, **options)  # type: ignore[arg-type]


FORMS = [
    _again(
        "windows with a bias",
        "module, plain",
        """
        def attention(q, k, v, bias):
            s = torch.einsum("bwhid,bwhjd->bwhij", q, k) * q.shape[-1] ** -0.5 + bias
            return torch.einsum("bwhij,bwhjd->bwhid", s.softmax(-1), v)
        """,
        "randn(2, 3, H, 16, D), randn(2, 3, H, 16, D), randn(2, 3, H, 16, D), randn(H, 16, 16)",
        why="two batch axes, and a bias for each head",
    ),
    _again(
        "fused windows with a mask",
        "shifted window",
        """
        def attention(q, k, v, keep):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None])
        """,
        "randn(2, 3, H, 16, D), randn(2, 3, H, 16, D), randn(2, 3, H, 16, D), keep(3, 16, 16)",
        why="two batch axes, and a mask for each window",
    ),
    _again(
        "latent queries",
        "module, plain",
        """
        class Pool(nn.Module):
            def __init__(self, width=128, heads=4, latents=6):
                super().__init__()
                self.latents = nn.Parameter(torch.randn(latents, width))
                self.heads, self.kv = heads, nn.Linear(width, 2 * width, bias=False)

            def forward(self, x, mask):
                b, n, w = x.shape
                q = self.latents.view(1, -1, self.heads, w // self.heads).transpose(1, 2)
                k, v = self.kv(x).view(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
                s = (q @ k.mT) * (w // self.heads) ** -0.5
                p = s.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
                return (p @ v).transpose(1, 2).reshape(b, -1, w)


        m = shaken(Pool())


        def attention(x, mask):
            return m(x, mask)
        """,
        "randn(B, Sq, 128), keep(B, Sq)",
        why="the queries are weights, one set for all of the batch",
        fast=True,
    ),
    _again(
        "tree bias behind a cache",
        "bias",
        """
        def attention(q, k, v, tree):
            n = q.shape[2]
            free = torch.zeros(n, k.shape[2] - n)
            s = q @ k.mT / q.shape[-1] ** 0.5 + torch.cat([free, tree], 1)
            return s.softmax(-1) @ v
        """,
        "q, k, v, additive(Sq, Sq)",
        sizes={"Sq": 8},
        why="an additive mask of the newest keys, zeros before it",
    ),
    _again(
        "padding after the softmax, renormalised",
        "weights masked after softmax",
        """
        def attention(q, k, v, n):
            p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            p = p.masked_fill(torch.arange(k.shape[2]) >= n[:, None, None, None], 0.0)
            return p / p.sum(-1, keepdim=True) @ v
        """,
        "q, k, v, lengths(B, Sk)",
        fast=True,
    ),
    _again(
        "sharpened weights",
        "weights masked after softmax",
        """
        def attention(q, k, v):
            i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
            s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(j > i, -torch.inf)
            p = s.softmax(-1).pow(1.5)
            return p @ v / p.sum(-1, keepdim=True)
        """,
        why="is a softmax of 1.5 s",
    ),
    _again(
        "retention by powers",
        "decay",
        """
        def attention(q, k, v):
            h, n = q.shape[1], q.shape[2]
            gamma = 1 - 2.0 ** (-5 - torch.tensor(list(range(h)), dtype=torch.float32))
            t = torch.tensor(range(n))
            d = t[:, None] - t
            decay = torch.where(d >= 0, gamma[:, None, None] ** d.clamp(min=0), 0.0)
            return (q @ k.mT * q.shape[-1] ** -0.5 * decay) @ v
        """,
        why="positions as a list of numbers",
    ),
    _again(
        "keys are values",
        "plain",
        """
        def attention(q, kv):
            return (q @ kv.mT / q.shape[-1] ** 0.5).softmax(-1) @ kv
        """,
        "q, k",
        fast=True,
    ),
    _again(
        "latent keys are values",
        "MLA",
        """
        def attention(q, q_pe, c, k_pe):
            s = (q @ c[:, None].mT + q_pe @ k_pe[:, None].mT) * 48**-0.5
            return s.softmax(-1) @ c[:, None]
        """,
        "q, randn(B, H, Sq, 16), randn(B, Sk, D), randn(B, Sk, 16)",
        why="absorbed MLA: the values are the first features of the keys",
    ),
    _again(
        "mask kept by the module",
        "module, window buffer",
        """
        class Causal(nn.Module):
            def __init__(self, width=128, heads=4):
                super().__init__()
                self.heads, self.qkv, self.longest = heads, nn.Linear(width, 3 * width, bias=False), 0
                self.register_buffer("mask", None, persistent=False)

            def forward(self, x):
                b, n, w = x.shape
                if n > self.longest:
                    self.mask, self.longest = torch.ones(n, n, dtype=torch.bool).tril(), n
                q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
                s = q @ k.mT * (w // self.heads) ** -0.5
                s = s.masked_fill(~self.mask[:n, :n], -torch.inf)
                return (s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w)


        m = shaken(Causal())


        def attention(x):
            return m(x)
        """,
        "randn(B, Sq, 128)",
        why="a buffer made at the first call, and again for a longer sequence",
    ),
    _again(
        "cubed scores",
        "sigmoid or ReLU weights",
        """
        def attention(q, k, v):
            p = (q @ k.mT / q.shape[-1]) ** 3
            return p @ v
        """,
        why="a polynomial of odd degree",
    ),
    _again(
        "sink of each row",
        "sink as a column",
        """
        def attention(q, k, v, w):
            s = q @ k.mT / q.shape[-1] ** 0.5
            sink = (q * w[:, None]).sum(-1, keepdim=True)
            return torch.cat([s, sink], -1).softmax(-1)[..., :-1] @ v
        """,
        "q, k, v, randn(H, D)",
        why="a logit that depends on the query",
    ),
    _again(
        "masked where true",
        "bool mask",
        """
        def attention(q, k, v, drop):
            s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(drop, torch.finfo(torch.float32).min)
            return s.softmax(-1) @ v
        """,
        "q, k, v, ~keep(B, 1, Sq, Sk)",
        why="rows without a key are the mean of all values, and only True masks",
    ),
]

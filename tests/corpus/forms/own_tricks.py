"""Functions that are nearly an attention, or are one in a way that is easy to read wrongly. Written here."""

from __future__ import annotations

from ..form import Form


def _trick(name: str, family: str, rows: str, inputs: str = "q, k, v", arguments: str = "", **options: object) -> Form:
    """`rows` is the body of attention(q, k, v): lines at one indentation, `s` being the usual scores on request."""
    text = "\n".join("    " + row for row in rows.strip().splitlines())
    body = f"def attention(q, k, v{', ' + arguments if arguments else ''}):\n{text}\n"
    given = inputs if inputs.startswith("q") else f"q, k, v, {inputs}"
    return Form(f"trick {name}", family, "own", body, given, **options)  # type: ignore[arg-type]


_S = "s = q @ k.mT / q.shape[-1] ** 0.5\n"
_IJ = "i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])\n"
_OUT = "return s.softmax(-1) @ v"

FORMS = [
    _trick("keys reversed", "order of keys", "k = k.flip(2)\n" + _S + _OUT, why="K is read at Sk - 1 - j, V at j"),
    _trick("keys and values reversed", "order of keys", "k, v = k.flip(2), v.flip(2)\n" + _S + _OUT),
    _trick("values rolled", "order of keys", _S + "v = v.roll(1, 2)\n" + _OUT),
    _trick("key heads permuted", "GQA", "k = k.flip(1)\n" + _S + _OUT, why="K is read at another head than V"),
    _trick("heads reversed", "GQA", "k, v = k.flip(1), v.flip(1)\n" + _S + _OUT, fast=True),
    _trick("output heads reversed", "GQA", _S + "return (s.softmax(-1) @ v).flip(1)"),
    _trick("first batch's keys", "GQA", "k, v = k[:1], v[:1]\n" + _S + _OUT),
    _trick("values are keys", "plain", _S + "return s.softmax(-1) @ k + 0 * v.sum(2, keepdim=True)"),
    _trick("similarity of queries", "plain", "s = q @ q.mT / 6\n" + _OUT),
    _trick("residual", "plain", _S + "return q + s.softmax(-1) @ v"),
    _trick(
        "circular window",
        "window mask",
        _S + _IJ + "s = s.masked_fill((i - j) % k.shape[2] >= 7, -torch.inf)\n" + _OUT,
        fast=True,
    ),
    _trick(
        "window by sample",
        "window mask",
        _S + _IJ + "s = s.masked_fill(i - j >= w[:, None, None, None], -torch.inf)\n" + _OUT,
        "lengths(B, Sk)",
        "w",
        fast=True,
    ),
    _trick(
        "window by head list",
        "window mask",
        _S
        + _IJ
        + "w = torch.tensor([3, 9, 27, 81])[:, None, None]\ns = s.masked_fill((i - j).abs() > w, -torch.inf)\n"
        + _OUT,
    ),
    _trick("temperature by position", "temperature", _S + _IJ + "s = s * torch.log(i + 2.0)\n" + _OUT, fast=True),
    _trick(
        "temperature by standard deviation",
        "row statistics",
        _S + "s = s / s.std(-1, keepdim=True)\n" + _OUT,
        fused=False,
        why="a statistic of the row before the softmax",
        fast=True,
    ),
    _trick(
        "fill is the row's least",
        "row statistics",
        _S + _IJ + "s = torch.where(j <= i, s, s.amin(-1, keepdim=True))\n" + _OUT,
        fused=False,
        why="a statistic of the row before the softmax",
        fast=True,
    ),
    _trick("log of a mask", "bool mask", _S + "s = s + torch.log(m.float())\n" + _OUT, "keep(B, 1, Sq, Sk)", "m"),
    _trick(
        "weights masked and renormalised",
        "weights masked after softmax",
        _S + _IJ + "p = s.softmax(-1) * (j <= i)\nreturn (p / p.sum(-1, keepdim=True)) @ v",
        fast=True,
    ),
    _trick(
        "weights thresholded",
        "weights masked after softmax",
        _S + "p = s.softmax(-1)\nreturn torch.where(p > 0.01, p, 0.0) @ v",
        fused=False,
        why="whether a key counts depends on the whole row",
    ),
    _trick(
        "weights to a power",
        "weights masked after softmax",
        _S + "p = s.softmax(-1) ** 2\nreturn (p / p.sum(-1, keepdim=True)) @ v",
        why="is a softmax of 2 s",
    ),
    _trick(
        "softmax over heads",
        "wrong axis",
        _S + "return s.softmax(1) @ v",
        fused=False,
        why="couples all heads",
        fast=True,
    ),
    _trick(
        "softmax over keys and queries",
        "wrong axis",
        _S + "return s.flatten(-2).softmax(-1).view_as(s) @ v",
        fused=False,
        why="one sum for all rows",
        fast=True,
    ),
    _trick(
        "two sources of keys",
        "memory keys",
        _S + "t = q @ k2.mT / 6\nreturn torch.cat([s, t], -1).softmax(-1) @ torch.cat([v, v2], 2)",
        "q, k, v, randn(B, Hkv, 9, D), randn(B, Hkv, 9, D)",
        "k2, v2",
        why="k' = cat(k, k2) is computed before",
    ),
    _trick(
        "mask from queries",
        "bool mask",
        _S + "m = (q.sum(-1) > 0)[..., None] | (k.sum(-1) > 0)[:, :, None]\ns = s.masked_fill(~m, -1e4)\n" + _OUT,
        why="a bool per row and a bool per key, computed before",
    ),
    _trick(
        "bias from keys",
        "bias",
        _S + "s = s + k.pow(2).sum(-1)[:, :, None] / 9\n" + _OUT,
        why="a number per key, computed before",
    ),
    _trick(
        "rope inside",
        "module, GQA + rope",
        _IJ + "t = torch.outer(torch.arange(q.shape[2]), 1e4 ** (-torch.arange(0, q.shape[-1], 2) / q.shape[-1]))\n"
        "c, n = t.cos().repeat(1, 2), t.sin().repeat(1, 2)\n"
        "q, k = (x * c + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * n for x in (q, k))\n"
        + _S
        + "s = s.masked_fill(j > i, -torch.inf)\n"
        + _OUT,
    ),
    _trick(
        "random table",
        "table by index",
        "t = torch.randn(128, 128, generator=torch.Generator().manual_seed(3))\n"
        + _S
        + "s = s + t[:q.shape[2], :k.shape[2]]\n"
        + _OUT,
        why="a constant table that is no formula, of 128 rows",
    ),
    _trick(
        "long window and a branch",
        "window mask",
        _S + _IJ + "if q.shape[2] > 1000:\n    s = s.masked_fill(i - j > 900, -torch.inf)\n" + _OUT,
        why="the window only acts beyond its length",
        fast=True,
    ),
    _trick("scale by length", "temperature", "s = q @ k.mT * math.log(k.shape[2]) / 6\n" + _OUT, fast=True),
    _trick(
        "mean added to the scores",
        "row statistics",
        _S + "s = s + s.mean(-1, keepdim=True)\n" + _OUT,
        why="a constant per row cancels in the softmax",
    ),
]

"""Builders: attention values from text, and the reference program of the ir tests."""

from __future__ import annotations

from pathlib import Path

from cubridge_engine.ir.expr import NEG_INF
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec.attention import Attention, Paging, TensorInput, TensorOutput

FLASH = (Path(__file__).parents[1] / "ir" / "flash.cuir").read_text()

_AXES = [f"{t}_{a}" for t in "kv" for a in ("b", "h", "row")]
# The same with stride parameters of K and V.
STRIDED = FLASH.replace(
    "  strides q =",
    "".join(f'  param {n} {name} : "long long" : stride:{name.replace("_", ".")}\n' for n, name in enumerate(_AXES, 7))
    + "  strides k = k_b | k_h | k_row\n  strides v = v_b | v_h | v_row\n  strides q =",
)


def make_attention(
    score="s * 0.125",
    mask=None,
    *,
    fill=None,
    sink=None,
    head_map="h // (H // Hkv)",
    operands=(),
    dtype="float16",
    empty_rows="nan",
    lse=False,
    axes=("b", "h", "i", "d"),
    specialised=None,
    normaliser="softmax",
    divisor=None,
    pages=None,
):
    """`operands` are texts ``name:axes[:dtype]`` with axes like ``1,H,Sq,Sk``, `pages` a text ``table:rows``."""
    kv = tuple({"h": "hk", "i": "j"}.get(a, a) for a in axes)
    inputs = [TensorInput(n, n, axes if n == "q" else kv, dtype, p) for p, n in enumerate("qkv")]
    for text in operands:
        name, extents, *rest = text.split(":")
        kind = rest[0] if rest else "float32"
        inputs.append(TensorInput(name, "operand", tuple(extents.split(",")), kind, len(inputs)))
    outputs = [TensorOutput("o", axes, dtype, 0)]
    if lse:
        outputs.append(TensorOutput("lse", ("b", "h", "i"), "float32", 1))
    return Attention(
        "spec",
        "spec.py",
        tuple(inputs),
        tuple(outputs),
        parse_expr(head_map),
        parse_expr(score),
        parse_expr(mask) if mask else None,
        parse_expr(fill) if fill else NEG_INF,
        parse_expr(sink) if sink else None,
        normaliser,
        empty_rows,
        {},
        specialised or {},
        divisor=parse_expr(divisor) if divisor else None,
        paging=None if pages is None else paging(*pages.split(":")),
    )


def paging(table, rows, dtype="int32"):
    """Caches [pages, rows, Hkv, D] named k_cache and v_cache, of which gathering would copy 4096 bytes."""
    return Paging(table, int(rows), "k_cache", "v_cache", (0, 2, 1, 3), (0, 2, 1, 3), dtype, 4096)


def tensors_for(attention, sizes, seed=0):
    """q, k, v and operands for a problem, as the interpreter takes them."""
    import numpy as np

    rng = np.random.default_rng(seed)
    B, H, Hkv, Sq, Sk, D = (sizes[n] for n in ("B", "H", "Hkv", "Sq", "Sk", "D"))
    tensors = {
        "q": rng.standard_normal((B, H, Sq, D)) * 2,
        "k": rng.standard_normal((B, Hkv, Sk, D)) * 2,
        "v": rng.standard_normal((B, Hkv, Sk, D)),
    }
    for item in attention.operands:
        shape = tuple(int(a) if a.isdigit() else sizes[a] for a in item.axes)
        if item.dtype == "bool":
            tensors[item.name] = rng.random(shape) < 0.6
        elif item.dtype.startswith("int"):
            tensors[item.name] = rng.integers(0, max(Sk, 1) + 1, shape)
        else:
            tensors[item.name] = rng.standard_normal(shape)
    return tensors


def formula(attention, tensors, sizes):
    """The mathematics, straight from the definition in Attention: (o, lse, rows without a key)."""
    import numpy as np

    from cubridge_engine.ir.evaluate import evaluate

    B, H, Sq, Sk = (sizes[n] for n in ("B", "H", "Sq", "Sk"))
    env = dict(sizes)
    for n, (var, size) in enumerate(zip("bhij", (B, H, Sq, Sk), strict=True)):
        env[var] = np.arange(size).reshape([-1 if axis == n else 1 for axis in range(4)])
    shape = (B, H, Sq, Sk)
    heads = np.broadcast_to(evaluate(attention.head_map, env), (1, H, 1, 1)).reshape(-1)
    k, v = tensors["k"][:, heads], tensors["v"][:, heads]
    env["hk"] = heads.reshape(1, -1, 1, 1)
    env["s"] = tensors["q"] @ np.swapaxes(k, 2, 3)
    x = np.array(np.broadcast_to(evaluate(attention.score, env, tensors), shape), dtype=float)
    keep = np.ones(shape, dtype=bool)
    if attention.mask is not None:
        keep = np.broadcast_to(np.asarray(evaluate(attention.mask, env, tensors), dtype=bool), shape)
        x = np.where(keep, x, attention.fill.value)
    if attention.normaliser != "softmax":
        total = (np.abs(x) if attention.normaliser == "abs_sum" else x).sum(-1, keepdims=True)
        by = 1.0 if attention.divisor is None else evaluate(attention.divisor, {**env, "l": total}, tensors)
        return (x @ v) / by, None, np.zeros((B, H, Sq), dtype=bool)
    columns = [x]
    if attention.sink is not None:
        columns.append(np.broadcast_to(evaluate(attention.sink, env, tensors), (B, H, Sq, 1)))
    logits = np.concatenate(columns, -1)
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0.0, top)
    e = np.exp(logits - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (e[..., :Sk] / total) @ v, (top + np.log(total))[..., 0], total[..., 0] == 0

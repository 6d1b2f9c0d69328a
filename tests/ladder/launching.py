"""A rung compiled and launched in the simulator, beside attention in float64."""

from __future__ import annotations

import numpy as np

from cubridge_engine import simulate
from cubridge_engine.compile import Contract, compile_source
from cubridge_engine.simulate.calling import output, prepare_call
from cubridge_engine.simulate.tensors import bits_of, floats

from .rungs import contract_of

# Worst error of O: the rounding of inputs (which the reference shares), of P and of O to the element type.
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def sizes_for(contract: Contract, heads: int = 2) -> dict[str, int]:
    """A ragged problem that the contract allows."""
    tied = any("Sq == Sk" in r for r in contract.requires)
    rows, keys = contract.br + 7, (contract.br + 7 if tied else contract.bc + 5)
    kv = heads // 2 if contract.gqa else heads
    d = contract.instances[0].head_dim
    return {"B": 1, "H": heads, "Hkv": kv, "Sq": rows, "Sk": keys, "D": d, "Dv": d}


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """O [B, H, Sq, D] in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def error_of(name: str) -> tuple[float, list[str]]:
    """(worst error of O, what the simulator's checkers found) of one launch of a rung."""
    contract = contract_of(name)
    instance = contract.instances[0]
    path = contract.source_path
    arch = "sm_90a" if any(p.type == "tensor_map" for p in contract.parameters) else "sm_80"
    compiled = compile_source(
        path.read_text(),
        path=str(path),
        arch=arch,
        name_expressions=(instance.expression,),
        want=("ptx",),
        options=("-I", str(path.parent)),
    )
    assert compiled.ptx is not None, [d.message for d in compiled.diagnostics]
    module = simulate.load(compiled.ptx)
    sizes = sizes_for(contract)
    rng = np.random.default_rng(11)
    shapes = {"q": ("H", "Sq"), "k": ("Hkv", "Sk"), "v": ("Hkv", "Sk")}
    tensors = {
        role: _rounded(rng.standard_normal((sizes["B"], sizes[heads], sizes[rows], sizes["D"])), instance.dtype)
        for role, (heads, rows) in shapes.items()
    }
    scale = sizes["D"] ** -0.5
    call = prepare_call(contract, instance, sizes, tensors, {"scale": scale, "causal": 0})
    assert not call.diagnostics, [d.message for d in call.diagnostics]
    entry = compiled.lowered.get(instance.expression, module.kernels[0])
    run = module.launch(entry, call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared)
    found = output(call, run, "o")
    want = attention(tensors["q"], tensors["k"], tensors["v"], scale)
    return float(np.abs(found - want).max()), [d.message for d in run.findings]


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    return floats(bits_of(values, dtype), dtype)

"""The ladder: kernels that compute the same attention, each in another way. What is read of them must be the same.

A rung is a contract (``kernels/NAME.toml``, or one of the expert kernels') and the kernel that it names. `Meaning` is
what of its CuIR does not depend on how: the score of a raw product, the mask, the keys visited, the sink, the output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cubridge_engine.compile import Contract, read_contract
from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.expr import Expr
from cubridge_engine.ir.nodes import Kernel
from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.lift import Lifted, lift
from cubridge_engine.source import SourceFile, parse, with_includes
from cubridge_engine.transfer.semantics import bound_semantics, semantics_of

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "kernels"
EXPERTS = ("flash_fwd_scalar", "flash_fwd_sm80", "flash_fwd_sm90_plain")
FAULT_BASES = ("kv_outer",)  # clean kernels that faults are planted in
PATHS = {
    **{path.stem: path for path in sorted(FOLDER.glob("*.toml"))},
    **{name: ROOT / "tests" / "faults" / "contracts" / f"{name}.toml" for name in FAULT_BASES},
    **{name: ROOT / "expert_kernels" / name / "contract.toml" for name in EXPERTS},
}
SCALE = 0.3
SIZES = ({"Sq": 128, "Sk": 128}, {"Sq": 100, "Sk": 100}, {"Sq": 64, "Sk": 192})
HEADS = 4


@dataclass(frozen=True)
class Meaning:
    """What a kernel computes with its flags off: `score` of raw products 1.7 and -0.6 in natural units, `mask` beyond
    the end of the keys, whether every key is visited, the sink, what is stored, the KV head of head 3.
    """

    score: tuple[float, ...]
    mask: str
    all_keys: bool
    sink: str
    output: str
    normaliser: str
    head: int


FULL = Meaning((round(1.7 * SCALE, 9), round(-0.6 * SCALE, 9)), "true", True, "", "s", "softmax", 3)


def contract_of(name: str) -> Contract:
    """The contract of a rung."""
    contract, found = read_contract(PATHS[name])
    assert contract is not None, [d.message for d in found]
    return contract


def source_of(name: str, text: str | None = None) -> SourceFile:
    """The kernel of a rung, or another text in its place."""
    path = contract_of(name).source_path
    return with_includes(parse(str(path), path.read_bytes() if text is None else text.encode()))


def lifted_of(name: str, text: str | None = None) -> Lifted:
    """What is read of a rung, at the head dimension of its first instance."""
    return lift(source_of(name, text), anchors=False, remember=False)


def meaning_of(kernel: Kernel) -> Meaning:
    """Raises transfer.NotAttention."""
    values: dict[str, float | int] = {}
    for p in kernel.params:
        known = {"scale": SCALE, "scale_log2": SCALE * math.log2(math.e)}.get(p.role)
        if known is not None:
            values[p.name] = known
        elif p.role.startswith("flag"):
            values[p.name] = 0
    sem = bound_semantics(semantics_of(kernel), values)
    assert not sem.issues, sem.issues
    return Meaning(
        tuple(round(float(_number(sem.score, {"s": s})), 9) for s in (1.7, -0.6)),
        print_expr(sem.keep),
        all(_visits_all(kernel, sem.lo, sem.hi, sem.tail, sizes) for sizes in SIZES),
        "" if sem.sink is None else print_expr(sem.sink),
        print_expr(sem.output),
        sem.normaliser,
        int(_number(sem.head_map, {"h": 3, "H": HEADS, "Hkv": HEADS})),
    )


def _visits_all(kernel: Kernel, lo: Expr, hi: Expr, tail: bool, sizes: Mapping[str, int]) -> bool:
    """The loop goes over every key of every query tile; past the last one it masks, or there is none past it."""
    if not tail and sizes["Sk"] % kernel.Bc:
        return True  # whole tiles only: the contract says so
    for q0 in range(0, sizes["Sq"], kernel.Br):
        names = {**sizes, "q0": q0, "qt": q0 // kernel.Br, "H": HEADS, "Hkv": HEADS}
        if int(_number(lo, names)) > 0 or int(_number(hi, names)) < sizes["Sk"]:
            return False
    return True


def _number(expr: Expr, names: Mapping[str, float | int]) -> float:
    return float(evaluate(expr, dict(names)))

"""Code nobody here wrote: PTX that Triton made for sm_80 and sm_90a (foreign/triton_kernels.py). Right, no finding."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine import simulate
from cubridge_engine.simulate import SCHEDULES, Buffer, Schedule

from .conftest import attention  # type: ignore[import-not-found]

FOREIGN = Path(__file__).parent / "foreign"
LOG2E = np.log2(np.e)
TOLERANCES = {
    "attention_f16_sm80": 2e-3,
    "attention_bf16_sm90": 2e-2,
    "product_f16_sm80": 1e-4,
    "product_tf32_sm90": 0.1,
}


def launch(
    name: str, grid: tuple[int, int], args: list[object], schedule: Schedule, change=None, module=None
) -> simulate.Run:
    """Launch the only kernel of a module; Triton adds two scratch pointers, which are null.

    `module`: where it is launched, if not in the simulator.
    """
    text = (FOREIGN / f"{name}.ptx").read_text()
    if change is not None:
        before, text = text, change(text)
        assert text != before
    shared = int(re.search(r"(\d+) bytes of shared memory", text)[1])
    module = module or simulate.load(text)
    (entry,) = module.kernels
    missing = len(module.program.functions[entry].params) - len(args)
    return module.launch(entry, grid, (128,), [*args, *[0] * missing], dynamic_shared=shared, schedule=schedule)


def run_attention(name: str, s: int, schedule: Schedule, change=None, module=None) -> tuple[simulate.Run, float]:
    causal, bf16 = "f16_sm80" in name and "bf16" not in name, "bf16" in name
    rng = np.random.default_rng(3)
    raw = [rng.standard_normal((1, 2, s, 64)).astype(np.float32) for _ in range(3)]
    if bf16:
        stored = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in raw]
        exact = [(x.astype(np.uint32) << 16).view(np.float32) for x in stored]
    else:
        stored = exact = [x.astype(np.float16) for x in raw]
    out = Buffer(np.zeros_like(stored[0]), "out", "O")
    args = [*(Buffer(x, "in", n) for x, n in zip(stored, "QKV", strict=True)), out, s, np.float32(0.125 * LOG2E)]
    run = launch(name, (-(-s // (128 if bf16 else 64)), 2), args, schedule, change, module)
    if not run.outputs:
        return run, np.inf
    got = run.outputs["O"]
    got = (got.astype(np.uint32) << 16).view(np.float32) if bf16 else got.astype(np.float32)
    want, _ = attention(*exact, 0.125, causal)
    return run, float(np.nan_to_num(np.abs(got - want), nan=np.inf).max())


@pytest.mark.parametrize("name", ["attention_f16_sm80", "attention_bf16_sm90"])
@pytest.mark.parametrize("s", [77, 200])
def test_attention(name, s):
    for schedule in SCHEDULES:
        run, error = run_attention(name, s, schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert not run.findings
        assert error < TOLERANCES[name]


def run_product(name: str, k: int, schedule: Schedule, change=None, module=None) -> tuple[simulate.Run, float]:
    m, n = 65, 66
    dtype = np.float16 if "f16" in name else np.float32
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    args = [Buffer(a, "in", "A"), Buffer(b, "in", "B"), Buffer(np.zeros((m, n), np.float32), "out", "C"), m, n, k]
    run = launch(name, (2, 2), args, schedule, change, module)
    if not run.outputs:
        return run, np.inf
    error = np.abs(run.outputs["C"] - a.astype(np.float64) @ b.astype(np.float64))
    return run, float(np.nan_to_num(error, nan=np.inf).max())


@pytest.mark.parametrize("name", ["product_f16_sm80", "product_tf32_sm90"])
def test_products(name):
    for schedule in SCHEDULES:
        run, error = run_product(name, 200, schedule)
        assert run.ok, [(f.code, f.message) for f in run.findings]
        assert not run.findings
        assert error < TOLERANCES[name]


def drop(pattern: str, which: int):
    """A change that removes the instruction number `which` that matches."""

    def change(text: str) -> str:
        place = list(re.finditer(pattern, text))[which]
        return text[: place.start()] + text[place.end() :]

    return change


@pytest.mark.parametrize(
    ("name", "pattern", "which", "codes"),
    [
        ("attention_f16_sm80", r"cp\.async\.wait_group\s+\d+;", 0, {"CB517"}),
        ("attention_f16_sm80", r"bar\.sync\s+0;", 0, {"CB516"}),
        ("attention_bf16_sm90", r"fence\.proxy\.async\S*;", 0, {"CB530"}),
        ("attention_bf16_sm90", r"wgmma\.wait_group\S*\s+0;", 0, {"CB529", "CB516", "CB517"}),
    ],
)
def test_a_synchronisation_less_is_found(name, pattern, which, codes):
    for schedule in SCHEDULES:
        run, _ = run_attention(name, 200, schedule, drop(pattern, which))
        assert codes & {f.code for f in run.findings}, (schedule, [f.message for f in run.findings])

"""The first wrong step of a program: numeric faults planted in the bundled kernels, each with its step, line and cause;
clean kernels have none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest

from cubridge_engine.compile.bundled import bundled_contracts
from cubridge_engine.ir.expr import Const, Expr
from cubridge_engine.ir.nodes import Kernel
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.lift import lift
from cubridge_engine.source import parse
from cubridge_engine.spec.attention import Attention, TensorInput, TensorOutput
from cubridge_engine.verify.steps import first_wrong_step
from cubridge_engine.verify.steps_causes import pattern, ratio_of, scale_cause
from cubridge_engine.verify.steps_model import WrongStep

SCALAR, SM80 = "flash_fwd_scalar", "flash_fwd_sm80"
SIZES = {"B": 1, "H": 4, "Hkv": 2, "Sq": 70, "Sk": 141}
LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Fault:
    """An edit of a bundled kernel: the step that it makes wrong, a text on the responsible line, a word of the cause.
    `low`: every third row has scores far below zero.
    """

    kernel: str
    old: str
    new: str
    step: str
    marker: str
    cause: str
    low: bool = False


FAULTS = {
    "O not rescaled": Fault(SCALAR, "o[i] *= correction;", "o[i] *= 1.f;", "rescale", "o[i] += Ps", "correction"),
    "O rescaled by another factor": Fault(
        SCALAR, "o[i] *= correction;", "o[i] *= correction * correction;", "rescale", "correction * correction", ""
    ),
    "l not rescaled": Fault(SCALAR, "l = correction * l + row_sum;", "l = l + row_sum;", "l", "l = l +", "before"),
    "l of the last tile": Fault(SCALAR, "l = correction * l + row_sum;", "l = row_sum;", "l", "l = row_sum", "last"),
    "no scale": Fault(SCALAR, "s[i] *= scale;", "s[i] *= 1.f;", "score", "expf(s[i] - m_safe)", "scale is missing"),
    "scale twice": Fault(SCALAR, "s[i] *= scale;", "s[i] *= scale * scale;", "score", "scale * scale", "twice"),
    "scale with the wrong sign": Fault(SCALAR, "s[i] *= scale;", "s[i] *= -scale;", "score", "-scale", "sign"),
    "exp2 of natural scores": Fault(
        SCALAR, "p = expf(s[i] - m_safe)", "p = exp2f(s[i] - m_safe)", "score", "exp2f(s[i]", "log2(e)"
    ),
    "correction in base two": Fault(
        SCALAR, "expf(m - m_safe)", "exp2f(m - m_safe)", "correction", "exp2f(m - m_safe)", "another unit"
    ),
    "correction inverted": Fault(
        SCALAR, "expf(m - m_safe)", "expf(m_safe - m)", "correction", "expf(m_safe - m)", "exchanged"
    ),
    "first key behind the end": Fault(SCALAR, "if (col >= sk)", "if (col > sk)", "mask", "if (col > sk)", "beyond Sk"),
    "tail not masked": Fault(SCALAR, "if (col >= sk)", "if (col >= sk + Bc)", "mask", "sk + Bc", "beyond Sk"),
    "KV heads interleaved": Fault(SCALAR, "h / (heads / kv_heads)", "h % kv_heads", "k", "", "head 1, instead of"),
    "max starts at zero": Fault(
        SCALAR, "float m = -INFINITY;", "float m = 0.f;", "m", "float m = 0.f", "far above", low=True
    ),
    "LSE in two units": Fault(SCALAR, "m + logf(l)", "m + log2f(l)", "lse", "log2f(l)", "log2(l)"),
    "LSE without the maximum": Fault(SCALAR, "m + logf(l)", "logf(l)", "lse", ": logf(l)", "maximum is not added"),
    "O not divided": Fault(SCALAR, "o[i] * inv_l", "o[i]", "o", "= o[i];", "not divided by l"),
    "causal without the diagonal": Fault(
        SM80, "col > row + sk - sq", "col >= row + sk - sq", "mask", "col >= row", "attended is masked"
    ),
    "causal from the top left": Fault(
        SM80, "(causal && col > row + sk - sq)", "(causal && col > row)", "mask", "col > row)", "attended is masked"
    ),
    "diagonal tiles not tested": Fault(
        SM80,
        "(causal && kv0 + Bc - 1 > q0 + sk - sq)",
        "(causal && kv0 > q0 + sk - sq)",
        "mask",
        "col > row + sk - sq",
        "not attended is not masked",
    ),
    "range a tile short": Fault(
        SM80, "min(sk, q0 + Br + sk - sq)", "min(sk, q0 + sk - sq)", "range", "tile < n_tiles", "never visited"
    ),
    "other stage of V": Fault(
        SM80, "v_tile = smem_v + stage", "v_tile = smem_v + (stage ^ 1)", "v", "mma_m16n8k16<T>(o[2 * np]", "stage 1"
    ),
    "l not rescaled, mma": Fault(SM80, "l[r] *= correction[r];", "", "l", "l[e / 2] += s[nb][e]", "tiles before"),
    "O not rescaled, mma": Fault(
        SM80, "o[db][e] *= correction[e / 2];", "o[db][e] *= 1.f;", "rescale", "mma_m16n8k16<T>(o[2 * np]", "correction"
    ),
    "ln 2 in the exponent": Fault(
        SM80, "exp2_approx(s[nb][e] * scale_log2 -", "exp2_approx(s[nb][e] * scale_log2 * kLn2 -", "score", "* kLn2 -",
        "log2(e)",
    ),
    "columns of the mask shifted": Fault(
        SM80, "kv0 + nb * 8 + 2 * (lane % 4) + (e & 1)", "kv0 + nb * 8 + (lane % 4) + (e & 1)", "mask", "if (col >= sk",
        "mask",
    ),
    "LSE not in natural units": Fault(SM80, "m[r] * scale_log2 * kLn2", "m[r] * scale_log2", "lse", "+ logf", "log2"),
}  # fmt: skip


@lru_cache(maxsize=1)
def _texts() -> dict[str, str]:
    return {p.parent.name: (p.parent / "kernel.cu").read_text() for p in bundled_contracts()}


def _kernel(text: str) -> Kernel:
    kernel = lift(parse("kernel.cu", text.encode()), instantiation={"D": 64}, remember=False, anchors=False).kernel
    assert kernel is not None
    return kernel


def _attention(causal: bool) -> Attention:
    axes = {"q": ("b", "h", "i", "d"), "k": ("b", "hk", "j", "d"), "v": ("b", "hk", "j", "d")}
    mask: Expr | None = parse_expr("j <= i + Sk - Sq") if causal else None
    inputs = tuple(TensorInput(role, role, axes[role], "float32", n) for n, role in enumerate("qkv"))
    outputs = (
        TensorOutput("o", ("b", "h", "i", "d"), "float32", 0),
        TensorOutput("lse", ("b", "h", "i"), "float32", 1),
    )
    head_map, score = parse_expr("h // (H // Hkv)"), parse_expr("s * 0.125")
    return Attention(
        "a", "", inputs, outputs, head_map, score, mask, Const(-math.inf), None, "softmax", "zero"
    )  # fmt: skip


def _first(name: str, text: str, low: bool = False, mode: str = "early") -> WrongStep | None:
    rng = np.random.default_rng(7)
    heads = {"q": (SIZES["H"], SIZES["Sq"]), "k": (SIZES["Hkv"], SIZES["Sk"]), "v": (SIZES["Hkv"], SIZES["Sk"])}
    tensors = {role: rng.standard_normal((1, *shape, 64)) for role, shape in heads.items()}
    tensors["k"][:, :, -50:] *= 3
    if low:
        tensors["q"][:, :, ::3, 0], tensors["k"][..., 0] = -100.0, 90.0
    causal = name == SM80
    values = {"scale": 0.125} if name == SCALAR else {"scale_log2": 0.125 * LOG2E, "causal": 1}
    return first_wrong_step(_kernel(text), _attention(causal), tensors, SIZES, values, async_mode=mode)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_step_and_line_with_its_cause(name: str) -> None:
    fault = FAULTS[name]
    clean = _texts()[fault.kernel]
    assert clean.count(fault.old) == 1
    text = clean.replace(fault.old, fault.new)
    found = _first(fault.kernel, text, fault.low)
    assert found is not None
    assert found.step == fault.step, found.sentence()
    assert fault.cause in found.cause, found.sentence()
    assert found.span is not None
    line = text.split("\n")[found.span.line]
    if fault.marker:
        assert fault.marker in line, (line, found.sentence())


@pytest.mark.parametrize("mode", ["early", "late"])
@pytest.mark.parametrize("name", [SCALAR, SM80])
@pytest.mark.parametrize("low", [False, True])
def test_a_clean_kernel_has_no_wrong_step(name: str, mode: str, low: bool) -> None:
    if (mode, low) != ("late", True) and name == SM80 and low:
        pytest.skip("each extreme once")
    assert _first(name, _texts()[name], low, mode) is None


def test_the_sentence_names_step_tile_element_and_numbers() -> None:
    text = _texts()[SCALAR].replace("s[i] *= scale;", "s[i] *= scale * scale;")
    found = _first(SCALAR, text)
    assert found is not None
    said = found.sentence()
    for part in (
        "the score",
        "Q tile 0",
        "the KV tile of key 0",
        "b=0 h=0 i=0 j=",
        "instead of",
        "multiplied in twice",
    ):
        assert part in said
    assert found.element.got / found.element.want == pytest.approx(0.125, rel=1e-6)


def _tile(rows: slice, columns: slice, step: int = 1) -> np.ndarray:
    wrong = np.zeros((16, 64), dtype=bool)
    wrong[rows, columns] = True
    return wrong


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.ones((4, 4), dtype=bool), "every element"),
        (_tile(slice(None), slice(8, 16)), "columns 8..15"),
        (np.tile(_tile(slice(None), slice(8, 16))[:, :16], 4), "columns 8..15 of each 16"),
        (_tile(slice(3, 4), slice(None)), "rows 3"),
        (np.eye(8, 16, 5, dtype=bool), "the elements of one diagonal, column = row +5"),
        (np.eye(8, dtype=bool) | np.eye(8, 8, 2, dtype=bool), "14 of 64 elements"),
    ],
)
def test_a_pattern_is_said_in_words(wrong: np.ndarray, words: str) -> None:
    assert pattern(wrong) == words


def test_a_ratio_is_one_only_where_all_agree() -> None:
    want = np.array([1.0, -2.0, 4.0])
    assert ratio_of(want * 3, want) == pytest.approx(3)
    assert ratio_of(want + 1, want) is None
    assert ratio_of(np.array([np.nan, 1.0, 2.0]), want) is None
    assert "missing" in scale_cause(8.0, 0.125, 64)
    assert "7.1 times" in scale_cause(7.1, 0.125, 64)

"""Kernels watched, against keys made by hand: which lines hold which role. A label that the key does not have fails."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.compile import Contract, compile_contract, read_contract
from cubridge_engine.simulate import load
from cubridge_engine.simulate.calling import output, prepare_call
from cubridge_engine.watch import Problem, Watched, watch_contract
from cubridge_engine.watch.function import band, identify, output_of
from cubridge_engine.watch.labels import Code, sites_of
from cubridge_engine.watch.layout import Held, fit
from cubridge_engine.watch.problem import choose_instance, choose_problem, meaning_of, problem_of
from cubridge_engine.watch.record import Recorder, finish
from cubridge_engine.watch.roles import null_meaning, read_roles

ROOT = Path(__file__).parents[2]
EXPERT = ROOT / "expert_kernels"
LADDER = ROOT / "tests" / "ladder" / "kernels"
FAULTS = ROOT / "tests" / "faults" / "contracts"
INPUTS = ("Q", "K", "V")

# Role -> the start of every line that may hold it; those with a `!` must be found.
SCALAR = {
    "Q": ("!Qs[", "s[i] +="),
    "K": ("!Ks[", "s[i] +="),
    "V": ("!Vs[", "o[i] +="),
    "S": ("!s[i] +=", "!s[i] *= scale", "if (col >= sk"),
    "masked S": ("if (col >= sk",),
    "m": ("!m_new = fmaxf(m_new, __shfl", "const float m_safe"),
    "correction": ("!const float correction",),
    "P": ("!const float p = expf", "o[i] +="),
    "tile sum": ("row_sum +=",),
    "l": ("!l = correction * l", "lse[row]"),
    "O rescaled": ("!o[i] *= correction",),
    "O unnormalised": ("!o[i] +=",),
    "1/l": ("!const float inv_l",),
    "O": ("!out[row * o_stride_row",),
    "LSE": ("!lse[row]",),
}
SM80 = {
    "Q": ("!load_tile<T, D>(smem_q", "ldmatrix_x4(qf"),
    "K": ("!load_tile<T, D>(smem_k", "ldmatrix_x4(kf"),
    "V": ("!load_tile<T, DV>(smem_v", "ldmatrix_x4_trans(vf"),
    "S": ("!mma_m16n8k16<T>(s[", "if (col >= sk", "s[nb][e] = exp2"),
    "masked S": ("!if (col >= sk", "s[nb][e] = exp2"),
    "m": ("!m_new[r] = fmaxf(m_new[r], __shfl", "m_scaled[r] =", "correction[r] =", "lse[row]"),
    "correction": ("!correction[r] =",),
    "P": ("!s[nb][e] = exp2",),
    "l": ("!l[r] += __shfl", "lse[row]"),
    "O rescaled": ("!o[db][e] *= correction",),
    "O unnormalised": ("!mma_m16n8k16<T>(o[",),
    "1/l": ("!inv_l[r] =",),
    "O": ("!pack2<T>(o[db]", "*reinterpret_cast<unsigned*>(out"),
    "LSE": ("!lse[row]",),
}


def contract_at(path: Path) -> Contract:
    contract, problems = read_contract(path)
    assert contract is not None, problems
    return contract


@cache
def watched(path: Path) -> Watched:
    found = watch_contract(contract_at(path))
    assert found.ran, found.diagnostics
    return found


def lines(path: Path) -> list[str]:
    return [line.strip() for line in contract_at(path).source_path.read_text().splitlines()]


@pytest.mark.parametrize(("name", "key"), [("flash_fwd_scalar", SCALAR), ("flash_fwd_sm80", SM80)])
def test_every_label_is_in_the_key_and_the_landmarks_are_found(name, key):
    path = EXPERT / name / "contract.toml"
    found, text = watched(path), lines(path)
    seen = [(site.role, text[site.line]) for site in found.sites]
    wrong = [(r, t) for r, t in seen if not any(t.startswith(start.removeprefix("!")) for start in key.get(r, ()))]
    assert not wrong
    wanted = [(role, start[1:]) for role, starts in key.items() for start in starts if start.startswith("!")]
    assert not [w for w in wanted if not any(r == w[0] and t.startswith(w[1]) for r, t in seen)]


def test_the_function_grid_and_walk_of_sm80():
    found = watched(EXPERT / "flash_fwd_sm80" / "contract.toml")
    assert found.function is not None
    assert found.grid is not None
    assert found.variant is not None
    assert (found.function.mask, found.function.scale_text) == ("causal bottom-right", "1/sqrt(D)")
    assert (found.function.lse, found.function.head_map, found.function.alike) == ("natural", "h / (H / Hkv)", ())
    assert dict(found.grid.axes) == {"x": "q tile", "y": "h", "z": ""}
    assert found.grid.q_tile == 64
    assert (found.variant.bc, found.variant.kind) == (64, "online")
    last = next(w for w in found.walks if w.h == 1 and w.rows[0] == 64)
    assert (last.tiles, last.order, last.kv_head) == ((0, 64, 128), "ascending", 0)
    first = next(w for w in found.walks if w.h == 1 and w.rows[0] == 0)
    assert first.tiles == (0, 64)  # what lies above the diagonal is not read


def test_the_lane_map_of_mma_scores_is_the_fragments():
    found = watched(EXPERT / "flash_fwd_sm80" / "contract.toml")
    site = next(s for s in found.of("S") if s.units == "raw" and s.opcodes[0].startswith("mma"))
    assert site.lane_map is not None
    i, j = site.lane_map.axis("i"), site.lane_map.axis("j")
    assert i is not None
    assert j is not None
    assert min(i.exact, j.exact) > 0.99
    # Lane t of a warp: row t / 4, column 2 (t % 4); warps are 16 rows apart, CTAs 64; a trip is a tile of 64 keys.
    assert dict(i.coefficients) == {"t2": 1, "t3": 2, "t4": 4, "t5": 16, "t6": 32, "x0": 64}
    assert dict(j.coefficients) == {"t0": 2, "t1": 4, "trip": 64}


@pytest.mark.parametrize(
    ("name", "mask"), [("warp_per_row", "full"), ("mma_padded", "causal"), ("normalised_steps", "full")]
)
def test_other_styles(name, mask):
    found = watched(LADDER / f"{name}.toml")
    assert found.function is not None
    assert found.function.mask == mask
    have = {s.role.removeprefix("masked ") for s in found.sites}
    assert {"S", "m", "P", "l", "correction", "O"} <= have
    kind = "per tile" if name == "normalised_steps" else "online"
    assert found.variant is not None
    assert found.variant.kind == kind


def recorded_of(path: Path, source: bytes | None = None):
    """(problem, code, recording, O) of one observed launch."""
    contract = contract_at(path)
    instance = choose_instance(contract)
    compiled = compile_contract(contract, source, instances=(instance,), want=("ptx",), options=("-lineinfo",))
    module = load(compiled.ptx or "")
    kernel = compiled.lowered[instance.expression]
    problem = choose_problem(contract, instance)
    assert problem is not None
    tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
    call = prepare_call(contract, instance, problem.sizes, tensors, {"causal": int(problem.causal)})
    recorder = Recorder(call)
    args = {"dynamic_shared": call.dynamic_shared, "checkers": ()}
    plain = module.launch(kernel, call.grid, call.block, call.args, **args)
    run = module.launch(kernel, call.grid, call.block, call.args, observer=recorder, **args)
    np.testing.assert_array_equal(plain.outputs["O"], run.outputs["O"])  # observing changes nothing
    code = Code(module.kernel(kernel), module.collector(module.kernel(kernel)).sources)
    return problem, code, finish(recorder), output(call, run)


def test_a_problem_that_the_contract_excludes_is_not_run():
    contract = replace(contract_at(EXPERT / "flash_fwd_scalar" / "contract.toml"), requires=("Sq == 7",))
    found = watch_contract(contract)
    assert not found.ran
    assert [d.code for d in found.diagnostics] == ["CB131"]


def test_a_running_maximum_is_not_called_that_of_a_tile():
    found, text = watched(FAULTS / "rows.toml"), lines(FAULTS / "rows.toml")
    maxima = {s.role for s in found.sites if text[s.line].startswith("newbig = fmaxf")}
    assert maxima == {"m"}


def test_keys_split_over_warps_are_not_taken_for_another_order():
    found = watched(FAULTS / "split_warps.toml")
    assert found.function is not None
    assert found.variant is None  # each warp has its own run of keys: none of the tables of one run fits
    assert {s.role for s in found.sites} <= {"Q", "K", "V", "S", "O"}


def test_unrelated_inputs_get_no_label():
    problem, code, recorded, o = recorded_of(EXPERT / "flash_fwd_scalar" / "contract.toml")
    function = identify(problem, o)
    assert function is not None
    assert function.meaning is not None
    right = sites_of(read_roles(recorded, code, problem, function.meaning, 32).matches, recorded, code)
    other = null_meaning(function.meaning, seed=5)
    wrong = sites_of(read_roles(recorded, code, problem, other, 32).matches, recorded, code)
    assert {"S", "P", "l", "O"} <= {s.role for s in right}
    assert {s.role for s in wrong} <= set(INPUTS)


def test_a_kernel_that_computes_something_else_is_not_named():
    path = EXPERT / "flash_fwd_scalar" / "contract.toml"
    text = contract_at(path).source_path.read_text()
    assert text.count("o[i] *= correction;") == 1
    found = watch_contract(contract_at(path), source=text.replace("o[i] *= correction;", "o[i] *= 1.f;").encode())
    assert found.ran
    assert found.function is None
    assert [d.code for d in found.diagnostics] == ["CB130"]
    assert "O" not in {s.role for s in found.sites}


def small(**sizes: int) -> Problem:
    base = {"B": 1, "H": 4, "Hkv": 2, "Sq": 24, "Sk": 40, "D": 16, "Dv": 16}
    return problem_of({**base, **sizes}, "float32")


@pytest.mark.parametrize(
    ("low", "high", "mask"),
    [(None, None, "full"), (None, 0, "causal"), (None, 16, "causal bottom-right"), (None, -1, "strict causal")],
)
@pytest.mark.parametrize(("scale", "text"), [(0.25, "1/sqrt(D)"), (1.0, "1"), (1 / 16, "1/D")])
def test_functions_are_told_apart_by_their_output(low, high, mask, scale, text):
    problem = small()
    meaning = meaning_of(problem, band(problem.Sq, problem.Sk, low, high), scale)
    found = identify(problem, output_of(meaning))
    assert found is not None
    assert (found.mask, found.scale_text, found.alike) == (mask, text, ())


def test_a_wrong_head_map_is_named():
    problem = small()
    meaning = meaning_of(problem, band(24, 40, None, None), 0.25, head_map=np.array([0, 1, 0, 1]))
    found = identify(problem, output_of(meaning))
    assert found is not None
    assert found.head_map == "h % Hkv"


def test_numbers_that_are_no_attention_have_no_name():
    problem = small()
    assert identify(problem, np.random.default_rng(0).standard_normal((1, 4, 24, 16))) is None
    assert identify(problem, np.full((1, 4, 24, 16), np.nan)) is None


def test_a_layout_is_fitted_through_a_few_wrong_matches():
    rng = np.random.default_rng(2)
    n = 600
    thread, trip, register = rng.integers(0, 128, n), rng.integers(0, 4, n), rng.integers(0, 4, n)
    coords = np.stack([rng.integers(0, 4, n), np.zeros(n, int), np.zeros(n, int)], 1)
    j = 2 * (thread % 4) + 8 * (register // 2) + register % 2 + 64 * trip
    wrong = rng.random(n) < 0.05
    seen = np.where(wrong, rng.integers(0, 256, n), j)
    axis = fit(Held(thread, coords, trip, register, seen[:, None]), ("j",), ("j",)).axes[0]
    assert dict(axis.coefficients) == {"t0": 2, "t1": 4, "trip": 64}
    assert axis.offsets == (0, 1, 8, 9)
    assert axis.registers_linear
    assert 0.93 < axis.exact < 0.98

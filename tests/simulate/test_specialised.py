"""Warp-specialised attention (TMA, mbarriers, wgmma) and groups of wgmma: right, clean, and faults are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.simulate import SCHEDULES, Buffer, Schedule

from .conftest import Shape
from .specialised import launch_specialised, specialised

GROUPS = Path(__file__).parent / "kernels/groups_sm90.cu"


@pytest.mark.parametrize(
    "shape", [Shape(sq=200, sk=200), Shape(sq=300, sk=333, causal=1), Shape(h=1, sq=65, sk=1)], ids=str
)
def test_attention(shape):
    for schedule in SCHEDULES:
        run, error = launch_specialised(specialised(), shape, schedule)
        assert not run.findings, [(f.code, f.message) for f in run.findings]
        assert error < 1e-2


# The ring must go round: from three tiles on a stage is filled again.
@pytest.mark.parametrize("fault", ["NO_EMPTY_WAIT", "EARLY_RELEASE"])
def test_faults(fault):
    for schedule in SCHEDULES:
        run, _ = launch_specialised(specialised(fault), Shape(h=1, sq=128, sk=320), schedule)
        assert {"CB516", "CB517"} & {f.code for f in run.findings}, schedule


def test_progress_and_cancel_inside_a_launch(monkeypatch):
    monkeypatch.setattr("cubridge_engine.simulate.machine.LOOK_S", 0.0)
    shares: list[float] = []
    shape = Shape(h=2, sq=256, sk=512)
    run, error = launch_specialised(specialised(), shape, Schedule(), progress=shares.append)
    assert error < 1e-2
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[len(shares) // 2] < shares[-1] == 1
    stopped, _ = launch_specialised(specialised(), shape, Schedule(), cancel=lambda: len(shares) > 0)
    assert stopped.cancelled
    assert not stopped.ok
    assert stopped.counts.threads < run.counts.threads


@pytest.fixture
def groups(build):
    def make(*defines: str):
        return build(GROUPS.read_text(), str(GROUPS), arch="sm_90a", names=(), defines=defines)

    return make


def launch(module, name: str, *args: object, schedule: Schedule | None = None):
    out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
    kernel = next(k for k in module.kernels if name in k)
    return module.launch(kernel, (1,), (128,), [out, *args], dynamic_shared=16384, schedule=schedule)


@pytest.mark.parametrize(
    ("second", "third", "want"), [(1, 1, 5 + 4 * 16), (1, 0, 2 * 16), (0, 1, 3 * 16), (0, 0, 2 * 16)]
)
def test_products_that_start_anew(groups, second, third, want):
    run = launch(groups(), "restart", second, third)
    assert run.ok, [f.message for f in run.findings]
    assert (run.outputs["D"] == want).all()


@pytest.mark.parametrize("left", [0, 1, 2])
def test_operands_stay_until_the_last_group_that_reads_them(groups, left):
    for schedule in SCHEDULES:
        run = launch(groups(f"LEFT={left}"), "overwrite", schedule=schedule)
        found = {f.code for f in run.findings}
        assert ("CB517" in found) == (left > 0), (schedule, [f.message for f in run.findings])

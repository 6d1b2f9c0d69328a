"""Reading leaves the kernels of libraries alone: FlashInfer's headers and CuTe's tutorials, fetched by tests/simulate.

Skipped, with the reason, where the wheels cannot be had. What is said of them was looked at by hand: see ``LOOKED_AT``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.check import check_file
from cubridge_engine.diagnostics import Severity
from cubridge_engine.lift import lift
from cubridge_engine.source import parse
from tests.simulate.foreign.wheels import CUTLASS, FLASHINFER, Missing, Wheel, unpacked

pytestmark = pytest.mark.slow
BUDGET_S = 2.0
# File -> (code, why it stands). Block reductions in a loop: what one trip reads last, the next one writes first.
LOOKED_AT = {
    "plan.cuh": (
        "CB851",
        "get_min_cost_index returns element 0, which the next call writes, without a barrier between",
    ),
    "trtllm_allreduce.cuh": ("CB851", "block_reduce_sum writes its array while others may read it since the last call"),
}
FOLDERS: tuple[tuple[Wheel, str], ...] = (
    (FLASHINFER, "include/flashinfer/attention/**/*.cuh"),
    (FLASHINFER, "include/flashinfer/comm/*.cuh"),
    (CUTLASS, "examples/**/*.cu"),
)


@pytest.fixture(scope="session")
def cache(request: pytest.FixtureRequest) -> Path:
    """The folder that the simulator's tests keep the wheels in."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("foreign"))


@pytest.mark.parametrize(("wheel", "pattern"), FOLDERS, ids=lambda x: x if isinstance(x, str) else x.pin)
def test_kernels_of_a_library_have_no_error(cache, wheel, pattern):
    try:
        root = unpacked(wheel, cache)
    except Missing as reason:
        pytest.skip(str(reason))
    files = [path for path in sorted(root.glob(pattern)) if b"__global__" in path.read_bytes()]
    assert files
    kernels = 0
    for path in files:
        source = parse(str(path), path.read_bytes())
        lifts = [lift(source, kernel=f.name, remember=False, budget_s=BUDGET_S) for f in source.kernels()]
        kernels += len(lifts)
        raised = [d.message for one in lifts for d in one.diagnostics if d.code == "CB127"]
        assert not raised, path
        allowed = LOOKED_AT.get(path.name, ("", ""))[0]
        errors = [f for f in check_file(source, lifts).findings if f.severity is Severity.ERROR and f.code != allowed]
        assert not errors, (path.name, [(f.code, f.span, f.diagnostic.message) for f in errors])
    assert kernels >= 3

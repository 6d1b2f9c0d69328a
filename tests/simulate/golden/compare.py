"""Comparing what the simulator gives with what a GPU gave."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cubridge_engine import simulate
from cubridge_engine.compile import compile_source
from tests.simulate.test_cluster import COLUMNS
from tests.simulate.test_hopper import PRODUCTS

from .cases import SOURCES, Case


@lru_cache(maxsize=2)
def compiled_module(file: str) -> simulate.Module:
    """A file of kernels for sm_90a."""
    names = {"hopper": PRODUCTS, "cluster": COLUMNS}[file]
    compiled = compile_source(SOURCES[file], path=f"{file}.cu", arch="sm_90a", name_expressions=names, want=("ptx",))
    assert compiled.ptx is not None, compiled.diagnostics
    return simulate.load(compiled.ptx)


def simulated(case: Case) -> dict[str, np.ndarray]:
    """Outputs of the case in the simulator. Raises AssertionError when it has findings."""
    module = simulate.load(case.ptx) if case.ptx else compiled_module(case.file)
    kernel = next(k for k in module.kernels if case.kernel in k)
    run = module.launch(kernel, case.grid, case.block, case.args, dynamic_shared=case.shared)
    assert run.ok, (case.name, [f.message for f in run.findings])
    return run.outputs


def differences(case: Case, ours: np.ndarray, theirs: np.ndarray) -> int:
    """Number of elements that differ by more than the case's tolerance; a float NaN equals NaN whatever its bits."""
    floats = theirs.view(np.float32) if theirs.dtype == np.uint32 and case.floats else theirs
    mine = ours.view(np.float32) if ours.dtype == np.uint32 and case.floats else ours
    same = ours == theirs
    if floats.dtype == np.float32:
        same |= np.isnan(mine) & np.isnan(floats)
        if case.tolerance:
            with np.errstate(invalid="ignore"):
                same |= np.abs(mine - floats) <= case.tolerance * np.maximum(np.abs(floats), 1e-3)
    return int((~same).sum())

"""Hints on the lines of a kernel in CuTe: what its library's calls do there."""

from __future__ import annotations

from pathlib import Path

from server import engine
from server.reuse import Lifts

OWN = Path(__file__).parents[1] / "lift" / "cute" / "cute_own.cu"


def test_lines_of_a_kernel_in_cute_have_labels():
    reading = engine.read(str(OWN), OWN.read_bytes(), None, Lifts())
    lines = OWN.read_text().splitlines()
    labels = {lines[mark.line].split("  // =")[0].strip(): mark.label for mark in reading.landmarks}
    assert labels["gemm(mma, a, b, dots);"] == "S"
    assert labels["gemm(mma, left, d, sums);"] == "O, not divided"
    assert labels["grid(i, j) = -INFINITY;"] == "S, masked"
    assert labels["total(i) += grid(i, j);"] == "l"
    assert all("// =" in lines[mark.line] and "= wait" not in lines[mark.line] for mark in reading.landmarks)

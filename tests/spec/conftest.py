"""Spec texts are written to a file and read once; the reading is what the tests look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from cubridge_engine.spec import SpecResult, read_spec

HEADER = """
import math
import torch
import torch.nn.functional as F
"""
INPUTS = """
def example_inputs():
    torch.manual_seed(0)
    return tuple(torch.randn(*shape, dtype=torch.{dtype}) for shape in {shapes}){extra}
"""
SQUARE = ((2, 4, 48, 32),) * 3
CROSS = ((2, 4, 40, 32), (2, 4, 56, 32), (2, 4, 56, 32))
GROUPED = ((2, 4, 48, 32), (2, 2, 48, 32), (2, 2, 48, 32))


def spec_text(body: str, shapes: tuple[tuple[int, ...], ...] = SQUARE, extra: str = "", dtype: str = "float32") -> str:
    """A whole spec file around the definition of attention()."""
    tail = f" + ({extra},)" if extra else ""
    return HEADER + dedent(body) + INPUTS.format(shapes=repr(shapes), extra=tail, dtype=dtype)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., SpecResult]:
    """Write a spec text to a file and read it."""

    def run(text: str, **options: object) -> SpecResult:
        path = tmp_path / "spec.py"
        path.write_text(text)
        return read_spec(str(path), **options)  # type: ignore[arg-type]

    return run

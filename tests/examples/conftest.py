"""Each example read and adapted once per session."""

from __future__ import annotations

import pytest

from cubridge_engine.spec import read_spec

from .adapted import ROOT, Adapted, adapt_to

EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py"))
KERNEL_FOR = {"float16": "flash_fwd_sm80", "bfloat16": "flash_fwd_sm80", "float32": "flash_fwd_scalar"}


@pytest.fixture(scope="session")
def read_example():
    """(attention, program) of an example, read once."""
    done: dict[str, tuple] = {}

    def reading(name: str) -> tuple:
        if name not in done:
            result = read_spec(str(ROOT / "examples" / f"{name}.py"))
            assert result.attention is not None, [d.message for d in result.diagnostics]
            done[name] = (result.attention, result.program)
        return done[name]

    return reading


@pytest.fixture(scope="session")
def adapted(read_example):
    """An example on the kernel of its dtype, adapted once."""
    done: dict[str, Adapted] = {}

    def adapting(name: str) -> Adapted:
        attention, program = read_example(name)
        if name not in done:
            done[name] = adapt_to(attention, program, KERNEL_FOR[attention.input("q").dtype])
        return done[name]

    return adapting

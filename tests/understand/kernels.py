"""Kernels to explain and to compare: the bundled ones, those of other authors, edits of them, and adapted ones."""

from __future__ import annotations

import functools

from cubridge_engine.ir.nodes import Kernel
from cubridge_engine.lift import Lifted, lift
from cubridge_engine.lower import lower, parse_header
from cubridge_engine.source import parse
from cubridge_engine.transfer import transfer
from cubridge_engine.understand.explain import explain
from cubridge_engine.understand.model import Explanation
from tests.lift.conftest import ROOT, SCALAR, SM80, STYLES, edited
from tests.transfer.builders import make_attention

BUNDLED = {
    name: (ROOT / "expert_kernels" / name / "kernel.cu").read_text()
    for name in ("flash_fwd_scalar", "flash_fwd_sm80", "flash_fwd_sm90", "flash_fwd_sm90_plain")
}
CAUSAL = "j <= i + (Sk - Sq)"
ADAPTED = {
    "adapted_softcap_window": {
        "score": "50.0 * tanh(s * 0.125 / 50.0)",
        "mask": f"{CAUSAL} & j > i + (Sk - Sq) - 1024",
    },
    "adapted_sink": {"sink": "sinks[h]", "operands": ("sinks:H:float16",), "mask": CAUSAL},
    "adapted_alibi": {
        "score": "s * 0.125 + slopes[h] * float(j - i)",
        "operands": ("slopes:H",),
        "mask": CAUSAL,
    },
}


@functools.cache
def lifted(text: str) -> Lifted:
    """The kernel of a text, read."""
    return lift(parse("kernel.cu", text.encode()), anchors=False)


def kernel(text: str) -> Kernel:
    """The kernel of a text; it must be read whole."""
    found = lifted(text)
    assert found.kernel is not None
    assert found.coverage.complete, [d.message for d in found.diagnostics]
    return found.kernel


@functools.cache
def adapted(name: str) -> str:
    """The text of flash_fwd_sm80 after an adaptation of `ADAPTED`, with the header lines of one."""
    source = parse("kernel.cu", SM80.encode())
    before = lift(source)
    assert before.kernel is not None
    result = transfer(before.kernel, make_attention(**ADAPTED[name]), tile_lists=False)
    lowered = lower(before, result, source, spec="spec.py")
    assert not lowered.diagnostics
    return "\n".join(lowered.header_lines) + "\n" + lowered.text.decode()


def explained(text: str) -> Explanation:
    """A text explained, without a contract."""
    return explain(lifted(text), header=parse_header(text))


__all__ = [
    "ADAPTED",
    "BUNDLED",
    "CAUSAL",
    "SCALAR",
    "SM80",
    "STYLES",
    "adapted",
    "edited",
    "explained",
    "kernel",
    "lifted",
]

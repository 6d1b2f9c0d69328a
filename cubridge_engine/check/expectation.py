"""What a kernel computes against what it is expected to compute, as mathematics, at the responsible line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from ..compile import Contract
from ..diagnostics import Related, Severity, make
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from ..transfer.structure import NotAttention
from ..understand.differences import semantic_difference
from ..understand.functions import function_of_attention, function_of_kernel
from ..understand.model import Difference
from .model import Finding, Kind

LOG2E = 1.4426950408889634
MOST_FLAGS = 3  # every setting of that many switches is tried
_KINDS: dict[str, Kind] = {"heads": "heads", "mask": "mask", "lse": "interface", "widths": "interface"}


def expected_findings(
    kernel: Kernel, expected: Attention, contract: Contract | None = None
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """One CB882 for each part of the function of `kernel` that is not that of `expected`, and what could not be
    compared, in words.

    Scales are what the contract says they are (without one: what reading takes them for); of switches, the setting that
    comes nearest counts.
    """
    fixed = _scales(kernel, expected, contract)
    best: tuple[Difference, ...] | None = None
    why = ""
    for values in _settings(kernel):
        try:
            found = function_of_kernel(kernel, {**fixed, **values})
        except NotAttention as error:
            why = str(error)
            continue
        differences = semantic_difference(found, function_of_attention(expected))
        if best is None or len(differences) < len(best):
            best = differences
        if not best:
            break
    if best is None:
        return (), (f"the function of the kernel cannot be compared with what is expected: {why}",)
    blind = tuple(d.sentence for d in best if d.part == "undecided")
    return tuple(_finding(d) for d in best if d.part != "undecided"), blind


def _finding(difference: Difference) -> Finding:
    at = difference.expected_span
    related = (Related(at, "expected here"),) if at is not None else ()
    sentence = f"{difference.sentence[0].upper()}{difference.sentence[1:]}"
    made = make("CB882", difference.span, related=related, sentence=sentence)
    assert made.severity is Severity.ERROR
    return Finding(made, _KINDS.get(difference.part, "softmax"), "certain", "expectation")


def _scales(kernel: Kernel, expected: Attention, contract: Contract | None) -> dict[str, float | int]:
    """Values of the parameters that are scales, at the kernel's width."""
    natural = kernel.D**-0.5
    roles = {p.name: p.role for p in kernel.params}
    if contract is not None:
        roles |= {p.name: p.role for p in contract.leaves if p.name in roles}
    known = {"scale": natural, "scale_log2": natural * LOG2E}
    return {name: known[role] for name, role in roles.items() if role in known}


def _settings(kernel: Kernel) -> Iterator[Mapping[str, float | int]]:
    """Values of switches, most of them on first: an expectation that names a mask is met with it switched on."""
    names = [p.name for p in kernel.params if p.role.startswith("flag")][:MOST_FLAGS]
    for values in itertools.product((1, 0), repeat=len(names)):
        yield dict(zip(names, values, strict=True))

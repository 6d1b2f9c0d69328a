"""Where a kernel cannot be made to compute a spec, the bundled one that can: asked of transfer, not guessed."""

from __future__ import annotations

from collections.abc import Sequence

from ..compile.bundled import Expert, experts
from ..diagnostics import Diagnostic, make
from ..lower import identifiers
from ..spec.attention import Attention, widths_of
from ..transfer import transfer
from .files import parse_kernel_file, read_file
from .widths import as_given, lift_at

# A wall in the kernel: its widths, type, layout, outputs, normaliser, heads, pages, or a place that its text lacks.
WALLS = frozenset(
    (
        "CB021",
        "CB022",
        "CB301",
        "CB302",
        "CB304",
        "CB305",
        "CB306",
        "CB307",
        "CB313",
        "CB318",
        "CB320",
        "CB321",
        "CB322",
    )
) | frozenset(("CB401", "CB402", "CB404", "CB410", "CB411", "CB412"))


def offer(
    attention: Attention, kernel_path: str, spec_path: str, found: Sequence[Diagnostic]
) -> tuple[Diagnostic, ...]:
    """CB034 with the first bundled kernel that transfer can change for `attention`, where `found` names a wall."""
    walls = [d for d in found if d.code in WALLS]
    if not walls:
        return ()
    dtype = attention.input("q").dtype
    ranked = sorted(experts(), key=lambda x: (dtype not in x.contract.dtypes, x.contract.archs))
    for expert in ranked:
        path = expert.contract.source_path
        if str(path) != kernel_path and _fits(expert, attention):
            return (make("CB034", walls[0].span, name=expert.contract.name, path=path, spec=spec_path),)
    return ()


def _fits(expert: Expert, attention: Attention) -> bool:
    contract = expert.contract
    widths = contract.candidates(widths_of(attention, contract.widths[0]))
    data, _ = read_file(str(contract.source_path))
    if not widths or data is None:
        return False
    source = parse_kernel_file(str(contract.source_path), data)
    lifted = lift_at(source, contract.name, widths[0])
    if lifted.kernel is None or not lifted.coverage.complete:
        return False
    pages = lifted.anchors.pages is not None
    given = as_given(attention, lifted.kernel)
    return transfer(lifted.kernel, given, reserved=identifiers(source), pages=pages).target is not None

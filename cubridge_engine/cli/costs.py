"""Lines that cost: the report's counts by line of the kernel, as a short table."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import CostResult, LineCost

TOP = 8
MAX_TEXT = 60


def cost_table(cost: CostResult) -> tuple[str, list[tuple[str, ...]]]:
    """A heading, and the rows with their head: the lines with the most instructions, and all with bank conflicts."""
    sizes = " ".join(f"{name}={size}" for name, size in cost.sizes.items())
    heading = (
        f"  lines that cost, in case {cost.case} ({sizes}; {cost.ctas} CTAs, {cost.instructions} warp instructions,"
        f" {100 * cost.active:.0f}% of lanes active)"
    )
    rows: list[tuple[str, ...]] = [("line", "issued", "lanes", "shared/CTA", "global/CTA", "bank conflicts", "source")]
    for one in costly(cost.lines):
        shared, moved = one.shared_read + one.shared_write, one.global_read + one.global_write
        text = one.text if len(one.text) <= MAX_TEXT else one.text[: MAX_TEXT - 1] + "…"
        rows.append(
            (
                str(one.line + 1), f"{100 * one.share:.1f}%", f"{100 * one.active:.0f}%",
                size_text(shared / cost.ctas), size_text(moved / cost.ctas), _conflicts(one), text,
            )
        )  # fmt: skip
    return heading, rows


def costly(lines: Sequence[LineCost]) -> list[LineCost]:
    """The `TOP` lines by instructions issued, and after them every other line with a bank conflict."""
    ordered = sorted(lines, key=lambda c: (-c.instructions, c.line))
    return [c for n, c in enumerate(ordered) if n < TOP or (c.bank_ways or 1.0) > 1.0]


def size_text(size: float) -> str:
    """Bytes for people: ``-``, ``512 B``, ``16 KiB``, ``1.5 MiB``."""
    if not size:
        return "-"
    for unit in ("B", "KiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} MiB"


def _conflicts(one: LineCost) -> str:
    if one.bank_ways is None:
        return "-"
    if one.bank_ways <= 1.0:
        return "none"
    return f"! {one.bank_ways:g} ways, {one.wavefronts} wavefronts for {one.ideal_wavefronts}"

"""What the lines of a kernel cost, from the last simulation of exactly the text that is open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_TEXTS = 16


@dataclass(frozen=True, slots=True)
class LineCosts:
    """Counts of one text: `total` is the report's ``cost`` object, `lines` its rows by 0-based line."""

    total: dict[str, Any]
    lines: dict[int, dict[str, Any]]

    def at(self, line: int, in_kv_loop: bool) -> str | None:
        """The costs of a line in one sentence; None where it costs nothing."""
        cost = self.lines.get(line)
        if cost is None:
            return None
        ctas, passes = max(self.total["ctas"], 1), cost["passes"]
        # Warps of the families that are read do the same work, so that what a CTA moves divides by a warp's passes.
        per_tile = in_kv_loop and passes > 0
        share, unit = (ctas * passes, "CTA and KV tile") if per_tile else (ctas, "CTA")
        moved = {space: cost[f"{space}_read"] + cost[f"{space}_write"] for space in ("shared", "global")}
        parts = [f"{space} {size_text(size / share)}" for space, size in moved.items() if size]
        if parts:
            parts[-1] += f" per {unit}"
        ways = cost["bank_ways"]
        if ways is not None:
            parts.append(f"**{ways:g}-way bank conflict**" if ways > 1 else "no bank conflict")
        parts.append(f"{100 * cost['share']:.2g} % of instructions")
        parts.append(f"lanes {100 * cost['active']:.0f} % active")
        return ", ".join(parts)

    @property
    def where(self) -> str:
        """The launch that was counted."""
        sizes = " ".join(f"{name}={size}" for name, size in self.total["sizes"].items())
        return f"case {self.total['case']} ({sizes}) in the simulator"


@dataclass(slots=True)
class Costs:
    """Counts by the digest of the text they were made from: of any other text, none are shown."""

    _kept: dict[str, LineCosts] = field(default_factory=dict[str, LineCosts])

    def put(self, sha: str, result: dict[str, Any]) -> None:
        """Keep what a result of adapt or verify counted, if it counted anything."""
        simulated = (result.get("report") or {}).get("simulated") or ()
        total = next((one["cost"] for one in simulated if one.get("cost")), None)
        if total is None:
            return
        self._kept.pop(sha, None)
        # A line that calls a helper of the file costs what the helper does there.
        self._kept[sha] = LineCosts(total, {row["line"]: row for row in (*total["lines"], *total["calls"])})
        while len(self._kept) > MAX_TEXTS:
            del self._kept[next(iter(self._kept))]

    def of(self, sha: str) -> LineCosts | None:
        """The counts of the text with this digest."""
        return self._kept.get(sha)


def size_text(size: float) -> str:
    """Bytes for people."""
    if size < 1024:
        return f"{size:.3g} B"
    return f"{size / 1024:.3g} KiB" if size < 1 << 20 else f"{size / (1 << 20):.3g} MiB"

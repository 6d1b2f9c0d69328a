"""Figures of repeated timings."""

from __future__ import annotations

import statistics


def figures(samples: list[float]) -> dict[str, float]:
    """Median, 95th percentile and worst, in milliseconds, of samples in seconds."""
    ordered = sorted(1000 * s for s in samples)
    at95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {
        "median_ms": round(statistics.median(ordered), 2),
        "p95_ms": round(at95, 2),
        "max_ms": round(ordered[-1], 2),
    }

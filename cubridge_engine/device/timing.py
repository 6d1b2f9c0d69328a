"""Timing functions on a GPU in turns, in one process, with results checked before and after.

All take turns launch by launch, 256 MB are written between launches so that nothing of the inputs is left in the L2
cache, sets of inputs rotate, and the median of GPU events counts. Cards are power-limited: only times of one run
compare.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

FLUSH_BYTES = 256 << 20
WARM_UP = 3  # rounds
Call = Callable[[], Any]


def relative_error(got: Any, wanted: Any) -> float:
    """Of a tensor, in the Frobenius norm; infinite for NaN."""
    size = float(wanted.norm())
    off = float((got.float() - wanted.float()).norm()) / (size or 1.0)
    return off if math.isfinite(off) else math.inf


@dataclass
class Contender:
    """Something that computes a problem: a call per set of inputs, each returning its result.

    `outputs` are tensors that a kernel writes to, one per set, where it returns them: poisoned before every launch,
    since a launch that does nothing would leave the last result there. Others return new tensors.
    """

    name: str
    calls: list[Call]
    outputs: list[Any] = field(default_factory=list[Any])

    def poison(self, number: int) -> None:
        """NaN where launch `number` writes."""
        if self.outputs:
            self.outputs[number % len(self.outputs)].fill_(math.nan)

    def worst(self, wanted: Sequence[Any], results: Sequence[Any] | None = None) -> float:
        """The largest error over the sets of inputs, of `results` or of a launch now."""
        worst = 0.0
        for number, right in enumerate(wanted):
            if results is None:
                self.poison(number)
            got = self.calls[number]() if results is None else results[number]
            worst = max(worst, relative_error(got, right))
        return worst


@dataclass(frozen=True)
class Timed:
    """Median milliseconds by contender, and the largest error of the last timed results."""

    ms: dict[str, float]
    errors: dict[str, float]


def time_calls(
    contenders: Sequence[Contender],
    wanted: Sequence[Any],
    rounds: int,
    tick: Callable[[int, int], None] = lambda _done, _of: None,
) -> Timed:
    """Median time of each contender. What the last timed launches gave is compared with `wanted` (one per set of
    inputs). `tick(done, rounds)` is called after each round.
    """
    import torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events: dict[str, list[tuple[Any, Any]]] = {c.name: [] for c in contenders}
    last: dict[str, list[Any]] = {c.name: [None] * len(c.calls) for c in contenders}
    for number in range(rounds + WARM_UP):
        for contender in contenders:
            one = number % len(contender.calls)
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            contender.poison(number)
            last[contender.name][one] = None  # its memory can be used again
            flush.zero_()
            pair[0].record()
            result = contender.calls[one]()
            pair[1].record()
            last[contender.name][one] = result
            if number >= WARM_UP:
                events[contender.name].append(pair)
        torch.cuda.synchronize()
        tick(number + 1, rounds + WARM_UP)
    ms = {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}
    return Timed(ms, {c.name: c.worst(wanted, last[c.name]) for c in contenders})

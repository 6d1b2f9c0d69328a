"""Probes: at each place, every element of the fragment and every integer in scope, written down while the kernel runs.

A probe is an addition of -0, which changes no number, in inline PTX: the one form of it that no compiler writes itself.
Its position on its line says what it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..simulate import Module
from ..simulate.calling import Call
from ..simulate.lanes import LaneState
from ..simulate.model import Imm
from .build import Built
from .model import Array, Place

_MARK = "0f80000000"
_MOST_BYTES = 3 << 30  # that all probes may hold together
_MARKED = Imm(0x80000000, 32)
_ADD = "add.f32 %{0}, %{1}, " + _MARK + ";"


@dataclass(frozen=True, slots=True)
class Probe:
    """A place, and the C++ texts of the numbers that are looked at once before its elements."""

    place: Place
    numbers: tuple[str, ...]


def probe_lines(probe: Probe) -> str:
    """Two lines: the numbers, then the elements with their loop variables."""
    once = "".join(
        f'{{ float cubridge_x; asm volatile("{_ADD.format(0, 1)}" : "=f"(cubridge_x) : "f"((float)({n}))); }} '
        for n in probe.numbers
    )
    fragment = probe.place.fragment
    names = [f"cubridge_{n}" for n in range(len(fragment.extents))]
    seen = [f"(float)({fragment.element.format(*names)})", *(f"(float){name}" for name in names)]
    outputs = ", ".join(f'"=f"(cubridge_x{n})' for n in range(len(seen)))
    inputs = ", ".join(f'"f"({value})' for value in seen)
    adds = " ".join(_ADD.format(n, n + len(seen)) for n in range(len(seen)))
    declared = ", ".join(f"cubridge_x{n}" for n in range(len(seen)))
    body = f'float {declared}; asm volatile("{adds}" : {outputs} : {inputs});'
    loops = "".join(
        f'_Pragma("unroll") for (int {name} = 0; {name} < (int)({end}); ++{name}) '
        for name, end in zip(names, fragment.extents, strict=True)
    )
    return f"\n{{ {once}}}\n{loops}{{ {body} }}\n"


def with_probes(data: bytes, probes: Sequence[Probe]) -> tuple[bytes, list[int]]:
    """A file with the probes at their places, and for each the line (from 1) of its numbers; elements are one below."""
    order = sorted(range(len(probes)), key=lambda n: (probes[n].place.at, n))
    out, at, lines = b"", 0, [0] * len(probes)
    for n in order:
        place = probes[n].place
        out += data[at : place.at]
        lines[n] = out.count(b"\n") + 2
        out += probe_lines(probes[n]).encode()
        at = place.at
    return out + data[at:], lines


@dataclass(slots=True)
class Seen:
    """What passed a place: for each element the lane (CTA, thread), its value, its loop variables, the numbers."""

    lanes: list[Array] = field(default_factory=list[Array])
    values: list[Array] = field(default_factory=list[Array])
    loops: list[Array] = field(default_factory=list[Array])
    numbers: list[Array] = field(default_factory=list[Array])

    def joined(self) -> tuple[Array, Array, Array, Array]:
        """(lane numbers, values, loop variables by column, numbers by column)."""
        parts = (self.lanes, self.values, self.loops, self.numbers)
        return tuple(np.concatenate(part) for part in parts)  # type: ignore[return-value]


class ProbeObserver:
    """A ``simulate.Observer`` that keeps what the probes show."""

    def __init__(self, roles: Mapping[int, tuple[int, int]], probes: Sequence[Probe], lanes: int, threads: int) -> None:
        """`roles`: instruction -> (number of the probe, position: numbers from 0, then the element and its loops)."""
        self._roles, self._threads = roles, threads
        self._counts = [len(p.numbers) for p in probes]
        self._widths = [len(p.numbers) + 1 + len(p.place.fragment.extents) for p in probes]
        self._now = [np.zeros((width, lanes), np.float32) for width in self._widths]
        self.seen = [Seen() for _ in probes]
        self._held = [0] * len(probes)  # bytes; -1 for a probe that was given up

    def value(self, lanes: LaneState, site: int, result: int, value: Any, mask: Array | None) -> None:
        """See ``simulate.observe.Observer``."""
        role = self._roles.get(site)
        if role is None or self._held[role[0]] < 0:
            return
        probe, position = role
        thread = lanes.warp * 32 + lanes.lane
        active = (thread < self._threads) & (True if mask is None else lanes.full(mask))
        who = (lanes.machine.cta_linear[lanes.cta].astype(np.int64) * self._threads + thread)[active]
        held = lanes.full(value)[active]
        self._now[probe][position, who] = held if held.dtype == np.float32 else held.view(np.float32)
        if position == self._widths[probe] - 1:
            now, count = self._now[probe][:, who], self._counts[probe]
            seen = self.seen[probe]
            seen.lanes.append(who)
            seen.values.append(now[count].astype(np.float64))
            seen.loops.append(now[count + 1 :].T.astype(np.int32))
            seen.numbers.append(now[:count].T.astype(np.int32))
            self._held[probe] += 16 * len(who) + 4 * now[:, :1].size * len(who)
            if sum(self._held) > _MOST_BYTES:
                self._give_up()

    def _give_up(self) -> None:
        """Forget what held the most: a place inside of the product's own loop sees far more than scores."""
        most = max(range(len(self._held)), key=self._held.__getitem__)
        self.seen[most], self._held[most] = Seen(), -1

    def access(self, lanes: LaneState, kind: str, offset: Array, nbytes: int, chosen: Array | None, site: int) -> None:
        """See ``simulate.observe.Observer``; memory says nothing here."""


def roles_of(
    module: Module, kernel: str, probes: Sequence[Probe], lines: Sequence[int], built: Built
) -> dict[int, tuple[int, int]]:
    """Which instruction is which number of which probe. A probe that was compiled several times is whole each time;
    one that was not is left out.
    """
    code = module.kernel(kernel).flow.code
    by_line: dict[tuple[Path, int], list[int]] = {}
    for number, ins in enumerate(code):
        if ins.op != "add.f32" or ins.loc is None or ins.args[-1] != _MARKED:
            continue
        by_line.setdefault((built.original(ins.loc.path), ins.loc.line), []).append(number)
    found: dict[int, tuple[int, int]] = {}
    for n, (probe, line) in enumerate(zip(probes, lines, strict=True)):
        count, width = len(probe.numbers), 1 + len(probe.place.fragment.extents)
        for offset, size, first in ((0, count, 0), (1, width, count)):
            sites = by_line.get((probe.place.path, line + offset), [])
            if size and len(sites) % size == 0:
                found |= {site: (n, first + k % size) for k, site in enumerate(sites)}
    return found


def run_probes(
    module: Module, kernel: str, call: Call, roles: Mapping[int, tuple[int, int]], probes: Sequence[Probe]
) -> list[Seen]:
    """One launch with the probes observed."""
    threads = int(np.prod(call.block))
    observer = ProbeObserver(roles, probes, int(np.prod(call.grid)) * threads, threads)
    module.launch(
        kernel, call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared, checkers=(), observer=observer
    )
    return observer.seen

"""The schedule of a program over a few KV tiles: what is in flight when, and races where they happen."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from cubridge_engine.ir.nodes import Barrier, CpWait, For, If, Kernel, Let, Mma
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.timeline import Timeline, timeline

TEXT = (Path(__file__).parent / "flash.cuir").read_text()


def follow(text: str, **values: Any) -> Timeline:
    kernel = parse_kernel(text)
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": kernel.Br, "Sk": 4 * kernel.Bc}
    return timeline(kernel, sizes, {"c": 1.0, "causal": 0, **values})


def without(line: str, *, at: int = 0) -> str:
    """The program without the `at`-th line that is `line`."""
    lines = TEXT.split("\n")
    found = [number for number, text in enumerate(lines) if text.strip() == line]
    del lines[found[at]]
    return "\n".join(lines)


def test_a_sound_program_goes_round_its_ring_without_a_fault() -> None:
    line = follow(TEXT)
    assert (line.tiles, line.stopped, line.faults) == (4, "", ())
    held = [s.holds for s in line.stretches if (s.buffer, s.slot, s.state) == ("Ks", 0, "visible")]
    assert held == [("k", 0), ("k", 2)]


def test_a_copy_lands_at_a_wait_and_is_visible_after_the_barrier() -> None:
    line = follow(TEXT)
    one = [s for s in line.stretches if (s.buffer, s.slot) == ("Ks", 1)][:3]
    assert [s.state for s in one] == ["inflight", "landed", "visible"]
    assert isinstance(line.events[one[1].start].op, CpWait)
    assert isinstance(line.events[one[2].start].op, Barrier)
    assert all(a.end == b.start for a, b in itertools.pairwise(one))


def test_events_know_their_tile_and_what_they_read() -> None:
    products = [e for e in follow(TEXT).events if isinstance(e.op, Mma) and e.op.role == "pv"]
    assert [(e.tile, e.touches) for e in products] == [(n, (("Vs", n % 2),)) for n in range(4)]


@pytest.mark.parametrize(
    ("line", "at", "code", "buffer"),
    [("cp_wait 1", 1, "CB502", "Ks"), ("barrier cta", 1, "CB509", "Ks"), ("barrier cta", 2, "CB501", "Ks")],
)
def test_what_is_missing_is_found_where_it_hurts(line: str, at: int, code: str, buffer: str) -> None:
    found = follow(without(line, at=at)).faults
    assert (found[0].diagnostic.code, found[0].buffer) == (code, buffer)
    assert {f.diagnostic.code for f in found} >= {code}


def test_an_overwritten_read_names_the_read() -> None:
    line = follow(without("barrier cta", at=2))
    fault = next(f for f in line.faults if f.diagnostic.code == "CB501")
    assert fault.other is not None
    assert isinstance(line.events[fault.other].op, Mma)
    assert (fault.buffer, fault.slot) in line.events[fault.other].touches


def test_a_schedule_that_only_a_launch_decides_stops_with_its_name() -> None:
    line = follow(TEXT.replace("let n = (Sk + 15) // 16", "let n = lengths[b]"))
    assert "lengths" in line.stopped
    assert line.events  # what came before is there
    assert line.tiles == 0


def test_a_loop_without_an_end_ends() -> None:
    line = follow(TEXT.replace("let n = (Sk + 15) // 16", "let n = 1000000"))
    assert "operations" in line.stopped


def test_every_operation_of_the_loop_is_an_event_of_every_tile() -> None:
    kernel: Kernel = parse_kernel(TEXT)
    loop = next(op for op in kernel.body if isinstance(op, For))
    per_tile = [[e.op for e in follow(TEXT).events if e.tile == tile] for tile in range(4)]
    wanted = [op for op in loop.body if not isinstance(op, Let | If)]
    assert all([op for op in ops if op in wanted] == wanted for ops in per_tile)

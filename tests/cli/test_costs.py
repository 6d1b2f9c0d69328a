"""The table of lines that cost."""

from __future__ import annotations

from cubridge_engine.cli.costs import TOP, cost_table, costly, size_text
from cubridge_engine.results import CostResult, LineCost


def line(number: int, instructions: int, ways: float | None = None, **more: object) -> LineCost:
    return LineCost.model_validate(
        {
            "line": number,
            "text": f"line {number + 1}",
            "instructions": instructions,
            "share": instructions / 1000,
            "passes": 1.0,
            "active": 0.5,
            "classes": {},
            "bank_ways": ways,
            **more,
        }
    )


LINES = (
    *(line(n, 100 - n) for n in range(TOP + 2)),
    line(40, 1, 2.0, wavefronts=32, ideal_wavefronts=16, shared_read=8192),
)


def test_the_most_instructions_come_first_and_no_conflict_is_left_out() -> None:
    assert [c.line for c in costly(LINES)] == [*range(TOP), 40]


def test_the_rows_say_what_a_cta_moves_and_flag_conflicts() -> None:
    sizes = {"B": 1, "Sq": 65}
    cost = CostResult(
        case="tail", sizes=sizes, schedule="late forward", ctas=4, warps=16, instructions=1000, active=0.94, classes={},
        bytes={}, lines=LINES,
    )  # fmt: skip
    heading, (head, *rows) = cost_table(cost)
    assert heading == "  lines that cost, in case tail (B=1 Sq=65; 4 CTAs, 1000 warp instructions, 94% of lanes active)"
    assert len({len(row) for row in (head, *rows)}) == 1
    assert rows[0] == ("1", "10.0%", "50%", "-", "-", "-", "line 1")
    assert rows[-1] == ("41", "0.1%", "50%", "2 KiB", "-", "! 2 ways, 32 wavefronts for 16", "line 41")


def test_sizes_are_for_people() -> None:
    assert [size_text(n) for n in (0, 8, 1000, 1536, 3 << 20)] == ["-", "8 B", "1e+03 B", "1.5 KiB", "3 MiB"]

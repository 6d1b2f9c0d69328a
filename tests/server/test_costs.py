"""What a hover says of a line's cost, and that it is said of the simulated text only."""

from __future__ import annotations

from typing import Any

import pytest

from server.costs import MAX_TEXTS, Costs, size_text

LINE = {
    "line": 7, "share": 0.12, "active": 0.94, "passes": 4.0, "shared_read": 64 * 1024 * 8, "shared_write": 0,
    "global_read": 0, "global_write": 0, "bank_ways": 2.0,
}  # fmt: skip
CALL = {**LINE, "line": 9, "bank_ways": 1.0, "global_write": 2048 * 8}


def result(**more: Any) -> dict[str, Any]:
    cost = {
        "case": "tail",
        "sizes": {"B": 1, "Sk": 70},
        "ctas": 8,
        "lines": [LINE, {**CALL, "share": 0.0}],
        "calls": [CALL],
    }
    return {"report": {"simulated": [{"cost": None}, {"cost": cost, **more}]}}


def test_the_sentence_of_a_line() -> None:
    costs = Costs()
    costs.put("a", result())
    counted = costs.of("a")
    assert counted is not None
    want = "shared 16 KiB per CTA and KV tile, **2-way bank conflict**, 12 % of instructions, lanes 94 % active"
    assert counted.at(7, in_kv_loop=True) == want
    outside = counted.at(7, in_kv_loop=False)
    assert outside is not None
    assert outside.startswith("shared 64 KiB per CTA, ")
    call = counted.at(9, in_kv_loop=True)
    assert call is not None, "a line that calls a helper has what the helper costs there"
    assert call.startswith("shared 16 KiB, global 512 B per CTA and KV tile, no bank conflict, 12 % of")
    assert counted.at(8, in_kv_loop=True) is None
    assert counted.where == "case tail (B=1 Sk=70) in the simulator"


@pytest.mark.parametrize(
    "given", [{}, {"report": None}, {"report": {"simulated": []}}, {"report": {"simulated": [{}]}}]
)
def test_a_result_without_counts_keeps_none(given: dict[str, Any]) -> None:
    costs = Costs()
    costs.put("a", given)
    assert costs.of("a") is None


def test_another_text_has_no_costs_and_old_ones_are_forgotten() -> None:
    costs = Costs()
    for n in range(MAX_TEXTS + 1):
        costs.put(str(n), result())
    assert costs.of("0") is None
    assert costs.of(str(MAX_TEXTS)) is not None
    assert costs.of("another") is None


def test_sizes_are_for_people() -> None:
    assert [size_text(n) for n in (512, 1536, 3 << 20)] == ["512 B", "1.5 KiB", "3 MiB"]

"""The table of rules, in the order they are applied."""

from __future__ import annotations

from . import empty_rows, head_map, interface, kv_range, mask, normaliser, operands, paged, score, sink, tile_list
from .rule import Example, Rule

RULES: tuple[Rule, ...] = (
    interface.RULE,
    head_map.RULE,
    score.BIND_SCALE,
    normaliser.RULE,
    score.SCORE,
    mask.BIND_FLAG,
    tile_list.RULE,
    kv_range.RULE,  # before the mask: what the loop never visits needs no test
    mask.MASK,
    sink.RULE,
    empty_rows.RULE,
    operands.RULE,
    paged.RULE,
)

__all__ = ["RULES", "Example", "Rule"]

"""Running FlexAttention eagerly: its own dense formula in the place of a compiled kernel, wherever a spec calls it.

`torch.nn.attention.flex_attention.flex_attention` checks its arguments, fills in defaults, and calls an operator of
higher order. The mode under which specs run (`trace.make_mode`) meets that operator here and runs torch's own eager
implementation of it, so that the same semantics (scale, sharing of heads, zeros and -inf on rows without keys) are
traced, executed in float64, and shown. A BlockMask acts through its `mask_mod`; its list of blocks only says where
the function is False, which `left_out` checks.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

_PUBLIC = "torch.nn.attention.flex_attention"
_OPERATOR = "torch._higher_order_ops.flex_attention"


@dataclass(frozen=True)
class FlexCall:
    """One call of flex_attention as its operator saw it; `blocks` is the BlockMask as a tuple, mask_mod last."""

    shape: tuple[int, ...]  # of the queries
    score_mod: Callable[..., Any]
    mask_mod: Callable[..., Any]
    blocks: tuple[Any, ...]


_watchers: list[list[FlexCall]] = []


@contextmanager
def watching() -> Generator[list[FlexCall]]:
    """The calls of flex_attention made meanwhile."""
    seen: list[FlexCall] = []
    _watchers.append(seen)
    try:
        yield seen
    finally:
        _watchers.remove(seen)


def is_flex(function: Any) -> bool:
    """True for the operator behind flex_attention."""
    operators = sys.modules.get(_OPERATOR)  # not loaded: nobody calls it
    return operators is not None and function is operators.flex_attention


def dense(
    query: Any, key: Any, value: Any, score_mod: Any, blocks: tuple[Any, ...], scale: float, options: Any, *buffers: Any
) -> Any:
    """torch's eager flex_attention: output, logsumexp and row maximum (the latter two over ln 2)."""
    operators = sys.modules[_OPERATOR]
    for seen in _watchers:
        seen.append(FlexCall(tuple(query.shape), score_mod, blocks[-1], blocks))
    return operators.math_attention(query, key, value, score_mod, blocks, scale, options, *buffers)


@contextmanager
def uncompiled() -> Generator[None]:
    """Functions under torch.compile run as plain Python, and flex_attention calls its operator without compiling it."""
    import torch

    public: Any = sys.modules.get(_PUBLIC)
    switch = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if public is not None:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # "called without torch.compile": on purpose
            stack.callback(setattr, public, switch, getattr(public, switch))
            setattr(public, switch, True)
        yield


def load_flex() -> Any:
    """The module of flex_attention; its import takes a second, which is not the user's."""
    return importlib.import_module(_PUBLIC)


def is_block_mask(value: Any) -> bool:
    """True for a BlockMask."""
    public: Any = sys.modules.get(_PUBLIC)
    return public is not None and isinstance(value, public.BlockMask)


def any_length(mask: Any) -> None:
    """Let a BlockMask that was made for fixed lengths stand for its mask_mod at any lengths (in place).

    flex_attention takes a mask of one enormous block, as it makes for calls without one, at all lengths.
    """
    mask.BLOCK_SIZE = (1 << 30, 1 << 30)


def left_out(mask_mod: Callable[..., Any], blocks: tuple[Any, ...]) -> str:
    """Which keys a BlockMask treats otherwise than its mask_mod, in words; empty when there are none.

    A kernel that goes by the blocks skips those not listed, and does not ask the mask_mod in those listed as full.
    """
    flex = load_flex()
    lengths, (partial, columns, full, full_columns), size = blocks[:2], blocks[2:6], blocks[-3:-1]
    if size[0] >= 1 << 30:
        return ""
    batch, heads = partial.shape[:2]
    true = flex.create_block_mask(mask_mod, batch, heads, *lengths, device="cpu", BLOCK_SIZE=tuple(size))

    def listed(counts: Any, indices: Any) -> Any:
        return flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=tuple(size)).to_dense().bool()

    whole = listed(true.full_kv_num_blocks, true.full_kv_indices)
    needed = listed(true.kv_num_blocks, true.kv_indices) | whole
    claimed = listed(full, full_columns) if full is not None else whole & False
    visited = listed(partial, columns) | claimed
    if (needed & ~visited).any():
        return "it leaves out blocks in which its mask_mod keeps keys"
    if (claimed & ~whole).any():
        return "it lists blocks as full in which its mask_mod drops keys"
    return ""

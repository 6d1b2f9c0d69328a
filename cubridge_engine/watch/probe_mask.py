"""Which keys are attended, by the weights that are zero: a band of distances, its first keys, or blocks, by value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .model import Array

_VISIBLE = 2e-5  # a weight that a formula says is at least this, and that is 0, is masked
_MOST_FIRST = 64


@dataclass(frozen=True, slots=True)
class Keep:
    """A mask: ``low <= j - i <= high`` (None: no end) or ``j < first``, and within blocks of `block` keys where that is
    not 0. `diagonal` is the key that query 0 is aligned with, `alike` what the problem cannot tell from it.
    """

    name: str
    diagonal: int = 0
    low: int | None = None
    high: int | None = None
    first: int = 0
    block: int = 0
    alike: tuple[str, ...] = ()


def mask_of(keep: Keep, sq: int, sk: int) -> Array:
    """True where a key is attended, ``[Sq, Sk]``."""
    i, j = np.arange(sq)[:, None], np.arange(sk)[None]
    distance = j - i
    found = (distance <= keep.high) if keep.high is not None else np.ones((sq, sk), bool)
    if keep.low is not None:
        found = found & ((distance >= keep.low) | (j < keep.first))
    if keep.block:
        found = found & ((i + keep.diagonal) // keep.block == j // keep.block)
    return found


def keep_of(weights: Array, predicted: Array, sq: int, sk: int) -> Keep | None:
    """The mask of weights ``[H, Sq, Sk]``, with `predicted` the weights if every key were attended. The same for all
    heads. None where it is none of these, or where a border of it was not seen on both sides.
    """
    seen = np.asarray((weights > 0).any(0))
    hidden = np.asarray(((weights == 0) & (predicted > _VISIBLE)).any(0))
    if (seen & hidden).any() or not seen.any():
        return None
    return _band(seen, hidden, sq, sk) or _blocks(seen, hidden, sq, sk)


def _band(seen: Array, hidden: Array, sq: int, sk: int) -> Keep | None:
    j = np.arange(sk)[None]
    distance = j - np.arange(sq)[:, None]
    for first in range(min(_MOST_FIRST, sk - 1)):
        rest = seen & (j >= first)
        if not rest.any():
            return None
        low, high = int(distance[rest].min()), int(distance[seen].max())
        masked_below, masked_above = hidden & (distance < low), hidden & (distance > high)
        bounded = bool(masked_below.any()), bool(masked_above.any())
        found = Keep("", 0, low if bounded[0] else None, high if bounded[1] else None, first if bounded[0] else 0)
        if (mask_of(found, sq, sk) & hidden).any() or (~mask_of(found, sq, sk) & seen).any():
            continue
        # Both sides of a border must have been seen: the last that counts and the first that does not.
        edges = [not bounded[0] or bool((hidden & (distance == low - 1)).any())]
        edges += [not bounded[1] or bool((hidden & (distance == high + 1)).any())]
        edges += [not first or bool((hidden & (j == first)).any())]
        return _named(found, sq, sk) if all(edges) else None
    return None


def _named(found: Keep, sq: int, sk: int) -> Keep | None:
    off, low, high = sk - sq, found.low, found.high
    names = {None: ("full", 0), 0: ("causal", 0), -1: ("strict causal", 0)}
    if off:
        names |= {off: ("causal bottom-right", off), off - 1: ("strict causal bottom-right", off)}
    name, diagonal = names.get(high, ("", 0))
    if low is None:
        return Keep(name or f"j <= i {_signed(high)}", diagonal, low, high, 0, 0, _alike_causal(name, off))
    tail = f" and the first {found.first} keys" if found.first else ""
    if name and high is not None and name != "full":
        text = f"{name} window of {high - low + 1}{tail}"
    elif high is None:
        text = ("anti-causal" if low == 0 else f"j >= i {_signed(low)}") + tail
    else:
        text = f"window i {_signed(low)} .. i {_signed(high)}{tail}"
    return Keep(text, diagonal, low, high, found.first, 0, _alike_causal(name, off))


def _signed(n: int | None) -> str:
    return f"- {-n}" if n is not None and n < 0 else f"+ {n}"


def _alike_causal(name: str, off: int) -> tuple[str, ...]:
    return (f"{name} bottom-right",) if "causal" in name and not off else ()


def _blocks(seen: Array, hidden: Array, sq: int, sk: int) -> Keep | None:
    """Blocks of keys, alone or under a causal border; None where more than one size fits."""
    off = sk - sq
    found: list[Keep] = []
    for high, word in ((None, ""), (0, "causal "), (off, "causal bottom-right ")):
        for diagonal in dict.fromkeys((0, off)):
            for block in range(2, sk):
                keep = Keep(f"{word}blocks of {block}", diagonal, None, high, 0, block)
                mask = mask_of(keep, sq, sk)
                if not (mask & hidden).any() and not (~mask & seen).any():
                    found.append(keep)
        if found:
            break
    return found[0] if len(found) == 1 else None

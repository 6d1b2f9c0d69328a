"""Registers that hold elements of Q, K or V as they are: by exact bits, pairs of halves where elements have 16.

A single 16-bit value occurs many times in a tensor; two neighbours together hardly ever do. Neighbours lie along a row,
or along a column where ldmatrix transposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..simulate.tensors import bits_of
from .match import LEAST, Match
from .model import Array, Problem
from .observed import Observed
from .tables import Table

_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class _Exact:
    """Words of a tensor, sorted, and the element each starts at."""

    table: Table
    words: Array
    index: Array

    def find(self, words: Array) -> tuple[Array, Array]:
        at = np.clip(np.searchsorted(self.words, words), 0, len(self.words) - 1)
        return self.words[at] == words, self.index[at]


def _exact(role: str, x: Array, dtype: str) -> _Exact:
    bits = bits_of(x, dtype)
    flat = np.arange(x.size).reshape(x.shape)
    table = Table(role, "", x, 0.0, 0.0)
    if dtype == "float32":
        words, index = bits.view(np.uint32).ravel(), flat.ravel()
    else:
        half = bits.view(np.uint16).astype(np.uint32)
        rows = (half[..., :-1] | half[..., 1:] << np.uint32(16)).ravel()
        columns = (half[..., :-1, :] | half[..., 1:, :] << np.uint32(16)).ravel()
        words = np.concatenate([rows, columns])
        index = np.concatenate([flat[..., :-1].ravel(), flat[..., :-1, :].ravel()])
    order = np.argsort(words, kind="stable")
    return _Exact(table, words[order], index[order])


def match_inputs(observed: Sequence[Observed], problem: Problem, null: Problem) -> list[Match]:
    """The observations that hold Q, K or V. `null` has other inputs of the same sizes."""
    exact = problem.dtype == "float32"
    finders = [_exact(r, x, problem.dtype) for r, x in zip("QKV", (problem.q, problem.k, problem.v), strict=True)]
    others = [_exact(r, x, problem.dtype) for r, x in zip("QKV", (null.q, null.k, null.v), strict=True)]
    found: list[Match] = []
    for one in observed:
        if one.bits.dtype.itemsize != 4 or one.half != (-1 if exact else 0):
            continue
        for finder, other in zip(finders, others, strict=True):
            match = _match(one, finder, other)
            if match is not None:
                found.append(match)
                break
    return found


def _match(one: Observed, finder: _Exact, other: _Exact) -> Match | None:
    ok = one.active & (one.bits != 0)
    live = np.flatnonzero(ok.sum(1) >= LEAST)
    if not len(live):
        return None
    ok, bits = ok[live], one.bits[live]
    hit, index = finder.find(bits)
    hit &= ok
    good = hit.sum(1) >= _SHARE * ok.sum(1)
    hit, index, ok, bits = hit[good], index[good], ok[good], bits[good]
    distinct = len(np.unique(bits[hit]))
    if distinct < 8:
        return None
    null = float(other.find(bits[hit])[0].mean())
    if null > 0.2:
        return None
    return Match(
        one, finder.table, live[good], len(hit) / len(live), hit, index, int(hit.sum()), int(ok.sum()), distinct, null
    )

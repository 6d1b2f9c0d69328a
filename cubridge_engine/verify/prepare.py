"""Inputs and reference of each grid case, in the dtype asked for. Runs in a worker: torch does the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..spec import evaluate_attention, make_inputs, reference
from ..spec.attention import Attention, TensorOutput
from ..spec.formula import keep_mask
from .grid import Case
from .inputs import Tile, outputs_by_role, roles, to_numpy, twist
from .weights import score_slack

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One case ready to run: tensors in argument order, the same by role, the reference, and the rows without a key.

    `o` ``[B, H, Sq, D]`` and `lse` ``[B, H, Sq]`` are float64; weights that are no softmax have no `lse`.
    `by_formula`: the spec itself could not run at these sizes.
    """

    case: Case
    dtype: str
    tensors: list[Any]
    roles: Mapping[str, Array]
    o: Array
    lse: Array | None
    dead: Array | None
    free_lse: Array | None = None  # rows whose LSE nobody asked for
    by_formula: str = ""
    slack: Array | None = None  # of O's shape: what rounding the raw products may move weights that are no softmax
    tiles: Mapping[str, Array] | None = None  # lists of tiles as a caller passed them; None: made as callers should
    tables: Mapping[str, Array] | None = None  # of pages, as a caller passed them with k and v in pages; None: made too


@dataclass(slots=True)
class Preparer:
    """Makes and keeps `Prepared` cases of one spec. `program` is what reading the spec returned."""

    attention: Attention
    program: Any
    tile: Tile
    made: dict[tuple[Case, str], Prepared] = field(default_factory=dict)

    def get(self, case: Case, dtype: str) -> Prepared:
        """The case in `dtype`; the reference uses the rounded inputs.

        'float64' stands for exact arithmetic on inputs of the spec's own dtype: a spec may ask for ``finfo(q.dtype)``.
        """
        key = (case, dtype)
        if key not in self.made:
            self.made[key] = self._make(case, dtype)
        return self.made[key]

    def _make(self, case: Case, dtype: str) -> Prepared:
        own = self.attention.input("q").dtype
        tensors = make_inputs(self.attention, case.sizes, own if dtype == "float64" else dtype, case.seed)
        tensors = twist(self.attention, tensors, case, self.tile)
        arrays = [to_numpy(tensor) for tensor in tensors]
        o, lse = formula(self.attention, arrays)
        # A row of no weight at all: every key masked to -inf, and no sink.
        dead = np.isneginf(lse)
        why = ""
        try:
            want = outputs_by_role(self.attention, reference(self.program, tensors))
        except Exception as error:  # the user's code, at sizes it may not have been written for
            want = {}
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        if dtype not in ("float64", own) and not why and not _agree(want["o"], o):
            # A spec may ask for finfo(q.dtype): then its meaning in its own dtype, which was read, is what the kernel
            # gives.
            want, why = {}, "it means something else in that dtype"
        by_role = roles(self.attention, tensors)
        exact = dtype == "float64" or self.attention.normaliser == "softmax"
        return Prepared(
            case,
            dtype,
            tensors,
            by_role,
            want.get("o", o),
            want.get("lse", lse if self.attention.normaliser == "softmax" else None),
            dead if dead.any() else None,
            None if "lse" in want else self._free_lse(lse, arrays, case),
            why,
            None if exact else score_slack(self.attention, arrays, by_role),
        )

    def _free_lse(self, lse: Array, arrays: list[Array], case: Case) -> Array | None:
        """Rows that only hold a finite fill, where the spec returns no LSE: any value will do."""
        if self.attention.sink is not None:
            return None
        filled = ~keep_mask(self.attention, arrays, case.sizes).any(axis=3) & np.isfinite(lse)
        return filled if filled.any() else None


def _agree(a: Array, b: Array) -> bool:
    return bool(np.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True))


def formula(attention: Attention, arrays: list[Array]) -> tuple[Array, Array]:
    """O ``[B, H, Sq, Dv]`` and LSE ``[B, H, Sq]`` of an Attention on NumPy inputs in the order of its inputs."""
    o, lse = evaluate_attention(replace(attention, outputs=_BOTH), arrays)
    return o, lse


_BOTH = (
    TensorOutput("o", ("b", "h", "i", "d"), "float64", 0),
    TensorOutput("lse", ("b", "h", "i"), "float64", 1),
)

"""The function as a whole, with the attention that was read in the place of its core, against the function itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import Attention
from .check import TOLERANCE, CheckFailed
from .core import Core, Trace, Values, arguments_of, leaf_values
from .formula import evaluate_attention
from .interpret import run
from .lengths import real_arguments
from .program import brief
from .reference import array_of, in_float64, named_like, reference

_SMALL = 350  # the reference takes time with the square of a length
_SIZES = 2  # how many different sizes have to agree


def check_whole(core: Core, attention: Attention) -> CheckFailed | None:
    """Why the function with the attention in it is not the function; None where the outputs are equal at two sizes.

    All arithmetic is in float64; masks given as arguments have a row without keys.
    """
    agreed = 0
    failure: Exception | None = None
    for n, values in enumerate(_lengths(core)):
        try:
            trace = core.whole.at(values)
            inputs = real_arguments(core.whole.program, core.whole.lengths, values, seed=n + 1, empty_rows=True)
            want = reference(core.whole.program, inputs)
            got = with_attention(core, trace, attention, inputs)
        except Exception as error:  # the user's code, at sizes it may not have been written for
            failure = failure or error
            continue
        reason = _difference(got, want)
        if reason:
            return CheckFailed(_named(core, values), reason)
        agreed += 1
        if agreed == _SIZES or not core.whole.lengths:
            return None
    if agreed:
        return None
    return CheckFailed(_named(core, core.whole.base), brief(failure) if failure else "it never ran")


def _lengths(core: Core) -> Iterator[Values]:
    """The example's, then small ones that differ from each other.

    The example's are what the user chose, and no two sizes are equal there by our doing. Of the others, those where the
    core was checked come first: the function is traced there already.
    """
    base = core.whole.base
    yield base
    yield from [v for v in core.whole.traces if v != base and max(v, default=0) <= _SMALL]
    yield core.with_tables([b + 1 if b < 8 else min(b, 33) - n for n, b in enumerate(base)])
    yield core.with_tables([max(1, b - 1) if b < 8 else min(b, 21) + n for n, b in enumerate(base)])


def _named(core: Core, values: Values) -> dict[str, int]:
    names = core.whole.program.tensor_names
    return {f"{names[f.first[0]]}.shape[{f.first[1]}]": v for f, v in zip(core.whole.lengths, values, strict=True)}


def with_attention(core: Core, trace: Trace, attention: Attention, inputs: Sequence[Any]) -> list[Any]:
    """Outputs of the function in float64, with `attention` evaluated in the place of each of its cores."""

    def outputs(tensors: Sequence[Any]) -> list[Any]:
        known = arguments_of(trace.graph, tensors)
        for cut in trace.cuts:
            arrays = [array_of(t) for t in leaf_values(cut, known)]
            result = evaluate_attention(attention, arrays)
            for node, array in zip(cut.outputs, result, strict=True):
                known[node] = named_like(array, node.meta["val"].dtype)
        return run(trace.graph, trace.graph.outputs, known)

    return in_float64(outputs, core.whole.program.path, inputs)


def _difference(got: Sequence[Any], want: Sequence[Any]) -> str:
    """In which way two lists of tensors differ; empty where they are equal."""
    for n, (x, y) in enumerate(zip(got, want, strict=True)):
        a: NDArray[Any] = x.numpy()
        b: NDArray[Any] = y.numpy()
        if a.shape != b.shape:
            return f"output {n} has shape {b.shape}, not {a.shape}"
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return f"NaN or infinity in other places of output {n}"
        finite = np.isfinite(a)
        if not finite.any():
            continue
        error = float(np.abs(a[finite].astype(float) - b[finite].astype(float)).max())
        if error > TOLERANCE * max(1.0, float(np.abs(b[finite]).max())):
            return f"output {n} differs by {error:.3g}"
    return ""

"""From numbers seen in several calls to what they are: a size, a stride, a scale, an expression, a constant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..compile.size_text import evaluate_size
from .samples import Sample

LOG2E = math.log2(math.e)
SIZE_ROLES = ("B", "H", "Hkv", "Sq", "Sk", "D")
_TILES = (16, 32, 64, 128, 256, 8, 4, 2, 96, 48, 80, 112, 192, 512, 1024)
_LEFT = ("Sq", "Sk", "B * H", "H", "B", "Hkv", "D")


def sizes_for(sample: Sample) -> dict[str, int]:
    """The sizes of a sample as size expressions name them."""
    return {"Dv": sample.sizes["D"], "element_bytes": 2, **sample.sizes}


def _terms() -> Iterator[str]:
    yield from SIZE_ROLES
    for length in ("Sq", "Sk"):
        yield from (f"cdiv({length}, {tile})" for tile in _TILES)
    yield from ("B * H", "H // Hkv", "B * Hkv", "B * Sq", "B * Sk", "H * D", "Hkv * D", "Sq * D", "Sk * D")
    for length in ("Sq", "Sk"):
        yield from (f"cdiv({length}, {tile}) * {tile}" for tile in (16, 32, 64, 128, 256))
        yield from (f"{length} // {tile}" for tile in _TILES)
    for length in ("Sq", "Sk"):
        for product in ("B * H", "H", "B", "Hkv", "B * Hkv", "H // Hkv"):
            yield f"{product} * {length}"
            yield f"{product} * {length} * D"
            yield from (f"cdiv({length}, {tile}) * {product}" for tile in _TILES)
            yield from (f"cdiv({product} * {length}, {tile})" for tile in _TILES)
    yield from ("Sq * H * D", "Sk * Hkv * D", "Sk - Sq", "Sq * Sk", "B * H * Sq * Sk", "B * H * Sq * D", "D // 2")
    yield from (f"cdiv(D, {tile})" for tile in _TILES)
    yield from (f"cdiv(B * H * Sq * D, {tile})" for tile in _TILES)


TERMS = tuple(dict.fromkeys(_terms()))


def fit_int(values: Sequence[int], samples: Sequence[Sample], prefer: Sequence[str] = ()) -> str | None:
    """The simplest size expression that gives every value; a constant when they are one number; None when none does.

    `prefer` are expressions to try first. A size that did not change over the samples is never an answer: nothing
    tells it from a constant.
    """
    tables = [sizes_for(sample) for sample in samples]
    for text in prefer:
        if _agrees(text, values, tables):
            return text
    if len(set(values)) == 1:
        return str(values[0])
    for text in TERMS:
        if _agrees(text, values, tables):
            return text
    return _linear(values, tables)


def _agrees(text: str, values: Sequence[int], tables: Sequence[Mapping[str, int]]) -> bool:
    try:
        return all(evaluate_size(text, table) == value for value, table in zip(values, tables, strict=True))
    except (ValueError, KeyError, ZeroDivisionError):
        return False


def _linear(values: Sequence[int], tables: Sequence[Mapping[str, int]]) -> str | None:
    """``a * term + b`` that three different values of the term agree on."""
    for text in TERMS:
        try:
            xs = [evaluate_size(text, table) for table in tables]
        except (ValueError, KeyError, ZeroDivisionError):
            continue
        pairs = sorted(set(zip(xs, values, strict=True)))
        if len({x for x, _ in pairs}) < 3 and not (text == "D" and len(pairs) == 2):
            continue
        (x0, y0), (x1, y1) = pairs[0], pairs[-1]
        if x1 == x0 or (y1 - y0) % (x1 - x0):
            continue
        a = (y1 - y0) // (x1 - x0)
        b = y0 - a * x0
        if a and all(a * x + b == y for x, y in pairs):
            return f"{a} * {text}" + (f" + {b}" if b > 0 else f" - {-b}" if b < 0 else "")
    return None


def fit_stride(values: Sequence[int], samples: Sequence[Sample], tensors: Sequence[str] = ()) -> str | None:
    """The role ``stride:q.row`` of values that follow a tensor's strides; of `tensors` where several do."""
    names = [name for name in samples[0].strides if all(name in s.strides for s in samples)]
    names.sort(key=lambda name: name.partition(".")[0] not in tensors)
    for name in names:
        if all(sample.strides[name] == value for sample, value in zip(samples, values, strict=True)):
            return f"stride:{name}"
    return None


def fit_float(values: Sequence[float], samples: Sequence[Sample]) -> str | None:
    """scale, scale_log2, or a constant as text; None when it is none of these."""
    for role, factor in (("scale", 1.0), ("scale_log2", LOG2E)):
        for own in ([s.scale for s in samples], [s.sizes["D"] ** -0.5 for s in samples]):
            if all(_close(value, base * factor) for value, base in zip(values, own, strict=True)):
                return role
    if all(_close(value, values[0]) for value in values):
        return repr(float(values[0]))
    return None


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=2e-6, abs_tol=1e-12)

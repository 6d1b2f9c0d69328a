"""Is what was read really what the package computes? Asked again without the reader: the harness's own inputs at sizes
and seeds that the reader never saw, the package's code eagerly in float64, and the value's formula.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from cubridge_engine.ir.expr import Const, walk
from cubridge_engine.spec import SpecResult, evaluate_attention
from cubridge_engine.spec.check_whole import with_attention
from cubridge_engine.spec.core import arguments_of, leaf_values
from cubridge_engine.spec.formula import sizes_of
from cubridge_engine.spec.reference import in_float64

from .form import SIZES, Form

# Other head ratios, unequal lengths, longer than windows and tables are; then what is left when a form fixes them.
VARIANTS: tuple[dict[str, int], ...] = (
    {"B": 3, "H": 6, "Hkv": 3, "Sq": 33, "Sk": 57},
    {"B": 3, "H": 6, "Hkv": 6, "Sq": 57, "Sk": 33},
    {"B": 1, "H": 4, "Hkv": 2, "Sq": 1100, "Sk": 1100},
    {"B": 1, "H": 4, "Hkv": 4, "Sq": 1100, "Sk": 1100},
    {"B": 1, "H": 6, "Hkv": 3, "Sq": 71, "Sk": 71},
    {"B": 1, "H": 5, "Hkv": 5, "Sq": 71, "Sk": 71},
    {"B": 3, "Sq": 71, "Sk": 71},
    {"B": 3, "Sq": 128, "Sk": 128},
    {"B": 3},
    {},
)
COMPARED = 4
# Relative to the largest output. Float64 sides differ by the order of sums and by float32 steps a package insists on.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-4}


class Different(Exception):
    """The value and the package's code disagree; the text says where."""


def load(path: str) -> ModuleType:
    """The spec file as a fresh module."""
    name = "corpus_form"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    kept = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = kept
    return module


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value or ()
    return [t for item in items for t in flat(item)]


def recheck(form: Form, path: str, result: SpecResult) -> tuple[float, list[str]]:
    """The worst relative difference and the sizes compared. Raises Different, or ValueError when nothing could run."""
    baked = weights_in_formula(path, result)
    if baked:
        raise Different(f"weights are constants of the formula ({baked}): with other weights it is another function")
    worst, compared = 0.0, []
    for seed, sizes in enumerate(_sizes(form), start=11):
        if len(compared) == COMPARED:
            break
        errors: list[float] = []
        for dtype in (torch.float64, torch.float32):
            try:
                error = _difference(path, result, sizes, seed, dtype)
            except Different:
                raise
            except Exception:  # sizes or a dtype that the package itself does not take, or the value is not for
                continue
            errors.append(error)
            if error <= TOLERANCE[dtype]:
                worst = max(worst, error)
                break
        else:
            if errors:
                raise Different(f"at {_text(sizes)} the output differs by {min(errors):.3g}")
            continue
        compared.append(_text(sizes))
    if not compared:
        raise ValueError("the package's code ran at none of the other sizes")
    return worst, compared


def weights_in_formula(path: str, result: SpecResult) -> str:
    """Values of trainable weights that stand in the formula as numbers: a module that is trained on, or loads its
    state, would no longer be what was adapted.
    """
    attention = result.attention
    assert attention is not None
    parts = (attention.score, attention.mask, attention.sink, attention.divisor)
    numbers = {e.value for p in parts if p is not None for e in walk(p) if isinstance(e, Const)}
    modules = [m for m in vars(load(path)).values() if isinstance(m, torch.nn.Module)]
    weights = [w.detach().flatten().double() for m in modules for w in m.parameters()]
    if not weights:
        return ""
    values = torch.cat(weights)
    odd = [x for x in numbers if isinstance(x, float) and np.isfinite(x) and not (x * 64).is_integer()]
    return ", ".join(f"{x:.6g}" for x in odd if bool((values == x).any()))


def _sizes(form: Form) -> Iterator[Mapping[str, int]]:
    own = {**SIZES, **form.sizes}
    seen: list[Mapping[str, int]] = []
    for variant in VARIANTS:
        sizes = {**own, **{n: v for n, v in variant.items() if n not in form.sizes or n in ("B", "Sq", "Sk")}}
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


class NotFor(Exception):
    """The value says itself that it is not for these sizes."""


def _difference(path: str, result: SpecResult, sizes: Mapping[str, int], seed: int, dtype: torch.dtype) -> float:
    module = load(path)
    values = [_cast(v, dtype) for v in module.inputs(**sizes, seed=seed)]
    got = _by_formula(result, values, sizes)
    for item in vars(module).values():
        if isinstance(item, torch.nn.Module):
            item.to(dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.no_grad():
            # A reading that says where it does not reproduce a rounding is held to all the rest.
            wide = any(d.code == "CB254" for d in result.attention.diagnostics) if result.attention else False
            call = lambda v: flat(module.attention(*v))  # noqa: E731
            expected = in_float64(call, path, values) if wide else call(values)
    finally:
        torch.set_default_dtype(before)
    worst = 0.0
    for place, mine in got.items():
        theirs = expected[place].double().numpy()
        if mine.shape != theirs.shape:
            raise Different(f"at {_text(sizes)} the output has shape {theirs.shape}, not {mine.shape}")
        if not np.array_equal(np.isfinite(mine), np.isfinite(theirs)):
            return float("inf")
        finite = np.isfinite(theirs)
        scale = max(1.0, float(np.abs(theirs[finite]).max(initial=0.0)))
        worst = max(worst, float(np.abs(mine - theirs)[finite].max(initial=0.0)) / scale)
    return worst


def _by_formula(result: SpecResult, values: list[Any], sizes: Mapping[str, int]) -> dict[int, Any]:
    """Outputs by place, from the value: alone, or between what the function does before and after its attention.

    Raises NotFor where the value excludes these sizes.
    """
    attention, program, core = result.attention, result.program, result.core
    assert attention is not None
    assert program is not None
    if core is None:
        arguments = dict(zip(program.names, [*values, *program.arguments[len(values) :]], strict=True))
        arrays = [
            arguments[item.name].double().numpy()
            if arguments[item.name].is_floating_point()
            else arguments[item.name].numpy()
            for item in attention.inputs
        ]
        if not attention.allows(sizes_of(attention, arrays)):
            raise NotFor
        outputs = evaluate_attention(attention, arrays)
        return {o.position: x for o, x in zip(attention.outputs, outputs, strict=True)}
    whole = core.whole
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    trace = whole.at(tuple(int(tensors[f.first[0]].shape[f.first[1]]) for f in whole.lengths))
    with torch.no_grad():
        found = leaf_values(trace.cuts[0], arguments_of(trace.graph, [_cast(t, torch.float32) for t in tensors]))
    if not attention.allows(core.sizes_of(found)):
        raise NotFor
    outputs = with_attention(core, trace, attention, [_cast(t, torch.float32) for t in tensors])
    return {n: x.double().numpy() for n, x in enumerate(outputs)}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value


def _text(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{n}={v}" for n, v in sizes.items())

"""The user's whole function with the kernel in it: the drop-in file run in torch, its kernel in the simulator.

The kernel itself was compared on the grid before. What this adds is the way in and out: which tensors the drop-in
passes, in which layout and order, and what it does with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, make
from ..results import WHOLE, CaseResult
from ..spec import evaluate_attention, reference
from ..spec.attention import Attention
from ..spec.dropin import DropIn
from ..spec.lengths import real_arguments
from ..transfer.tile_lists import COUNT, PARTIAL
from .bindings import tile_arrays
from .case_result import executed_case
from .grid import Case
from .inputs import CANONICAL, outputs_by_role, roles, to_numpy
from .instances import Instances
from .ir_level import number
from .measure import TOLERANCES, measure_lse, measure_o, row_errors
from .paged import gathered
from .prepare import Prepared
from .simulated_level import Launch, Plan, SimulatedJob, SimulatedOutcome, plans

Array = NDArray[Any]
WHY = "the user's whole function, with the kernel in the drop-in file"
MOST_ROUNDING = 4  # more than that times the tolerance is no rounding of q, k, v and o
LONGEST = 40  # a length of the example is cut to this: the simulator pays for every CTA


def add_whole(outcome: SimulatedOutcome, job: SimulatedJob, instances: Instances, drop_in: DropIn) -> None:
    """Run the whole function once and add its case, and what was found, to `outcome`."""
    plan = plans(instances, job.asynchronous)[0][0]
    kernel = SimulatedKernel(job, plan, drop_in.attention)
    if drop_in.core is not None:
        case, found = whole_case(drop_in, kernel, plan.instance.dtype)
    else:
        case, found = plain_case(drop_in, kernel, plan)
    outcome.cases.append(
        case.model_copy(update={"schedule": plan.name_of(plan.schedules[0]), "arch": job.compiled.arch})
    )
    outcome.diagnostics.extend((*kernel.found, *found))


def whole_case(drop_in: DropIn, kernel: Callable[..., Any], dtype: str) -> tuple[CaseResult, tuple[Diagnostic, ...]]:
    """The whole function with `kernel` against itself in float64.

    The error is relative to the largest value of each row of an output. It may be twice that of an exact attention on
    the same inputs rounded to `dtype`, and what is accepted of the kernel itself beside it.
    """
    assert drop_in.core is not None
    program, lengths = drop_in.program, drop_in.core.whole.lengths
    short = [f.base if f.base <= 2 else max(2, min(f.base, LONGEST) - n) for n, f in enumerate(lengths)]
    values = drop_in.core.with_tables(short)
    if not drop_in.attention.allows(drop_in.core.sizes_at(values)):
        values = drop_in.core.whole.base
    error, limit, reason, passed = float("inf"), TOLERANCES[dtype].relative, "", False
    try:
        inputs = real_arguments(program, lengths, values, seed=1)
        want = [to_numpy(t) for t in reference(program, inputs)]
        rounding = _error(drop_in.run(inputs, _exact(drop_in.attention, dtype, drop_in.paged)), want)
        error = _error(drop_in.run(inputs, kernel), want)
        passed = rounding <= MOST_ROUNDING * limit and error <= limit + 2 * rounding
        limit += 2 * min(rounding, MOST_ROUNDING * limit)
        reason = f"an error of {error:.3g} where {limit:.3g} is accepted"
        if rounding > MOST_ROUNDING * TOLERANCES[dtype].relative:
            reason = f"an error of {rounding:.3g} with an exact kernel already"
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
    case = CaseResult(
        name=WHOLE,
        why=WHY,
        level="simulated",
        sizes=drop_in.core.sizes_at(values),
        dtype=dtype,
        layout="as the drop-in passes them",
        schedule="",
        seed=1,
        worst_o=number(error),
        worst_lse=None,
        tolerance=limit,
        passed=passed,
    )
    span = drop_in.attention.spans.get("function")
    return case, () if passed else (make("CB725", span, reason=reason),)


def plain_case(drop_in: DropIn, kernel: Callable[..., Any], plan: Plan) -> tuple[CaseResult, tuple[Diagnostic, ...]]:
    """The drop-in of a spec that is the attention alone: its list of tiles on all cases of the grid, and one of them
    again with `kernel`, by this way in.
    """
    dtype, prepared = plan.instance.dtype, telling_case(plan)
    o, lse, reason = np.full(prepared.o.shape, np.nan), None, ""
    try:
        _check_lists(drop_in, plan)
        got = outputs_by_role(drop_in.attention, drop_in.run(prepared.tensors, kernel))
        if got.get("o", o).shape != o.shape:
            raise ValueError(f"the output has the shape {got['o'].shape}, not {o.shape}")
        o, lse = got.get("o", prepared.o), got.get("lse")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    measures = [measure_o(o, prepared.o, dtype, prepared.dead, "keep", prepared.slack)]
    if lse is not None and prepared.lse is not None:
        measures.append(measure_lse(lse, prepared.lse, dtype, prepared.dead, "keep", prepared.free_lse))
    named = replace(prepared, case=replace(prepared.case, name=WHOLE, why=WHY))
    case = executed_case(named, "simulated", dtype, "", measures, not reason)
    case = case.model_copy(update={"layout": "as the drop-in passes them"})
    reason = reason or f"an error of {measures[0].worst:.3g} where {measures[0].tolerance:.3g} is accepted"
    span = drop_in.attention.spans.get("function")
    return case, () if case.passed else (make("CB725", span, reason=reason),)


def checked_tiles(tensors: Sequence[Any], wanted: Mapping[str, Array]) -> dict[str, Array]:
    """The lists of tiles as the caller made them; `wanted` are those that the grid ran with. Raises TypeError,
    ValueError.
    """
    if len(tensors) != len(wanted) or any(str(t.dtype) != "torch.int32" for t in tensors):
        raise TypeError(f"the kernel takes {len(wanted)} int32 lists of tiles after its inputs")
    made = {name: t.numpy() for name, t in zip(wanted, tensors, strict=True)}
    for name, tiles in made.items():
        if not np.array_equal(tiles, wanted[name]):
            raise ValueError(f"{name} is not the list that follows from the mask")
    return made


def _check_lists(drop_in: DropIn, plan: Plan) -> None:
    """Call the drop-in on all cases but the long ones, with a kernel that only looks at the list."""
    import torch

    lse = any(output.role == "lse" for output in drop_in.attention.outputs)
    for case in plan.cases:
        if case.long:
            continue
        prepared = plan.problem.preparer.get(case, plan.instance.dtype)
        wanted = tile_arrays(plan.problem.binding, prepared.roles, case.sizes)

        def kernel(*tensors: Any, wanted: Mapping[str, Array] = wanted, o: Array = prepared.o) -> Any:
            checked_tiles(tensors[len(drop_in.attention.inputs) :], wanted)
            result = torch.zeros(o.shape)
            return (result, torch.zeros(o.shape[:3])) if lse else result

        drop_in.run(prepared.tensors, kernel)


def telling_case(plan: Plan) -> Prepared:
    """The problem whose list has most kinds of tiles (left out, tested, attended whole); of several the smallest with
    more than one tile of keys.
    """
    kernel, binding = plan.problem.kernel, plan.problem.binding

    def rank(prepared: Prepared) -> tuple[int, bool, int]:
        case = prepared.case
        kinds = 0
        for tiles in tile_arrays(binding, prepared.roles, case.sizes).values():
            rows = tiles.reshape(-1, tiles.shape[-1])
            count, partial = rows[:, COUNT], rows[:, PARTIAL]
            left_out = count < -(-case.Sk // kernel.Bc)
            kinds += sum(bool(kind.any()) for kind in (left_out, partial > 0, partial < count))
        few = case.Sq == 0 or case.Sk <= kernel.Bc
        return -kinds, few, case.B * case.H * case.Sq * case.Sk

    return min((plan.problem.preparer.get(c, plan.instance.dtype) for c in plan.cases if not c.long), key=rank)


def _error(got: Sequence[Any], want: Sequence[Array]) -> float:
    worst = 0.0
    for x, y in zip(got, want, strict=True):
        have = to_numpy(x)
        if have.shape != y.shape:
            return float("inf")
        worst = max(worst, float(row_errors(have, y, 1e-12).max(initial=0.0)))
    return worst


def with_four_axes(attention: Attention) -> Attention:
    """The attention on q, k, v of [B, H, S, D], as a drop-in passes them."""
    inputs = tuple(
        item if item.role == "operand" else replace(item, axes=_FOUR[item.role]) for item in attention.inputs
    )
    return replace(attention, inputs=inputs, outputs=(replace(attention.outputs[0], axes=CANONICAL["o"]),))


_FOUR = {"q": CANONICAL["q"], "k": CANONICAL["k"], "v": CANONICAL["v"]}


def _exact(attention: Attention, dtype: str, paged: bool) -> Callable[..., Any]:
    """A kernel without error, but for the rounding of its inputs and its output. `paged`: it takes k and v in pages."""
    import torch

    kind: Any = getattr(torch, dtype)
    four = with_four_axes(attention)

    def kernel(*tensors: Any) -> Any:
        rounded = [t.to(kind) if t.dtype.is_floating_point else t for t in tensors[: len(four.inputs)]]
        arrays = [to_numpy(t) for t in rounded]
        if paged:
            table = tensors[len(four.inputs)].numpy()
            arrays = [gathered(a, table) if i.role in "kv" else a for a, i in zip(arrays, four.inputs, strict=True)]
        result = evaluate_attention(four, arrays)[0]
        if attention.empty_rows == "nan":
            result = np.where(np.isnan(result), 0.0, result)
        return torch.from_numpy(result).to(kind).to(tensors[0].dtype)

    return kernel


@dataclass
class SimulatedKernel:
    """The kernel's PTX as a function of torch tensors: the inputs, and the list of tiles where it takes one."""

    job: SimulatedJob
    plan: Plan
    attention: Attention
    found: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def __call__(self, *tensors: Any) -> Any:
        import torch

        dtype = self.plan.instance.dtype
        kind: Any = getattr(torch, dtype)
        own = self.attention.input("q").dtype
        four = with_four_axes(self.attention)
        binding = self.plan.problem.binding
        count = len(four.inputs)
        paged = {name: tensors[count + n].numpy() for n, name in enumerate(binding.pages)}
        given = [
            t.to(kind) if str(t.dtype) == f"torch.{own}" or i.role != "operand" else t
            for t, i in zip(tensors[:count], four.inputs, strict=True)
        ]
        problem = replace(self.plan.problem, attention=four)
        q, k, v = (given[[i.role for i in four.inputs].index(r)] for r in "qkv")
        keys = next((table.shape[1] * k.shape[2] for table in paged.values()), k.shape[2])
        case = Case(WHOLE, WHY, q.shape[0], q.shape[1], k.shape[1], q.shape[2], keys, q.shape[3])
        case = replace(case, Dv=v.shape[3])
        o = np.zeros((*q.shape[:3], v.shape[3]))
        by_role = roles(four, given)
        tiles = checked_tiles(tensors[count + len(paged) :], tile_arrays(binding, by_role, case.sizes))
        prepared = Prepared(case, dtype, given, by_role, o, None, None, tiles=tiles, tables=paged or None)
        launch = Launch(self.job, self.job.module(), replace(self.plan, problem=problem), prepared, self._schedule())
        run, refused = launch.start(False, lambda _done: None)
        self.found += [*refused, *(run.findings if run is not None else ())]
        result = torch.from_numpy(launch.output(run)).to(kind).to(tensors[0].dtype)
        if all(output.role == "o" for output in self.attention.outputs):
            return result
        lse = run.outputs.get("LSE") if run is not None else None
        return result, torch.from_numpy(np.full(q.shape[:3], np.nan) if lse is None else lse.astype(np.float64))

    def _schedule(self) -> Any:
        return self.plan.schedules[0]

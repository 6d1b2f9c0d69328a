"""Level ``gpu``: the whole grid on a device, for every instantiation, with poisoned outputs, guard zones and unchanged
inputs.

Runs in a worker process of its own: a kernel that faults takes the CUDA context with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..compile import Compiled, Contract, Instance
from ..device import DeviceInfo, Runner, open_runner
from ..device.binding import sizes_of
from ..diagnostics import Diagnostic, Severity, make
from ..results import CaseResult
from .bindings import tile_arrays
from .case_result import executed_case
from .contracts import by_member
from .grid import LAYOUTS, Case
from .inputs import canonical_view, to_numpy
from .instances import AtHeadDim
from .ir_level import sizes_text
from .measure import Measure, measure_lse, measure_o
from .paged import in_pages, table_for, tables
from .placement import placement
from .prepare import Prepared
from .simulated_tensors import element_types

if TYPE_CHECKING:
    import torch

GUARD = 64  # elements before and after an output that must keep their pattern


@dataclass(slots=True)
class GpuOutcome:
    """What the device did."""

    cases: list[CaseResult] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    device: DeviceInfo | None = None
    kept: int = 0

    @property
    def passed(self) -> bool:
        """True when every case ran and passed."""
        errors = any(d.severity is Severity.ERROR for d in self.diagnostics)
        return bool(self.cases) and not errors and all(case.passed for case in self.cases)


@dataclass(frozen=True, slots=True)
class GpuJob:
    """What stays the same over the grid; `problems` by head dimension."""

    contract: Contract
    compiled: Compiled
    problems: Mapping[int, AtHeadDim]
    empty_rows: str


def run_gpu(
    job: GpuJob,
    instances: Sequence[Instance],
    rounds: int,
    tick: Callable[[int, int, str], None],
    *,
    stop_after: int = 3,
) -> GpuOutcome:
    """Run each instance over its grid `rounds` times with other inputs. Stops after a lost device or some failures."""
    outcome = GpuOutcome()
    runner, problems = open_runner(job.compiled)
    outcome.diagnostics.extend(problems)
    if runner is None:
        return outcome
    outcome.device = runner.device
    plan = [
        (i, c, r)
        for i in instances
        for r in range(rounds)
        for c in job.problems[i.head_dim].cases
        if not (c.long and r)
    ]
    failures = 0
    try:
        for done, (instance, case, round_number) in enumerate(plan):
            tick(done, len(plan), f"{instance.dtype} D={instance.head_dim} {case.name}")
            seeded = _seeded(case, round_number)
            result, findings = _run_case(runner, job, instance, seeded)
            outcome.diagnostics.extend(findings)
            if result is not None:
                outcome.cases.append(result)
                outcome.kept += result.kept_rows
            failures += 0 if result is not None and result.passed else 1
            if runner.lost or failures >= stop_after:
                break
    finally:
        runner.close()
    return outcome


def _seeded(case: Case, round_number: int) -> Case:
    return replace(case, seed=case.seed + 1000 * round_number)


@dataclass(slots=True)
class _Buffer:
    """A tensor inside a larger allocation, whose margins hold a pattern."""

    view: torch.Tensor
    whole: torch.Tensor
    before: torch.Tensor

    def intact(self) -> bool:
        """True when nothing outside the view has changed (compared as bits: the pattern may be NaN)."""
        import torch

        width = {2: torch.int16, 4: torch.int32}[self.whole.element_size()]
        now = self.whole.clone()
        now.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).copy_(
            self.before.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
        )
        return bool((now.view(width) == self.before.view(width)).all())


def _placed(shape: Sequence[int], layout: str, dtype: Any, fill: float) -> _Buffer:
    """A ``[B, H, S, D]`` view with that layout in guarded memory filled with `fill` (NaN: poison)."""
    import torch

    b, h, s, d = shape
    width = d + 8 if layout == "padded" else d  # a row padded by 16 bytes of fp16 keeps its alignment
    total = b * h * s * width + 2 * GUARD
    whole = torch.full((total,), fill, dtype=dtype, device="cuda")
    strides = (s * h * width, width, h * width, 1) if layout == "bshd" else (h * s * width, s * width, width, 1)
    view = whole.as_strided((b, h, s, d), strides, GUARD)
    return _Buffer(view, whole, whole.clone())


def _run_case(
    runner: Runner, job: GpuJob, instance: Instance, case: Case
) -> tuple[CaseResult | None, tuple[Diagnostic, ...]]:
    import torch

    problem = job.problems[instance.head_dim]
    prepared = problem.preparer.get(case, instance.dtype)
    types = element_types(job.contract, instance.dtype)
    layouts = LAYOUTS[case.layout]
    tensors: dict[str, Any] = {}
    buffers: dict[str, _Buffer] = {}

    def placed(role: str, shape: Sequence[int]) -> _Buffer:
        at = placement(problem.kernel, role, layouts[role], shape, case.sizes)
        return _placed(shape, at.layout, getattr(torch, types[role]), float("nan"))

    for item, tensor in zip(problem.attention.inputs, prepared.tensors, strict=True):
        if item.role == "operand":
            continue
        source = canonical_view(tensor, item.axes, item.role)
        for size in problem.binding.pages.values() if item.role != "q" else ():
            rows = in_pages(to_numpy(source), table_for(case.sizes, size), size)
            source = torch.from_numpy(rows).to(source.dtype)  # pyright: ignore[reportUnknownMemberType]
        width = problem.kernel.Dv if item.role == "v" else problem.kernel.D
        buffer = placed(item.role, (*source.shape[:3], width))
        buffer.view.zero_()[..., : source.shape[3]].copy_(source)
        buffer.before = buffer.whole.clone()
        tensors[item.role], buffers[item.role] = buffer.view, buffer
    out = placed("o", (case.B, case.H, case.Sq, problem.kernel.Dv))
    lse = torch.full((case.B * case.H * case.Sq + 2 * GUARD,), float("nan"), dtype=torch.float32, device="cuda")
    lse_view = lse[GUARD : GUARD + case.B * case.H * case.Sq].view(case.B, case.H, case.Sq)
    lse_buffer = _Buffer(lse_view, lse, lse.clone())
    tensors |= {"o": out.view, "lse": lse_view}
    values: dict[str, Any] = {**by_member(problem.binding.values), **_operand_bindings(job.contract, problem, prepared)}
    # Keys that lie in pages: how many there are is not an extent of the cache.
    sizes = {**sizes_of(tensors), "Sk": case.Sk}
    problems = runner.run(job.contract, instance, tensors, values, sizes)
    if problems:
        return None, tuple(problems)
    broken = [name for name, buffer in {"o": out, "lse": lse_buffer}.items() if not buffer.intact()]
    changed = [name for name, buffer in buffers.items() if not torch.equal(_bits(buffer.whole), _bits(buffer.before))]
    findings = [
        make("CB718", None, what=what, case=f"case '{case.name}' ({sizes_text(case)})")
        for what in (
            *(f"memory outside {name.upper()} was written" for name in broken),
            *(f"the input {name.upper()} was changed" for name in changed),
        )
    ]
    has_lse = any(p.role == "lse" for p in job.contract.leaves)
    return _measured(instance, prepared, out.view, lse_view, job.empty_rows, not findings, has_lse), tuple(findings)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _operand_bindings(contract: Contract, problem: AtHeadDim, prepared: Prepared) -> dict[str, Any]:
    """Extra tensors by parameter name, and their strides by the names the kernel gives them."""
    import torch

    by_name = {item.name: t for item, t in zip(problem.attention.inputs, prepared.tensors, strict=True)}
    values: dict[str, Any] = {}
    sizes = prepared.case.sizes
    lists = {**tile_arrays(problem.binding, prepared.roles, sizes), **tables(problem.binding.pages, sizes)}
    for parameter, array in lists.items():
        kind = next(p.type for p in contract.leaves if p.name == parameter)
        made = _converted(torch.from_numpy(array).to("cuda"), kind, prepared.dtype)
        values[parameter] = made
        values |= {s: int(made.stride(axis)) for s, axis in problem.binding.stride_params.get(parameter, {}).items()}
    for parameter, name in problem.binding.operands.items():
        tensor = by_name[name].to("cuda").contiguous()
        wanted = next(p for p in contract.leaves if p.name == parameter)
        values[parameter] = _converted(tensor, wanted.type, prepared.dtype)
        for stride_param, axis in problem.binding.stride_params.get(parameter, {}).items():
            values[stride_param] = int(tensor.stride(axis))
    return values


def _converted(tensor: torch.Tensor, kind: str, dtype: str) -> torch.Tensor:
    """The operand in the type that the kernel reads; values were made in that precision or a coarser one."""
    import torch

    types = {"T*": dtype, "float*": "float32", "half*": "float16", "bfloat16*": "bfloat16", "int32*": "int32"}
    types["int64*"] = "int64"
    name = types.get(kind)
    return tensor if name is None else tensor.to(getattr(torch, name))


def _measured(
    instance: Instance, prepared: Prepared, out: Any, lse: Any, empty_rows: str, clean: bool, has_lse: bool
) -> CaseResult:
    got_o, got_lse = to_numpy(out.cpu())[..., : prepared.o.shape[3]], to_numpy(lse.cpu())
    measures: list[Measure] = [measure_o(got_o, prepared.o, instance.dtype, prepared.dead, empty_rows, prepared.slack)]
    if prepared.lse is not None and has_lse:
        measures.append(
            measure_lse(got_lse, prepared.lse, instance.dtype, prepared.dead, empty_rows, prepared.free_lse)
        )
    return executed_case(prepared, "gpu", instance.dtype, "device", measures, clean)

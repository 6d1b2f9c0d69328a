"""`bench`: a kernel against eager, torch.compile, SDPA and FlexAttention on its spec. Runs in a worker process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from ..device.timing import Contender, relative_error, time_calls
from ..diagnostics import Diagnostic, make
from ..export import module_text
from ..ir.nodes import Kernel
from ..lower import parse_header
from ..results import ContenderResult, Measured
from ..spec.attention import Attention, widths_of
from ..spec.dropin import DropIn
from ..spec.dropin_padding import Padding
from ..spec.dropin_plain import plain_drop_in
from ..spec.inputs import make_inputs, shape_of
from ..spec.trace import flatten_outputs
from ..transfer.model import Operand
from ..verify.bindings import Given, bind_kernel
from ..verify.explain import Binding
from ..verify.stages import Progress, Stages
from .check import header_values
from .common import Loaded, diagnostic_dicts, exit_code, load, without_scales
from .drop_ins import make_drop_in
from .export import plan_of
from .files import Options, file_ref
from .peers import Call, NotForIt, Problem, flex, sdpa

SETS = 2  # of inputs, which take turns
OURS = "kernel"
LIMITS = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-3}  # of errors: relative, in the Frobenius norm
DEFAULTS = {"B": 4, "H": 32, "Sq": 4096, "Sk": 4096}
_OPERATOR = "bench_kernel"


@dataclass(frozen=True, slots=True)
class Request:
    """What is measured. `shape`: sizes, S for Sq and Sk; `dtype` None: the spec's; `rounds`: launches of each."""

    shape: Mapping[str, int] = field(default_factory=dict[str, int])
    dtype: str | None = None
    rounds: int = 30


class _Stop(Exception):
    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(slots=True)
class Bench:
    """Who takes part: calls for each set of inputs, results to compare with, and who cannot, with the reason."""

    dtype: str
    wanted: list[Any]
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    pairs: int | None = None
    calls: dict[str, list[Call]] = field(default_factory=dict[str, "list[Call]"])
    out: dict[str, str] = field(default_factory=dict[str, str])


def bench(
    kernel_path: str,
    spec_path: str,
    request: Request | None = None,
    options: Options | None = None,
    progress: Progress = lambda *_: None,
) -> Measured:
    """Measure. Never raises for what the files hold; CB650 to CB653 say why nothing was measured."""
    request, options = request or Request(), options or Options()
    options = replace(options, head_dim=request.shape.get("D", options.head_dim))
    diagnostics: list[Diagnostic] = []
    stages = Stages(("parse", "lift", "spec"), progress)
    done: Bench | None = None
    rows: tuple[ContenderResult, ...] = ()
    loaded: Loaded | None = None
    try:
        _needs_device()
        loaded = load(kernel_path, spec_path, options, (), stages, diagnostics)
        if loaded is not None and loaded.attention is not None and not loaded.failed:
            done = assemble(loaded, request, options, progress)
            rows = _measure(done, request.rounds, progress)
    except _Stop as stop:
        diagnostics.append(stop.diagnostic)
    return Measured.model_validate(
        {
            "command": "bench",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": tuple(stages.done),
            "exit_code": exit_code(diagnostics),
            "kernel": file_ref(kernel_path, loaded.data if loaded else None),
            "spec": file_ref(spec_path, loaded.spec_data if loaded else None),
            "kernel_name": loaded.lifted.kernel.name if loaded is not None and loaded.lifted is not None else None,
            "sizes": done.sizes if done is not None else {},
            "dtype": done.dtype if done is not None else "",
            "device": torch.cuda.get_device_name() if rows else "",
            "torch": torch.__version__,
            "rounds": request.rounds,
            "pairs": done.pairs if done is not None else None,
            "contenders": rows,
        }
    )


def _needs_device() -> None:
    if not torch.cuda.is_available():
        reason = "torch sees none" if torch.version.cuda else "this torch is built without CUDA"
        raise _Stop(make("CB650", None, reason=reason))


# ---- who takes part


def assemble(
    loaded: Loaded,
    request: Request,
    options: Options,
    progress: Progress,
    device: str = "cuda",
    operator: Callable[..., Any] | None = None,
) -> Bench:
    """Inputs, references and calls. `operator` stands for the exported kernel (default: made now). Raises _Stop."""
    assert loaded.attention is not None
    kernel, attention = loaded.lifted.kernel, loaded.attention
    header = parse_header(loaded.data.decode("utf-8", "replace"))
    operands = {param: name for param, (name, _) in header.operands.items()}
    values = header_values(header, kernel.D)
    if header.widths is not None and header.widths[0] != kernel.D:
        values = without_scales(values, kernel)
    bound = bind_kernel(kernel, attention, Given({**values, **options.bindings}, operands))
    if bound.diagnostics:
        raise _Stop(bound.diagnostics[0])
    dtype = request.dtype or attention.input("q").dtype
    drop_in = _drop_in(loaded, kernel, bound.binding)
    call = operator or _operator(loaded, bound.binding, options, attention)
    if drop_in.core is not None:
        if request.shape:
            reason = "the spec is more than an attention, so its example is measured"
            raise _Stop(make("CB651", None, reason=reason))
        return _whole(drop_in, dtype, call, device)
    sizes = sizes_for(attention, kernel, request.shape, loaded.program.example)
    return _plain(loaded, drop_in, sizes, dtype, call, device, progress)


def _operator(loaded: Loaded, binding: Binding, options: Options, attention: Attention) -> Callable[..., Any]:
    """The kernel as `export` makes it, with the values that the spec asks for."""
    known = {p.name for p in loaded.lifted.kernel.params}
    values = {name: value for name, value in binding.values.items() if name in known}
    given = replace(options, bindings=values, head_dim=options.head_dim or loaded.lifted.kernel.D)
    planned = plan_of(loaded.source.path, _OPERATOR, given)
    if planned.plan is None:
        raise _Stop(planned.diagnostics[0])
    module = ModuleType(_OPERATOR)
    sys.modules[_OPERATOR] = module  # as an import does: dataclasses look their module up
    exec(compile(module_text(planned.plan), f"{_OPERATOR}.py", "exec"), vars(module))
    made = getattr(module, _OPERATOR)
    wants_lse = any(output.role == "lse" for output in attention.outputs)
    return (lambda *tensors: made(*tensors, return_lse=True)) if wants_lse and planned.plan.lse else made


def _drop_in(loaded: Loaded, kernel: Kernel, binding: Binding) -> DropIn:
    """The function around the kernel, also where it does no more than order axes."""
    assert loaded.attention is not None
    tiles = [Operand(p, p, "int32", t.axes, (), (), tiles=t) for p, t in binding.tiles.items()]
    pages = [Operand(p, p, "int32", ("B", ""), (), (), page=size) for p, size in binding.pages.items()]
    made, problems = make_drop_in(loaded, [*tiles, *pages], {})
    if problems:
        raise _Stop(problems[0])
    padding = Padding(kernel.D, kernel.Dv) if loaded.padded else None
    return made or plain_drop_in(loaded.program, loaded.attention, None, (), padding)


def sizes_for(attention: Attention, kernel: Kernel, shape: Mapping[str, int], example: Sequence[Any]) -> dict[str, int]:
    """All sizes of the problem: as asked for, as the spec fixes them, else the defaults. Raises _Stop (CB651)."""
    asked = dict(shape)
    both = asked.pop("S", None)
    asked = {**({"Sq": both, "Sk": both} if both is not None else {}), **asked}
    fixed = attention.specialised
    wrong = next((n for n, v in asked.items() if fixed.get(n, v) != v), None)
    if wrong is not None:
        raise _Stop(make("CB651", None, reason=f"it is written for {wrong} = {fixed[wrong]}, not {asked[wrong]}"))
    axes = {i.role: dict(zip(i.axes, t.shape, strict=True)) for i, t in zip(attention.inputs, example, strict=True)}
    q, k = axes["q"], axes["k"]
    group = max(int(q.get("h", 1)) // max(int(k.get("hk", 1)), 1), 1)
    d, dv = widths_of(attention, (kernel.D, kernel.Dv))
    sizes = {"D": d, "Dv": dv, **DEFAULTS, **fixed, **asked}
    sizes.setdefault("Hkv", sizes["H"] // group if sizes["H"] % group == 0 else sizes["H"])
    absent = {"B": "b", "H": "h"}
    sizes |= {size: 1 for size, axis in absent.items() if axis not in q}
    if "hk" not in k:
        sizes["Hkv"] = 1
    if sizes["Hkv"] < 1 or sizes["H"] % sizes["Hkv"] or not attention.allows(sizes):
        text = ", ".join(f"{n} = {v}" for n, v in sizes.items())
        raise _Stop(make("CB651", None, reason=f"the spec is not defined for {text}"))
    return sizes


def _plain(
    loaded: Loaded,
    drop_in: DropIn,
    sizes: dict[str, int],
    dtype: str,
    operator: Callable[..., Any],
    device: str,
    progress: Progress,
) -> Bench:
    attention = loaded.attention
    assert attention is not None
    progress("inputs", 0.0, "")
    sets = [make_inputs(attention, sizes, dtype, seed, device=device) for seed in range(1, SETS + 1)]
    function = loaded.program.call

    def spec(tensors: Sequence[Any]) -> Call:
        return lambda: _first(function(tensors))

    done = Bench(dtype, [_reference(attention, function, tensors, sizes) for tensors in sets], sizes)
    around = _around(drop_in, operator, sets)
    done.calls[OURS] = [lambda run=run, t=t: _first(run(*t)) for run, t in zip(around, sets, strict=True)]
    done.calls["eager"] = [spec(t) for t in sets]
    compiled: Any = torch.compile(function, dynamic=False)
    done.calls["torch.compile"] = [lambda t=t: _first(compiled(t)) for t in sets]
    problems = [Problem(attention, sizes, t) for t in sets]
    for name, maker in (("SDPA", sdpa), ("FlexAttention", flex)):
        progress("peers", 0.0, name)
        try:
            done.calls[name] = [maker(problem) for problem in problems]
        except NotForIt as reason:
            done.out[name] = str(reason)
        except Exception as error:  # a peer's own limits
            done.out[name] = _brief(error)
    try:
        mask = problems[0].dense_mask()
        batch = sizes["B"] if mask is None else sizes["B"] // len(mask)
        attended = sizes["Sq"] * sizes["Sk"] if mask is None else int(mask.sum())
        done.pairs = attended * batch * sizes["H"]
    except NotForIt:
        done.pairs = None
    return done


def _around(drop_in: DropIn, operator: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> list[Callable[..., Any]]:
    """The drop-in for each set of inputs. A list of tiles is made once: as FlexAttention's block mask, it is shared by
    the calls of a model's layers.
    """
    scope: dict[str, Any] = {}
    exec(compile(drop_in.text, "drop-in", "exec"), scope)
    function = scope[drop_in.name]
    if drop_in.derived is None:
        return [lambda *t: function(*t, kernel=operator) for _ in sets]
    runs: list[Callable[..., Any]] = []
    for tensors in sets:
        made: list[Any] = []

        def keep(*given: Any, made: list[Any] = made) -> Any:
            made.append(given[-1])
            return operator(*given)

        function(*tensors, kernel=keep)
        named = {drop_in.derived.name: made[0]}
        runs.append(lambda *t, named=named: function(*t, kernel=operator, **named))
    return runs


def _reference(
    attention: Attention, function: Callable[..., Any], tensors: Sequence[Any], sizes: Mapping[str, int]
) -> Any:
    """The spec in float32, one batch index at a time where every input has them."""
    wide = [t.float() if t.dtype.is_floating_point else t for t in tensors]
    batched = [i.axes.index(a) for i in attention.inputs for a in ("b", "B") if a in i.axes]
    output = attention.outputs[0].axes
    if len(batched) < len(wide) or "b" not in output or "B" in attention.specialised:
        return _first(function(wide))
    whole = [shape_of(i, sizes)[axis] for i, axis in zip(attention.inputs, batched, strict=True)]
    parts = [
        _first(function([t.narrow(axis, n, 1) for t, axis in zip(wide, batched, strict=True)])) for n in range(whole[0])
    ]
    return torch.cat(parts, output.index("b"))


def _whole(drop_in: DropIn, dtype: str, operator: Callable[..., Any], device: str) -> Bench:
    """The user's whole function on its example."""
    program = drop_in.program
    kind: torch.dtype = getattr(torch, dtype)

    def moved(value: Any) -> Any:
        cast = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(device, kind) if cast else value.to(device) if isinstance(value, torch.Tensor) else value

    tensors = [moved(t) for t in program.example]
    own: tuple[Any, ...] = (program.module,) if program.module is not None else ()
    wide = [t.float() if t.is_floating_point() else t for t in tensors]
    modules = [m for m in own if isinstance(m, torch.nn.Module)]
    for module in modules:
        module.to(device, torch.float32)
    with torch.no_grad():
        wanted = _first(program.call(wide))
    for module in modules:
        module.to(device, kind)
    scope: dict[str, Any] = {}
    exec(compile(drop_in.text, "drop-in", "exec"), scope)
    function = scope[drop_in.name]
    compiled: Any = torch.compile(program.call, dynamic=False)
    done = Bench(dtype, [wanted])
    done.calls[OURS] = [lambda: _first(function(*own, *tensors, kernel=operator))]
    done.calls["eager"] = [lambda: _first(program.call(tensors))]
    done.calls["torch.compile"] = [lambda: _first(compiled(tensors))]
    reason = "the spec is more than an attention"
    done.out |= {"SDPA": reason, "FlexAttention": reason}
    return done


def _first(result: Any) -> Any:
    return flatten_outputs(result)[0]


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


# ---- measuring


def _measure(done: Bench, rounds: int, progress: Progress) -> tuple[ContenderResult, ...]:
    """Check, time in turns, check again. Raises _Stop where the kernel fails or is wrong."""
    limit = LIMITS[done.dtype]
    fit: list[Contender] = []
    with torch.no_grad():
        for n, (name, calls) in enumerate(done.calls.items()):
            progress("check", n / len(done.calls), name)
            problem = checked(name, calls, done.wanted, limit)
            if problem is None:
                fit.append(Contender(name, calls))
            elif name == OURS:
                raise _Stop(problem)
            else:
                done.out[name] = problem.message
        timed = time_calls(fit, done.wanted, rounds, lambda at, of: progress("time", at / of, f"round {at} of {of}"))
    ours = timed.ms[OURS]
    if timed.errors[OURS] > limit:
        raise _Stop(make("CB652", None, error=timed.errors[OURS], limit=limit))
    rows: list[ContenderResult] = []
    for name, ms in timed.ms.items():
        error = timed.errors[name]
        if error > limit:
            done.out[name] = f"an error of {error:.1e} after timing"
            continue
        flops = 2 * (done.sizes["D"] + done.sizes["Dv"]) * done.pairs if done.pairs and done.sizes else None
        tflops = flops / ms / 1e9 if flops else None
        rows.append(ContenderResult(name=name, ms=ms, error=error, tflops=tflops, ratio=ms / ours))
    return (*rows, *(ContenderResult(name=name, why=why) for name, why in done.out.items()))


def checked(name: str, calls: Sequence[Call], wanted: Sequence[Any], limit: float) -> Diagnostic | None:
    """What is wrong with a contender's results, before it is timed."""
    try:
        worst = max(relative_error(call(), right) for call, right in zip(calls, wanted, strict=True))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        return make("CB653", None, reason=f"{name}: {_brief(error)}" if name != OURS else _brief(error))
    return None if worst <= limit else make("CB652", None, error=worst, limit=limit)

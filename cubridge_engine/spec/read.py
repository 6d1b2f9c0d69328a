"""`read_spec`: load, trace at several sizes, recognise, unify, and check the result against the spec itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic, Severity, Span, make
from ..ir.evaluate import evaluate
from ..ir.expr import Const, Expr, Var
from ..ir.text_expr import parse_expr
from ..source import read_bytes
from .attention import Attention, TensorInput, TensorOutput
from .check import CheckFailed, check_and_settle
from .data_dependent import data_dependent
from .elements import Elements, Refused, deep_recursion
from .flex_capture import with_captured
from .flex_run import FlexCall, left_out, watching
from .guard import TimeUp, guarded
from .inputs import fake_inputs, without_data
from .lines import lines_of
from .meanings import around, meanings
from .program import Program, SpecError, brief, load, raised_line, span_of
from .recognise import Template, recognise
from .reference import eager
from .rounding import roundings
from .rules import RULES
from .sizes import Plan, numbers_of, plans
from .trace import Graph, Line, trace
from .unify import NotUnified, unify

if TYPE_CHECKING:
    from .core import Core


@dataclass(frozen=True)
class SpecResult:
    """`attention` is None when reading failed (a diagnostic says why); `program` is None when it did not load.

    `core` is set where the attention is a part of the function: `program` is then the core alone.
    """

    attention: Attention | None
    diagnostics: tuple[Diagnostic, ...]
    program: Program | None
    core: Core | None = None


def read_spec(
    path: str,
    *,
    entry: str = "attention",
    time_limit: float = 20.0,
    head_dim: int | None = None,
    outputs: tuple[int, ...] | None = None,
) -> SpecResult:
    """Read the spec at `path`. Never raises for the user's code: each failure is a CB2xx diagnostic.

    `time_limit` (seconds) bounds each stage that runs the user's code; it needs the main thread of the process.
    `outputs` are the numbers of the returned tensors that matter; without them attention weights are left out.
    `head_dim` reads the spec at another head dimension than its example's, where scale factors depend on it.
    """
    deep_recursion()
    program: Program | None = None
    source = ""
    try:
        program = load(path, entry, time_limit)
        source = program.source
        with guarded(path, time_limit):
            program = _with_captured(program, [_run_example(program)])
            program = _chosen(program, outputs)
        with guarded(path, _TRACES * time_limit):
            attention, program, core = _read(program, head_dim)
        return SpecResult(attention, attention.diagnostics, program, core)
    except SpecError as error:
        return SpecResult(None, (error.diagnostic,), program)
    except TimeUp as late:
        source = source or _text(path)
        place = late.line or (program.line if program else 1)
        diagnostic = make("CB211", span_of(path, source, place), seconds=time_limit)
        return SpecResult(None, (diagnostic,), program)


# The function ran once within the limit; reading traces and runs it about as often as this.
_TRACES = 9

# Refusals that may only mean that the attention is a part of the function.
_PERHAPS_A_PART = frozenset(
    f"CB{n}" for n in (221, 222, 224, 226, 227, 228, 229, 230, 231, 232, 233, 234, 242, 253, 259, 260, 262)
)


def _read(program: Program, head_dim: int | None) -> tuple[Attention, Program, Core | None]:
    """The function as an attention; failing that, the attention in it. Raises SpecError."""
    try:
        return Reader(program, head_dim).read(), program, None
    except SpecError as refusal:
        if refusal.diagnostic.code == "CB221" and refusal.output is not None:
            kept = _without(program, refusal.output)
            if kept is not None:
                return _read_kept(kept, head_dim, refusal)
        if refusal.diagnostic.code not in _PERHAPS_A_PART:
            raise
        from .read_core import read_core

        return read_core(program, head_dim, refusal)


def _without(program: Program, output: int) -> Program | None:
    """The program without one of its outputs; None where it was told which to return, or has no other."""
    kept = tuple(n for n in range(len(eager(program, program.example))) if n != output)
    return replace(program, outputs=kept) if kept and program.outputs is None else None


def _read_kept(program: Program, head_dim: int | None, refusal: SpecError) -> tuple[Attention, Program, Core | None]:
    """Read without the weights, and say so. Raises `refusal` where the rest is no attention either."""
    try:
        attention, inner, core = _read(program, head_dim)
    except SpecError as other:
        raise (refusal if other.diagnostic.code in _PERHAPS_A_PART else other) from None
    note = make("CB236", refusal.diagnostic.span, kept=outputs_text(program))
    return replace(attention, diagnostics=(*attention.diagnostics, note)), inner, core


def outputs_text(program: Program) -> str:
    """``output 0``, ``outputs 0, 2``."""
    kept = program.outputs or ()
    return f"output{'s' if len(kept) > 1 else ''} {', '.join(map(str, kept))}"


def _text(path: str) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def _with_captured(program: Program, calls: list[list[FlexCall]]) -> Program:
    """Where flex_attention was called: what its modifications capture becomes an argument. Raises SpecError."""
    if not calls[0]:
        return program
    span = span_of(program.path, program.source, program.line)
    for call in calls[0]:
        if reason := left_out(call.mask_mod, call.blocks):
            raise SpecError(make("CB250", span, reason=reason))
    return with_captured(program, [*calls, _run_example(program)])


def _run_example(program: Program) -> list[FlexCall]:
    """Run the spec once on its example: plain errors first, before any tracing. The calls of flex_attention in it."""
    import torch

    span = span_of(program.path, program.source, program.line)
    try:
        with watching() as calls:
            outputs = eager(program, program.example)
    except TypeError as error:
        if str(error).startswith("a value of type"):
            raise SpecError(make("CB212", span, what=str(error))) from None
        raise _ran_into(program, error) from None
    except (Exception, SystemExit) as error:
        raise _ran_into(program, error) from None
    if not outputs or not any(t.dtype.is_floating_point for t in outputs if isinstance(t, torch.Tensor)):
        raise SpecError(make("CB212", span, what="no tensor"))
    return calls


def _chosen(program: Program, outputs: tuple[int, ...] | None) -> Program:
    """The program with the outputs that the user named. Raises SpecError for a number that it does not return."""
    if not outputs:
        return program
    count = len(eager(program, program.example))
    if max(outputs) >= count:
        span = span_of(program.path, program.source, program.line)
        what = f"{count} tensor{'s' if count > 1 else ''}, and output {max(outputs)} was asked for"
        raise SpecError(make("CB212", span, what=what))
    return replace(program, outputs=outputs)


def _ran_into(program: Program, error: BaseException) -> SpecError:
    line = raised_line(program.path, error) or (program.line,)
    return SpecError(make("CB210", span_of(program.path, program.source, line), reason=brief(error)))


# So many plans may fail before the one for the example's own sizes is tried.
_BEFORE_THE_EXAMPLE = 2
_SMALL = 1 << 24  # scores of an example that is checked in a moment


def _is_small(plan: Plan) -> bool:
    """True where all checks of a plan together take little time and memory."""
    return sum(math.prod(sizes[n] for n in ("B", "H", "Sq", "Sk")) for sizes in plan.empty_at) < _SMALL


def _more_telling(one: Exception | None, other: Exception) -> Exception:
    """Of two failures the one to speak of: the first difference in values, else the last refusal, else the first."""
    if isinstance(one, CheckFailed):
        return one
    return other if one is None or isinstance(other, (NotUnified, CheckFailed, Refused)) else one


class Reader:
    """Reads one program: traces it, recognises the attention, and checks what was read."""

    def __init__(self, program: Program, head_dim: int | None) -> None:
        self.program = program
        self.head_dim = head_dim

    def span(self, line: Line | int | None) -> Span | None:
        return span_of(self.program.path, self.program.source, line)

    def refuse(self, refused: Refused) -> SpecError:
        fields = {k: v for k, v in refused.fields.items() if k != "output"}
        output = refused.fields.get("output")
        diagnostic = make(refused.code, self.span(refused.line or self.program.line), related=(), **fields)
        return SpecError(diagnostic, output if isinstance(output, int) else None)

    def graph(self, inputs: list[Any]) -> Graph:
        program = self.program
        graph = trace(
            lambda *t: program.call(t),
            program.path,
            program.tensor_names,
            inputs,
            flex=program.flex,
            memory=program.memory,
        )
        graph.qkv_like = frozenset(
            n
            for n, t in zip(self.program.tensor_names, self.program.example, strict=True)
            if t.dtype.is_floating_point and t.dim() > 1
        )
        return graph

    def read(self) -> Attention:
        try:
            graph = self.graph(without_data(self.program.example))
        except Exception as error:
            raise self.untraceable(error) from None
        self.refuse_never(graph)
        try:
            elements, first = self.recognise(graph)
        except Refused as refused:
            raise self.refuse(refused) from None
        lines = lines_of(elements, first)
        skeleton, source = self.skeleton(graph, first, lines), self.program.source
        skeleton = replace(skeleton, meanings=around(meanings(elements, first, source), skeleton.cut, source))
        if self.head_dim is not None and self.head_dim != first.sizes["D"]:
            same = first.sizes["D"] == first.sizes["Dv"]
            first.sizes["D"] = self.head_dim
            first.sizes["Dv"] = self.head_dim if same else first.sizes["Dv"]
        attention, plan, failure = self.first_that_holds(skeleton, first)
        return self.annotate(attention, plan, graph, failure)

    def first_that_holds(self, skeleton: Attention, first: Template) -> tuple[Attention, Plan, Exception | None]:
        """The attention by the most general plan that holds, and what was wrong with freer ones. Raises SpecError."""
        failure: Exception | None = None
        ended = False
        failed = 0
        plans = list(self.plans(first))
        while plans:
            # What does not hold at the example does not hold anywhere: no need to try all the plans.
            asked = failed == _BEFORE_THE_EXAMPLE and _is_small(plans[-1])
            plan = plans[-1] if asked else plans.pop(0)
            failed += 1
            if ended and not {"Sq", "Sk"} <= plan.fixed.keys():
                continue
            try:
                attention = self.at_plan(skeleton, plan, first)
            except Exception as error:
                failure = _more_telling(failure, error)
                # A table that ends before these lengths ends before all others, but for those that must be equal.
                alike = ("Sq", "Sk") in plan.equal or first.sizes["Sq"] != first.sizes["Sk"]
                ended = ended or (isinstance(error, IndexError) and alike)
                if asked:
                    break
                continue
            if not asked or len(plans) == 1:
                return attention, plan, failure  # else a freer plan may hold as well
        if isinstance(failure, Refused):
            raise self.refuse(failure)
        sizes = failure.sizes if isinstance(failure, CheckFailed) else _show_sizes(first.sizes)
        reason = failure.reason if isinstance(failure, CheckFailed) else brief(failure) if failure else ""
        raise SpecError(make("CB242", self.span(self.program.line), sizes=sizes, reason=reason))

    def refuse_never(self, graph: Graph) -> None:
        """Randomness anywhere, and data-dependent branches, are refused wherever they stand."""
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            op, a = graph.op_name(node), graph.arguments(node)
            random = op in ("bernoulli", "rand", "rand_like", "randn", "randn_like", "native_dropout")
            if random or (op == "dropout" and a.get("train") and a.get("p")):
                raise self.refuse(Refused("CB220", graph.line(node)))
            if op in ("_local_scalar_dense", "item") and node.users:
                raise SpecError(data_dependent(self.program, graph.line(node)))

    def untraceable(self, error: BaseException) -> SpecError:
        text = f"{type(error).__name__} {error}"
        line = raised_line(self.program.path, error) or _line_in(text, self.program.path)
        cause: BaseException | None = error
        while line is None and cause is not None:
            line, cause = raised_line(self.program.path, cause), cause.__cause__ or cause.__context__
        if re.search(r"[Dd]ata-?[Dd]ependent|Could not guard|local_scalar", text):
            return SpecError(data_dependent(self.program, line))
        return SpecError(make("CB243", self.span(line or self.program.line), reason=brief(error)))

    def skeleton(self, graph: Graph, t: Template, lines: Mapping[str, Line]) -> Attention:
        """The layouts and dtypes, from the example; the mathematics comes from the plan's own readings."""
        program = self.program
        by_name = {name: role for role, name in t.roles.items()}
        inputs = tuple(
            TensorInput(
                name=name,
                role=by_name.get(name, "operand"),
                axes=t.axes[name],
                dtype=_dtype(tensor),
                position=position,
                span=self.span(lines.get(name)),
                observed=None if name in by_name else _observed(tensor),
            )
            for name, position, tensor in zip(
                program.tensor_names, program.tensor_positions, program.example, strict=True
            )
        )
        outputs = tuple(
            TensorOutput(role, axes, str(node.meta["val"].dtype).removeprefix("torch."), n, self.span(graph.line(node)))
            for n, ((role, axes), node) in enumerate(zip(t.outputs, graph.outputs, strict=True))
        )
        spans = {part: span for part, line in lines.items() if (span := self.span(line)) is not None}
        function = self.span(program.line)
        if function is not None:
            spans["function"] = function
        return Attention(
            name=program.entry,
            path=program.path,
            inputs=inputs,
            outputs=outputs,
            head_map=t.head_map,
            score=t.score,
            mask=t.mask,
            fill=t.fill,
            sink=t.sink,
            normaliser=t.normaliser,
            empty_rows="computed",
            spans=spans,
            divisor=t.divisor,
        )

    def at_plan(self, skeleton: Attention, plan: Plan, first: Template) -> Attention:
        """Read at the plan's two sizes, unify, and check at its others. Raises NotUnified, CheckFailed, Refused."""
        readings = [self.reading(skeleton, sizes) for sizes in plan.read_at]
        a, b = readings[0], readings[-1]
        if any((t.roles, t.outputs, t.normaliser) != (a.roles, a.outputs, first.normaliser) for t in (a, b)) or (
            a.roles != first.roles
        ):
            raise NotUnified("the roles of the arguments change with the sizes")
        if a.head_map == Const(0):
            # One KV head for all: only the usual map at Hkv = 1 says so in the terms kernels use.
            if plan.fixed.get("Hkv") != 1:
                raise NotUnified("all heads read KV head 0")
            a.head_map = b.head_map = parse_expr("h // (H // Hkv)")

        def one(x: Expr, y: Expr) -> Expr:
            return unify(x, y, plan.read_at[0], plan.read_at[-1])

        def optional(x: Expr | None, y: Expr | None) -> Expr | None:
            if (x is None) != (y is None):
                raise NotUnified("a mask or sink that exists at some sizes only")
            return None if x is None or y is None else one(x, y)

        attention = replace(
            skeleton,
            head_map=_usual(one(a.head_map, b.head_map), plan.fixed),
            score=one(a.score, b.score),
            mask=optional(a.mask, b.mask),
            fill=one(a.fill, b.fill),
            sink=optional(a.sink, b.sink),
            divisor=optional(a.divisor, b.divisor),
            specialised={
                **plan.fixed,
                "D": first.sizes["D"],
                **({"Dv": first.sizes["Dv"]} if first.sizes["Dv"] != first.sizes["D"] else {}),
            },
            equal_sizes=plan.equal,
            ordered_sizes=plan.ordered,
            size_step=plan.step,
        )
        return check_and_settle(self.program, attention, plan)

    def plans(self, first: Template) -> Iterator[Plan]:
        """At which sizes to read and to check, most general first."""
        return plans(first.sizes, first, numbers_of(self.program))

    def recognise(self, graph: Graph) -> tuple[Elements, Template]:
        """What the graph computes. Raises Refused."""
        elements = Elements(graph, RULES)
        return elements, recognise(elements)

    def reading(self, skeleton: Attention, sizes: Mapping[str, int]) -> Template:
        """The template at these sizes. Raises what tracing and recognising raise."""
        return self.recognise(self.graph(fake_inputs(skeleton, sizes)))[1]

    def why_fixed(self, plan: Plan, failure: Exception | None) -> str:
        """Why this plan and no freer one; `failure` is what was wrong with those before it."""
        return _why_fixed(failure)

    def annotate(self, attention: Attention, plan: Plan, graph: Graph, failure: Exception | None) -> Attention:
        """Notes on how general the reading is, and warnings about arguments without effect."""
        import torch

        notes: list[Diagnostic] = []
        span = self.span(self.program.line)
        notes += self.program.notes
        notes += [_captured_note(self.program, attention.input(name)) for name in self.program.captured]
        if self.program.made_up:
            notes.append(make("CB209", span, shapes=self.program.made_up))
        if plan.fixed:
            one = plan.fixed == {"B": 1} and "b" not in attention.input("q").axes
            reason = "q, k and v have no axis of batches" if one else self.why_fixed(plan, failure)
            notes.append(make("CB240", span, sizes=_show_sizes(plan.fixed), reason=reason))
        # No shared KV heads is the usual case and not worth a note; equal lengths are a limit people run into.
        notes += [make("CB241", span, left=a, right=b) for a, b in plan.equal if (a, b) == ("Sq", "Sk")]
        notes += [make("CB245", span, less=a, more=b) for a, b in plan.ordered]
        q = attention.input("q").dtype
        notes += [make("CB254", self.span(x) or span, dtype=to, q=q) for x, to in roundings(graph, getattr(torch, q))]
        used = graph.used()
        notes += [make("CB213", span, name=n) for n in self.program.tensor_names if n not in used]
        return replace(attention, diagnostics=tuple(sorted(notes, key=lambda d: -int(d.severity or Severity.NOTE))))


def _usual(head_map: Expr, fixed: Mapping[str, int]) -> Expr:
    """The map of heads as kernels write it, where it is that map at the only head counts there are."""
    usual = parse_expr("h // (H // Hkv)")
    if head_map == Var("h") or not {"H", "Hkv"} <= fixed.keys() or fixed["H"] % fixed["Hkv"]:
        return head_map
    same = all(evaluate(head_map, {**fixed, "h": h}) == evaluate(usual, {**fixed, "h": h}) for h in range(fixed["H"]))
    return usual if same else head_map


def _why_fixed(failure: Exception | None) -> str:
    """Why a reading holds for some sizes only: what went wrong at the others."""
    if isinstance(failure, CheckFailed):
        return f"at {failure.sizes} it computes something else ({failure.reason})"
    if isinstance(failure, NotUnified):
        return str(failure)
    if isinstance(failure, IndexError):
        return f"a table of the spec ends there ({failure})"
    if failure is None:
        return "its code uses these numbers"
    if "broadcast" in str(failure) or "must match" in str(failure) or "expand" in str(failure):
        return "it broadcasts, or writes down, an axis of this size"
    return brief(failure)


def _captured_note(program: Program, item: TensorInput) -> Diagnostic:
    tensor = program.arguments[program.names.index(item.name)]
    size = tensor.numel() * tensor.element_size()
    return make("CB248", item.span, name=item.name, bytes=size, axes=", ".join(item.axes))


def _show_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in sizes.items())


def _line_in(text: str, path: str) -> Line | None:
    found = re.findall(rf'File "{re.escape(path)}", line (\d+)', text)
    return (int(found[-1]),) if found else None


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _observed(tensor: Any) -> tuple[float, float] | None:
    import torch

    if tensor.numel() == 0 or tensor.is_complex():
        return None
    values = tensor.detach().double()
    finite = values[torch.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.numel() else None

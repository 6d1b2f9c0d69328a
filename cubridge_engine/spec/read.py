"""`read_spec`: load, trace at several sizes, recognise, unify, and check the result against the spec itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..diagnostics import Diagnostic, Severity, Span, make
from ..ir.expr import Const, Expr
from ..ir.text_expr import parse_expr
from .attention import Attention, TensorInput, TensorOutput
from .check import CheckFailed, check_and_settle
from .elements import Elements, Refused, deep_recursion
from .inputs import fake_inputs, without_data
from .lines import lines_of
from .program import Program, SpecError, TimeUp, brief, guarded, load, raised_line, span_of
from .recognise import Template, recognise
from .reference import eager
from .rules import RULES
from .sizes import Plan, numbers_of, plans
from .trace import Graph, Line, trace
from .unify import NotUnified, unify


@dataclass(frozen=True)
class SpecResult:
    """`attention` is None when reading failed (a diagnostic says why); `program` is None when it did not load."""

    attention: Attention | None
    diagnostics: tuple[Diagnostic, ...]
    program: Program | None


def read_spec(
    path: str, *, entry: str = "attention", time_limit: float = 20.0, head_dim: int | None = None
) -> SpecResult:
    """Read the spec at `path`. Never raises for the user's code: each failure is a CB2xx diagnostic.

    `time_limit` (seconds) bounds each stage that runs the user's code; it needs the main thread of the process.
    `head_dim` reads the spec at another head dimension than its example's, where scale factors depend on it.
    """
    deep_recursion()
    program: Program | None = None
    source = ""
    try:
        program = load(path, entry, time_limit)
        source = program.source
        with guarded(path, time_limit):
            _run_example(program)
        with guarded(path, 3 * time_limit):
            attention = _Reader(program, head_dim).read()
        return SpecResult(attention, attention.diagnostics, program)
    except SpecError as error:
        return SpecResult(None, (error.diagnostic,), program)
    except TimeUp as late:
        source = source or _text(path)
        place = late.line or (program.line if program else 1)
        diagnostic = make("CB211", span_of(path, source, place), seconds=time_limit)
        return SpecResult(None, (diagnostic,), program)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _run_example(program: Program) -> None:
    """Run the spec once on its example: plain errors first, before any tracing."""
    import torch

    span = span_of(program.path, program.source, program.line)
    try:
        outputs = eager(program, program.example)
    except TypeError as error:
        if str(error).startswith("a value of type"):
            raise SpecError(make("CB212", span, what=str(error))) from None
        raise _ran_into(program, error) from None
    except (Exception, SystemExit) as error:
        raise _ran_into(program, error) from None
    if not outputs or not any(t.dtype.is_floating_point for t in outputs if isinstance(t, torch.Tensor)):
        raise SpecError(make("CB212", span, what="no tensor"))


def _ran_into(program: Program, error: BaseException) -> SpecError:
    line = raised_line(program.path, error) or (program.line,)
    return SpecError(make("CB210", span_of(program.path, program.source, line), reason=brief(error)))


class _Reader:
    def __init__(self, program: Program, head_dim: int | None) -> None:
        self.program = program
        self.head_dim = head_dim

    def span(self, line: Line | int | None) -> Span | None:
        return span_of(self.program.path, self.program.source, line)

    def refuse(self, refused: Refused) -> SpecError:
        fields = {k: v for k, v in refused.fields.items() if k != "output"}
        return SpecError(make(refused.code, self.span(refused.line or self.program.line), related=(), **fields))

    def graph(self, inputs: list[Any]) -> Graph:
        graph = trace(lambda *t: self.program.call(t), self.program.path, self.program.tensor_names, inputs)
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
        elements = Elements(graph, RULES)
        try:
            first = recognise(elements)
        except Refused as refused:
            raise self.refuse(refused) from None
        lines = lines_of(elements, first)
        skeleton = self.skeleton(graph, first, lines)
        if self.head_dim is not None and self.head_dim != first.sizes["D"]:
            same = first.sizes["D"] == first.sizes["Dv"]
            first.sizes["D"] = self.head_dim
            first.sizes["Dv"] = self.head_dim if same else first.sizes["Dv"]
        failure: Exception | None = None
        for plan in plans(first.sizes, first, numbers_of(self.program)):
            try:
                attention = self.at_plan(skeleton, plan, first)
            except (NotUnified, CheckFailed, Refused) as error:
                failure = error if not isinstance(failure, CheckFailed) else failure
                continue
            except Exception as error:
                failure = failure or error
                continue
            return self.annotate(attention, plan, graph, failure)
        if isinstance(failure, Refused):
            raise self.refuse(failure)
        sizes, reason = (
            (failure.sizes, failure.reason)
            if isinstance(failure, CheckFailed)
            else ("", brief(failure) if failure else "")
        )
        raise SpecError(
            make("CB242", self.span(self.program.line), sizes=sizes or _show_sizes(first.sizes), reason=reason)
        )

    def refuse_never(self, graph: Graph) -> None:
        """Randomness anywhere, and data-dependent branches, are refused wherever they stand."""
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            op, a = graph.op_name(node), graph.arguments(node)
            random = op in ("bernoulli", "rand", "rand_like", "randn", "randn_like", "native_dropout")
            if random or (op == "dropout" and a.get("train") and a.get("p")):
                raise self.refuse(Refused("CB220", graph.line(node)))

    def untraceable(self, error: BaseException) -> SpecError:
        text = f"{type(error).__name__} {error}"
        line = raised_line(self.program.path, error) or _line_in(text, self.program.path)
        cause: BaseException | None = error
        while line is None and cause is not None:
            line, cause = raised_line(self.program.path, cause), cause.__cause__ or cause.__context__
        code = "CB223" if re.search(r"[Dd]ata-?[Dd]ependent|Could not guard|local_scalar", text) else "CB243"
        return SpecError(make(code, self.span(line or self.program.line), reason=brief(error)))

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
            normaliser="softmax",
            empty_rows="computed",
            spans=spans,
        )

    def at_plan(self, skeleton: Attention, plan: Plan, first: Template) -> Attention:
        """Read at the plan's two sizes, unify, and check at its others. Raises NotUnified, CheckFailed, Refused."""
        readings = [self.reading(skeleton, sizes) for sizes in plan.read_at]
        a, b = readings[0], readings[-1]
        if (a.roles, a.outputs) != (b.roles, b.outputs) or a.roles != first.roles:
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
            head_map=one(a.head_map, b.head_map),
            score=one(a.score, b.score),
            mask=optional(a.mask, b.mask),
            fill=one(a.fill, b.fill),
            sink=optional(a.sink, b.sink),
            specialised={
                **plan.fixed,
                "D": first.sizes["D"],
                **({"Dv": first.sizes["Dv"]} if first.sizes["Dv"] != first.sizes["D"] else {}),
            },
            equal_sizes=plan.equal,
            size_step=plan.step,
        )
        return check_and_settle(self.program, attention, plan)

    def reading(self, skeleton: Attention, sizes: Mapping[str, int]) -> Template:
        return recognise(Elements(self.graph(fake_inputs(skeleton, sizes)), RULES))

    def annotate(self, attention: Attention, plan: Plan, graph: Graph, failure: Exception | None) -> Attention:
        """Notes on how general the reading is, and warnings about arguments without effect."""
        notes: list[Diagnostic] = []
        span = self.span(self.program.line)
        if self.program.made_up:
            notes.append(make("CB209", span, shapes=self.program.made_up))
        if plan.fixed:
            notes.append(make("CB240", span, sizes=_show_sizes(plan.fixed), reason=_why_fixed(failure)))
        # No shared KV heads is the usual case and not worth a note; equal lengths are a limit people run into.
        notes += [make("CB241", span, left=a, right=b) for a, b in plan.equal if (a, b) == ("Sq", "Sk")]
        used = graph.used()
        notes += [make("CB213", span, name=n) for n in self.program.tensor_names if n not in used]
        return replace(attention, diagnostics=tuple(sorted(notes, key=lambda d: -int(d.severity or Severity.NOTE))))


def _why_fixed(failure: Exception | None) -> str:
    """Why a reading holds for some sizes only: what went wrong at the others."""
    if isinstance(failure, CheckFailed):
        return f"at {failure.sizes} it computes something else ({failure.reason})"
    if isinstance(failure, NotUnified):
        return str(failure)
    if failure is None:
        return "its code uses these numbers"
    if "broadcast" in str(failure) or "must match" in str(failure) or "expand" in str(failure):
        return "it broadcasts, or writes down, an axis of this size"
    return brief(failure)


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

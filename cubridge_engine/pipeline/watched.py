"""A kernel compiled and watched in the simulator, by its contract or by what binding finds out without running it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..bind import BindOptions, bind
from ..compile import Contract
from ..diagnostics import Diagnostic, Span, make
from ..ir.nodes import Kernel
from ..lift import Lifted
from ..lower import Header, parse_header
from ..verify.contracts import extended
from ..verify.stages import Stages
from ..watch import Watched, watch_contract
from ..watch.model import Problem
from ..watch.problem import choose_instance, choose_problem, with_operands
from .files import Options

_PARTS = {"compile": 0, "simulate": 1, "compare": 4, "match": 6}  # of ten, where each begins


def run_watched(
    path: str, data: bytes, lifted: Lifted, contract: Contract | None, options: Options, stages: Stages
) -> Watched:
    """Watch the kernel of the file at `path`, which holds `data`. Where it cannot be run, ``ran`` is False and the
    diagnostics say why. No code of the user's runs outside the simulator.
    """
    name = lifted.kernel.name if lifted.kernel is not None else options.kernel_name or ""
    problems: tuple[Diagnostic, ...] = ()
    with stages.run("watch") as stage:
        if contract is None:
            bound = bind(path, data, BindOptions(kernel=name))
            contract, problems = bound.contract, bound.diagnostics
        if contract is None or not contract.instances:
            stage.fail("how to call the kernel is not known")
            return Watched(name, path, "", None, False, None, diagnostics=problems)
        here = replace(contract, source=str(Path(path).resolve()))
        header = parse_header(data.decode("utf-8", "replace"))
        here, problem, wrong = adapted_call(here, lifted.kernel, header)
        if wrong is not None:
            stage.fail(wrong.message)
            return Watched(name, path, "", None, False, None, diagnostics=(wrong,))

        def tick(what: str, part: float) -> None:
            stages.tick("watch", min(_PARTS.get(what, 0) + 2 * part, 10), 10, what)

        found = watch_contract(here, source=data, problem=problem, progress=tick)
        if not found.ran:
            stage.fail("; ".join(d.message for d in found.diagnostics) or "it did not run")
        elif found.function is None:
            stage.fail("its output is no attention function that is known")
    notes = tuple(d for d in problems if d.code == "CB634")
    return at_path(replace(found, diagnostics=(*found.diagnostics, *notes)), path)


def adapted_call(
    contract: Contract, kernel: Kernel | None, header: Header
) -> tuple[Contract, Problem | None, Diagnostic | None]:
    """How an adapted kernel is called: its contract with the parameters that it has beyond, and a problem with tensors
    for them. The problem is None where the contract alone decides it; CB133 where what a parameter holds is not known.
    """
    extra = kernel.params[len(contract.parameters) :] if kernel is not None else ()
    if kernel is None or (not extra and not header.bindings and not header.requires):
        return contract, None, None
    contract = replace(contract, requires=(*contract.requires, *header.requires))
    contract = extended(contract, kernel, {p: p for p in header.operands})
    unknown = [p.name for p in extra if p.name not in header.operands]
    problem = choose_problem(contract, choose_instance(contract))
    if problem is None:
        return contract, None, None  # watching says so
    if "causal" in header.bindings:
        problem = replace(problem, causal=header.bindings["causal"] not in ("0", "False", "false"))
    made = with_operands(problem, {p.name: header.operands[p.name][1] for p in extra if p.name in header.operands})
    if unknown or made is None:
        return contract, None, make("CB133", None, names=", ".join(unknown or header.operands))
    return contract, made, None


def at_path(found: Watched, path: str) -> Watched:
    """The same with the kernel's own file called as the caller calls it."""
    real = os.path.realpath(path)

    def moved(span: Span | None) -> Span | None:
        return replace(span, path=path) if span is not None and os.path.realpath(span.path) == real else span

    def chain(spans: tuple[Span, ...]) -> tuple[Span, ...]:
        return tuple(s for span in spans if (s := moved(span)) is not None)

    sites = tuple(replace(s, span=moved(s.span), chain=chain(s.chain)) for s in found.sites)
    findings = tuple(replace(d, span=moved(d.span)) for d in found.findings)
    return replace(found, path=path, sites=sites, findings=findings)

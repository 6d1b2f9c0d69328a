"""A target program that a model wrote: is it one, may it stand for this kernel, and does it compute the spec?"""

from __future__ import annotations

from dataclasses import replace

from ..diagnostics import Severity
from ..ir.nodes import Alloc, Kernel
from ..ir.text import CuirSyntaxError, parse_kernel
from ..ir.validate import iterate, validate
from ..pipeline.files import Options
from ..verify.bindings import Given, bind_kernel
from ..verify.derive import choose_heads, grid_for, tile_for
from ..verify.ir_level import Run, run_ir
from ..verify.prepare import Preparer
from ..verify.stages import Progress
from ..verify.subject import VerifyOptions
from .situation import Situation

MAX_CUIR = 40_000  # characters
MAX_OPS = 2_000
MAX_ELEMENTS = 1 << 20  # of one buffer


class BadProgram(ValueError):
    """No program that can be tried; says why in one clause."""


def check_program(text: str, found: Situation, options: Options, checks: VerifyOptions, progress: Progress) -> str:
    """'' when the program executes over the whole grid and equals the spec; else the first thing that is wrong.

    Raises BadProgram for a text that is no program, or one of another kernel.
    """
    assert found.attention is not None
    own: Kernel = found.lifted.kernel
    target = _read(text, own)
    problems = [d for d in validate(target) if d.severity is Severity.ERROR]
    bound = bind_kernel(target, found.attention, Given(options.bindings))
    problems += [d for d in bound.diagnostics if d.severity is Severity.ERROR]
    if problems:
        return f"{problems[0].code}: {problems[0].message}"
    heads = choose_heads(found.attention)
    if heads is None:
        return "no head counts fit the spec's head map"
    grid = grid_for(found.attention, target, heads)
    cases = [replace(case, seed=case.seed + 7919 * checks.seed) for case in grid.cases]
    if options.empty_rows == "exact":  # torch gives 0 for no keys and NaN for masked ones: see verify.run
        cases = [case for case in cases if case.Sk]
    preparer = Preparer(found.attention, found.program, tile_for(found.attention, target))
    runs = (Run("early", None), Run("late", None))
    tick = lambda done, total, name: progress("ir", done / max(total, 1), name)  # noqa: E731
    outcome = run_ir(
        target, bound.binding, found.attention, preparer, cases, runs, options.empty_rows, tick, stop_after=1
    )
    if outcome.passed:
        return ""
    errors = [d for d in outcome.diagnostics if d.severity is Severity.ERROR]
    return "\n".join(f"{d.code}: {d.message}" for d in errors[:2]) or "it does not execute"


def _read(text: str, own: Kernel) -> Kernel:
    """The program, if it is one of this kernel: same name, tiles, threads and parameters (more may follow)."""
    if len(text) > MAX_CUIR:
        raise BadProgram(f"the program has more than {MAX_CUIR} characters")
    try:
        target = parse_kernel(text)
    except CuirSyntaxError as problem:
        raise BadProgram(f"the program is no CuIR: {problem}") from None
    except RecursionError:
        raise BadProgram("the program is nested too deeply") from None
    for what in ("name", "threads", "Br", "Bc", "D", "Dv", "family"):
        if getattr(target, what) != getattr(own, what):
            raise BadProgram(f"{what} is {getattr(target, what)} and must stay {getattr(own, what)}")
    given = [(p.name, p.role) for p in target.params[: len(own.params)]]
    if given != [(p.name, p.role) for p in own.params]:
        raise BadProgram("the kernel's own parameters must stay as they are")
    ops = list(iterate(target.body))
    if len(ops) > MAX_OPS:
        raise BadProgram(f"the program has more than {MAX_OPS} operations")
    if any(isinstance(op, Alloc) and op.slots * op.rows * op.cols > MAX_ELEMENTS for op in ops):
        raise BadProgram(f"a buffer has more than {MAX_ELEMENTS} elements")
    return target

"""Results as text for people. Colour only on a terminal, and never with NO_COLOR; the words do not depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from ..results import WHOLE, Adaptation, CaseResult, CompiledResult, Report, Stage, Verification
from ..verify.levels import LEVELS
from .costs import cost_table

MEANS = {level.name: level.means for level in LEVELS}
DIFF_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def console(*, stderr: bool = False) -> Console:
    """A console that does not wrap: lines are for `grep` as well as for eyes."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def progress_bar(out: Console) -> Progress:
    """A bar for a job whose stages take long."""
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), console=out, transient=True
    )


def show_diff(out: Console, diff: str) -> None:
    """A unified diff, coloured by line."""
    for line in diff.splitlines():
        style = next((style for mark, style in DIFF_STYLES if line.startswith(mark)), "")
        out.print(Text(line, style=style))


def show_stages(out: Console, stages: Sequence[Stage]) -> None:
    """One line per stage: name, seconds, and why where it did not simply pass."""
    for stage in stages:
        ran = stage.state in ("passed", "failed")
        time = f"{stage.seconds:6.2f} s" if ran else "       -"
        state = "" if stage.state == "passed" else f"  {stage.state}" + (f": {stage.why}" if stage.why else "")
        out.print(Text(f"  {stage.name:<10}{time}{state}"))


def show_report(out: Console, report: Report) -> None:
    """Level, grid, power, compiled figures, empty rows."""
    out.print(Text(f"level {report.level}", style="bold") + Text(f": {MEANS[report.level]}"))
    out.print(f"applicability {report.applicability}")
    _show_cases(out, report.cases)
    _show_power(out, report)
    if report.empty_rows is not None and report.empty_rows.rows:
        rows = report.empty_rows
        done = "the kernel's 0 was kept" if rows.policy == "keep" and rows.kept else "equal to the spec"
        out.print(f"  empty rows: {rows.rows} on the grid, the spec gives {rows.spec}: {done}")
    if report.padded is not None:
        out.print(f"  padded {report.padded.text}: the caller adds columns of zeros, and cuts them off o")
    _show_compiled(out, report.compiled)
    _show_simulated(out, report)
    if report.device is not None:
        out.print(f"  device: {report.device.name} ({report.device.arch}, driver {report.device.driver})")


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as aligned lines, two spaces apart and two in; the columns of `right` are aligned to the right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines: list[str] = []
    for row in rows:
        cells = [c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return lines


def _show_cases(out: Console, cases: Sequence[CaseResult]) -> None:
    if not cases:
        return
    rows = [("executed", "dtype", "runs passed", "worst error of O", "of LSE", "tolerance")]
    for level, dtype, whole in dict.fromkeys((c.level, c.dtype, c.name == WHOLE) for c in cases):
        group = [c for c in cases if (c.level, c.dtype, c.name == WHOLE) == (level, dtype, whole)]
        lse = [float(c.worst_lse) for c in group if c.worst_lse is not None]
        worst = max(group, key=lambda c: float(c.worst_o))
        rows.append(
            (
                {"ir": "as CuIR", "simulated": "in the simulator", "gpu": "on the GPU"}.get(level, level),
                dtype,
                f"{sum(c.passed for c in group)} of {len(group)}",
                f"{float(worst.worst_o):.1e} ({worst.name})",
                f"{max(lse):.1e}" if lse else "-",
                f"{group[0].tolerance:.1e}",
            )
        )
    for line in columns(rows):
        out.print(line, markup=False)


def _show_power(out: Console, report: Report) -> None:
    if not report.power:
        return
    weak = [p.what for p in report.power if not p.rejected]
    text = f"  the grid rejects {len(report.power) - len(weak)} of {len(report.power)} wrong answers"
    out.print(text + (f"; not: {', '.join(weak)}" if weak else " (zero, mean of V, every constant of the spec nudged)"))


def _show_compiled(out: Console, compiled: Sequence[CompiledResult]) -> None:
    if not compiled:
        return
    rows = [("instantiation", "arch", "registers", "spilled", "shared bytes", "limit")]
    for one in sorted(compiled, key=lambda c: (c.instantiation, c.arch)):
        numbers = (one.registers, one.spill_bytes, one.shared_bytes, one.shared_limit)
        numbered = ["-" if n is None else str(n) for n in numbers]
        rows.append((one.instantiation, one.arch, numbered[0], numbered[1], numbered[2], numbered[3]))
    for line in columns(rows, right=(2, 3, 4, 5)):
        out.print(line, markup=False)


def _show_simulated(out: Console, report: Report) -> None:
    if not report.simulated:
        return
    rows = [("in the simulator", "arch", "problems", "launches", "M instructions", "bank conflicts", "schedules")]
    for one in report.simulated:
        ways = "-" if one.bank_conflict_ways is None else f"{one.bank_conflict_ways:g} ways"
        if one.bank_conflict_ways == 1.0:
            ways = "none"
        counts = (str(len(one.cases)), str(one.launches), f"{one.instructions / 1e6:.0f}")
        archs = ", ".join((one.arch, *(f"{arch} (same PTX)" for arch in one.same_as)))
        rows.append((one.instantiation, archs, *counts, ways, ", ".join(one.schedules)))
    for line in columns(rows, right=(2, 3, 4)):
        out.print(line, markup=False)
    for cost in (one.cost for one in report.simulated if one.cost is not None):
        heading, table = cost_table(cost)
        out.print(heading, markup=False)
        for line in columns(table, right=(0, 1, 2, 3, 4)):
            out.print(f"  {line}", markup=False)


def call_lines(result: Adaptation | Verification) -> list[str]:
    """What to pass for the kernel's own scale and switches, and what else where another head dimension needs it."""
    lines = [f"  call it with {_values(result.bindings)}"] if result.bindings else []
    others = result.report.values_elsewhere() if result.report is not None else {}
    return lines + [f"  at D = {d}: {_values(values)}" for d, values in others.items()]


def _values(values: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())


def derived_lines(result: Adaptation) -> list[str]:
    """One line for each tensor that the caller makes: its shape, bytes, and what makes it."""
    lines: list[str] = []
    for item in result.derived:
        size = f"{item.bytes} bytes" if item.bytes < 1000 else f"{item.bytes / 1000:.0f} kB"
        line = f"  {item.name}: {item.dtype} [{', '.join(item.shape)}], at most {size} at the example's lengths"
        if item.built_by is not None:
            line += f"; built by {item.built_by} of {result.drop_in_written or 'the drop-in'}"
        lines.append(line)
    return lines


def proposed_lines(result: Adaptation) -> list[str]:
    """What a model had to do with the result, and what asking it took."""
    by = result.proposed
    if by is None:
        return []
    paid = f", {by.usd:.3f} US dollars" if by.usd is not None else ""
    return [
        f"  proposed by {by.model} at {by.host}: {', '.join(by.parts)}",
        f"  accepted in round {by.rounds} after {by.attempts} attempt{'' if by.attempts == 1 else 's'}:"
        f" {by.prompt_tokens} tokens asked, {by.reply_tokens} answered, {by.seconds:.1f} s of waiting{paid}",
    ]


def next_step(result: Adaptation | Verification, written: str | None) -> str:
    """One sentence: what to do now."""
    if result.exit_code == 3:
        return "Next: run 'cubridge doctor' to see what to install."
    if result.exit_code:
        return "Next: see the first diagnostic above; it names the line and the way out."
    if isinstance(result, Verification):
        return "Next: verify again on a machine with a GPU." if result.level != "gpu" else "Nothing is left to do."
    if written is None and result.files:
        return "Next: pass -o DIR to write the files, or --format diff for `git apply` in the folder of the kernel."
    if written is None:
        return "Next: pass -o OUT.cu to write the adapted kernel."
    if result.applicability == "verified":
        return f"Next: review the diff and use {written}."
    return f"Next: 'cubridge verify {written} {result.spec.path}' on a machine with a GPU."


def failing_cases(cases: Iterable[CaseResult]) -> list[str]:
    """One line for each failing case."""
    lines: list[str] = []
    for case in cases:
        if case.passed:
            continue
        sizes = " ".join(f"{k}={v}" for k, v in case.sizes.items())
        found = case.counterexample
        where = ""
        if found is not None:
            place = ", ".join(
                f"{n}={v}" for n, v in (("b", found.b), ("h", found.h), ("i", found.i), ("d", found.d)) if v is not None
            )
            key = f", first key treated otherwise: {found.j}" if found.j is not None else ""
            where = f": {found.output.upper()}[{place}] is {found.got}, want {found.want}{key}"
        lines.append(f"  {case.name} ({sizes}; {case.dtype}, {case.schedule}){where}")
    return lines

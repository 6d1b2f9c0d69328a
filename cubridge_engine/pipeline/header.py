"""The report in the comment at the top of an adapted file, beside the lines that say how to call it
(``lower.header``).
"""

from __future__ import annotations

from ..ir.nodes import Kernel
from ..ir.text_expr import print_expr
from ..lower.header import call_lines, elsewhere_line
from ..results import WHOLE, Report, SimulatedResult
from ..spec.attention import Attention
from ..spec.dropin import DropIn
from ..verify.levels import LEVELS

MEANS = {level.name: level.means for level in LEVELS}
EXECUTED = {"ir": "as CuIR", "simulated": "in the simulator", "gpu": "on a GPU"}


def below_header(report: Report, lines: int) -> Report:
    """The report of a text that got `lines` more lines of header: costs by line speak of the lines below it."""
    moved: list[SimulatedResult] = []
    for one in report.simulated:
        if one.cost is not None:
            rows = {"lines": one.cost.lines, "calls": one.cost.calls}
            shifted = {k: tuple(c.model_copy(update={"line": c.line + lines}) for c in v) for k, v in rows.items()}
            one = one.model_copy(update={"cost": one.cost.model_copy(update=shifted)})
        moved.append(one)
    return report.model_copy(update={"simulated": tuple(moved)})


def inputs_lines(kernel: Kernel, attention: Attention) -> list[str]:
    """The widths that the kernel was adapted at, the spec's inputs (q, k and v by their roles), and its conditions."""
    inputs = [item.name if item.role == "operand" else item.role for item in attention.inputs]
    requires = [f"{name} == {size}" for name, size in attention.specialised.items() if name not in ("D", "Dv")]
    requires += [f"{a} == {b}" for a, b in attention.equal_sizes]
    requires += [f"{a} <= {b}" for a, b in attention.ordered_sizes]
    requires += [f"{name} % {attention.size_step} == 0" for name in ("Sq", "Sk") if attention.size_step > 1]
    requires += [f"{name} <= {longest}" for name, longest in attention.table_ends]
    requires += [print_expr(condition) for condition in attention.demands]
    return call_lines((kernel.D, kernel.Dv), inputs, requires)


def build_lines(drop_in: DropIn, file: str) -> list[str]:
    """How the caller makes a tensor that is no argument of the spec, in one line; where there is none, which file is
    around the kernel. `file`: the drop-in's name, if it is known.
    """
    if drop_in.derived is None:
        words = "it does what the spec does before and after the attention"
        return [f"// cubridge: around this kernel: {file}; {words}"] if file else []
    name_of = {name: name for name in drop_in.derived.reads}
    where = f"of {file}" if file else "of the drop-in written beside this file"
    keys = f"the cache, {drop_in.derived.table} that of its pages" if drop_in.derived.table else "[B, Hkv, Sk, D]"
    return [
        f"// cubridge: build {drop_in.derived.name} = {drop_in.derived.call(name_of, 'q', 'k')}"
        f"  ({where}; q is [B, H, Sq, D], k is {keys})"
    ]


def report_lines(report: Report | None) -> list[str]:
    """The report in a few comment lines; nothing that changes from run to run (no times, no machine names)."""
    if report is None:
        return ["// cubridge: level none", "// cubridge: report it was not verified"]
    lines = [f"// cubridge: level {report.level}", f"// cubridge: report {MEANS[report.level]}"]
    if report.padded is not None:
        lines.append(f"// cubridge: report padded {report.padded.text}, with zeros, by the drop-in")
    whole = [c for c in report.cases if c.name == WHOLE]
    for level, dtype in dict.fromkeys((case.level, case.dtype) for case in report.cases):
        cases = [c for c in report.cases if (c.level, c.dtype) == (level, dtype) and c not in whole]
        worst = max((float(c.worst_o) for c in cases), default=0.0)
        problems = len({(c.name, c.seed, c.sizes["D"]) for c in cases})
        lines.append(
            f"// cubridge: report {problems} problems {EXECUTED[level]} in {dtype}:"
            f" worst row error {worst:.1e} (tolerance {cases[0].tolerance:.1e})"
        )
    for case in whole:
        lines.append(
            f"// cubridge: report the whole module with the drop-in {EXECUTED[case.level]} in {case.dtype}:"
            f" worst row error {float(case.worst_o):.1e} (tolerance {case.tolerance:.1e})"
        )
    lines += [elsewhere_line(d, values) for d, values in report.values_elsewhere().items()]
    for arch in dict.fromkeys(one.arch for one in report.compiled):
        ones = [one for one in report.compiled if one.arch == arch]
        registers, spilled, shared = (
            max((getattr(one, name) or 0 for one in ones), default=0)
            for name in ("registers", "spill_bytes", "shared_bytes")
        )
        lines.append(
            f"// cubridge: report {len(ones)} instantiations on {arch}: at most {registers} registers,"
            f" {spilled} bytes spilled, {shared} bytes shared"
        )
    return lines

"""The report in the comment at the top of an adapted file, beside the lines that say how to call it
(``lower.header``).
"""

from __future__ import annotations

from ..results import Report
from ..verify.levels import LEVELS

MEANS = {level.name: level.means for level in LEVELS}
EXECUTED = {"ir": "as CuIR", "simulated": "in the simulator", "gpu": "on a GPU"}


def report_lines(report: Report | None) -> list[str]:
    """The report in a few comment lines; nothing that changes from run to run (no times, no machine names)."""
    if report is None:
        return ["// cubridge: level none", "// cubridge: report it was not verified"]
    lines = [f"// cubridge: level {report.level}", f"// cubridge: report {MEANS[report.level]}"]
    for level, dtype in dict.fromkeys((case.level, case.dtype) for case in report.cases):
        cases = [c for c in report.cases if (c.level, c.dtype) == (level, dtype)]
        worst = max((float(c.worst_o) for c in cases), default=0.0)
        problems = len({(c.name, c.seed, c.sizes["D"]) for c in cases})
        lines.append(
            f"// cubridge: report {problems} problems {EXECUTED[level]} in {dtype}:"
            f" worst row error {worst:.1e} (tolerance {cases[0].tolerance:.1e})"
        )
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

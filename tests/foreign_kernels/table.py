"""The recorded outcomes, and the funnel that they make: by family, tuned and held out apart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from .corpus import HERE, kernels

TABLE = HERE / "table.json"
Row = Mapping[str, str]
STAGES = ("kernels", "compiled", "bound", "simulated", "function", "labels S P O", "no error")
_KEY = re.compile(r"(\d+)/(\d+) right, (\d+)/(\d+) found")


def recorded() -> dict[str, dict[str, str]]:
    """Kernel -> row."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


def record(rows: Mapping[str, Row]) -> None:
    """Write the table, a kernel per line, in the order of the corpus."""
    lines = [f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in kernels() if name in rows]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def stages_of(row: Row) -> tuple[bool, ...]:
    """Which stages of STAGES a kernel got through."""
    compiled = not row.get("compiled", "no").startswith("no")
    bound = not row.get("bound", "no").startswith("no") and "not confirmed" not in row.get("bound", "")
    function = row.get("function", "-") != "-"
    labels = {"S", "P", "O"} <= {w.removeprefix("masked_") for w in row.get("labels", "").split()}
    quiet = not false_alarms(row)
    return True, compiled, bound, row.get("simulated") == "yes", function, function and labels, quiet


def false_alarms(row: Row) -> list[str]:
    """Findings of level error that nobody found to be true."""
    told = [code for how in ("reading", "watching") for code in row.get(how, "-").split(", ")]
    return [code for code in told if code != "-" and not code.endswith("(true)")]


def keyed(row: Row) -> tuple[int, int, int, int]:
    """(right, judged, found, wanted) of the key; zeros where there is none."""
    match = _KEY.match(row.get("key", ""))
    return tuple(map(int, match.groups())) if match else (0, 0, 0, 0)  # type: ignore[return-value]


def summary(rows: Mapping[str, Row]) -> str:
    """Counts per family and group."""
    lines = [f"{'':24}" + "".join(f"{stage:>14}" for stage in STAGES) + f"{'precision':>14}{'recall':>12}"]
    groups: dict[str, list[Row]] = {}
    for name, row in rows.items():
        group = "held out" if kernels()[name].held_out else "tuned"
        for label in (f"{group}: {row['family']}", f"{group}: all"):
            groups.setdefault(label, []).append(row)
    for label in sorted(groups, key=lambda text: (text.partition(":")[0] == "held out", text.endswith("all"), text)):
        members = groups[label]
        counts = [sum(column) for column in zip(*map(stages_of, members), strict=True)]
        key = [sum(column) for column in zip(*map(keyed, members), strict=True)]
        tail = f"{f'{key[0]}/{key[1]}':>14}{f'{key[2]}/{key[3]}':>12}" if key[1] else ""
        lines.append(f"{label:24}" + "".join(f"{count:>14}" for count in counts) + tail)
    return "\n".join(lines)

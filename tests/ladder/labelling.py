"""Labels of rungs against the key made by hand (``labels.toml``): precision counts labels, recall the lines to find.

``python -m tests.ladder.labelling [RUNG ...]`` prints the table; with ``--record`` it is written to ``labels.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cubridge_engine.compile import read_contract
from cubridge_engine.watch import Watched, watch_contract
from tests.foreign_kernels.key import fits, place_of
from tests.ladder.rungs import ROOT, contract_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

KEY = Path(__file__).parent / "labels.toml"
TABLE = Path(__file__).parent / "labels.json"
MORE = {"flash_fwd_sm90": ROOT / "expert_kernels" / "flash_fwd_sm90" / "contract.toml"}  # persistent: no rung
# Loads of Q, K and V are known by their addresses and need no key.
INPUTS = ("Q", "K", "V")


def key() -> dict[str, dict[str, Any]]:
    """Rung -> its family and, by role, starts of lines."""
    return tomllib.loads(KEY.read_text())


def table() -> dict[str, dict[str, Any]]:
    """What was recorded."""
    return json.loads(TABLE.read_text())


def watched(rung: str, source: bytes | None = None) -> Watched:
    """A rung, or another text in its place, watched."""
    contract = contract_of(rung) if rung not in MORE else read_contract(MORE[rung])[0]
    assert contract is not None, rung
    return watch_contract(contract, source=source)


def row_of(rung: str, found: Watched) -> dict[str, Any]:
    """Counts of labels and lines, with those that are wrong and those that were not found, each as ``role: line``."""
    table = key()[rung]
    starts: Mapping[str, list[str]] = {role: lines for role, lines in table.items() if role != "family"}
    seen = [(site.role, *place_of(site, ())) for site in found.sites if site.role not in INPUTS]
    right = [any(fits(start, path, line) for start in starts.get(role, ())) for role, path, line in seen]
    wanted = [(role, start) for role, lines in starts.items() for start in lines if start.startswith("!")]
    hit = [any(r == role and fits(start, path, line) for r, path, line in seen) for role, start in wanted]
    return {
        "family": table["family"],
        "right": sum(right),
        "labels": len(right),
        "found": sum(hit),
        "lines": len(hit),
        "wrong": [f"{role}: {line[:60]}" for (role, _, line), ok in zip(seen, right, strict=True) if not ok],
        "missed": [f"{role}: {start[1:]}" for (role, start), ok in zip(wanted, hit, strict=True) if not ok],
    }


def by_family(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The counts of each family."""
    totals: dict[str, dict[str, int]] = {}
    for row in rows.values():
        total = totals.setdefault(row["family"], dict.fromkeys(("rungs", "right", "labels", "found", "lines"), 0))
        total["rungs"] += 1
        for name in ("right", "labels", "found", "lines"):
            total[name] += row[name]
    return dict(sorted(totals.items()))


def main(arguments: list[str]) -> None:
    """Print, and record on request."""
    names = [a for a in arguments if not a.startswith("--")] or list(key())
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        rows[name] = row = row_of(name, watched(name))
        print(f"{name}: {row['right']}/{row['labels']} right, {row['found']}/{row['lines']} found", flush=True)
        for kind in ("wrong", "missed"):
            print("".join(f"  {kind} {what}\n" for what in row[kind]), end="")
    for family, total in by_family(rows).items():
        print(family, total)
    if "--record" in arguments:
        kept = table() | rows if TABLE.exists() else rows
        TABLE.write_text(json.dumps({n: kept[n] for n in key() if n in kept}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""``python -m tests.faults [base ...] [--record] [--reading] [--misses]``: what is found of the planted faults.

``--record`` writes the answers of the bases that ran into tests/faults/table.json; without it nothing is kept.
``--reading`` leaves watching out (its recorded answers stand). ``--misses`` lists what is not explained.
"""

from __future__ import annotations

import argparse
import time

from .bases import BASES
from .corpus import Fault, faults
from .table import NOT_RUN, by_reading, by_watching, false_alarms, judged, record, recorded, summary


def row_of(fault: Fault, watched: bool, old: dict[str, str]) -> dict[str, str]:
    """One line of the table."""
    reading = judged(fault, by_reading(fault.base, fault.text)).text
    watching = judged(fault, by_watching(fault.base, fault.text)).text if watched else old.get("watching", NOT_RUN)
    return {"kind": fault.kind, "made": fault.made, "reading": reading, "watching": watching}


def main() -> int:
    """Returns 1 when a clean twin has a finding of level error."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("base", nargs="*", choices=[[], *BASES], help="default: all")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--reading", action="store_true")
    parser.add_argument("--misses", action="store_true")
    arguments = parser.parse_args()
    wanted = arguments.base or list(BASES)
    started = time.process_time()
    alarms = 0
    for name in wanted:
        base = BASES[name]
        found = by_reading(base, base.text) + (() if arguments.reading else by_watching(base, base.text))
        alarms += len(false_alarms(found))
        for alarm in false_alarms(found):
            print(f"false alarm on {name}: {alarm}")
    table = recorded()
    new = {f.id: row_of(f, not arguments.reading, table.get(f.id, {})) for f in faults() if f.base.name in wanted}
    if arguments.misses:
        for name, row in new.items():
            if "explained" not in row["reading"] + row["watching"]:
                print(f"{name} ({row['kind']}): reading {row['reading']}, watching {row['watching']}")
    if arguments.record:
        merged = recorded()  # read again: other bases may have been recorded meanwhile
        for name, row in new.items():
            kept = merged.get(name, {}).get("watching", NOT_RUN) if arguments.reading else row["watching"]
            merged[name] = {**row, "watching": kept}
        record({f.id: merged[f.id] for f in faults() if f.id in merged})
    print(summary(new))
    print(f"clean twins: {len(wanted)}, false alarms: {alarms}; {time.process_time() - started:.0f} s of CPU")
    return int(alarms > 0)


if __name__ == "__main__":
    raise SystemExit(main())

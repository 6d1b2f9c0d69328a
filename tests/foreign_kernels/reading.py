"""Labels that reading gives kernels written with CuTe or CUTLASS, against the keys made by hand.

``python -m tests.foreign_kernels.reading [--record]`` makes the table reading.json. No template value is known to such
a reading, so a label stands for any instance of the kernel: it is held against the keys of all of them. A line that
must be found counts where the label is on it or on the line below (a key names the ``if``, a label the statement).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cubridge_engine.diagnostics import Span
from cubridge_engine.lift.cute import CuteReading, read_cute
from cubridge_engine.source import parse, with_includes
from tests.simulate.foreign.wheels import Missing

from .corpus import HERE, kernels
from .key import fits
from .packages import root_of

TABLE = HERE / "reading.json"
# Step of a reading -> role of a key. Loads, waits, the scale and the rescaling of O have none: they are not judged.
ROLES = {
    "qk": "S", "mask": "masked S", "row_max": "m", "exp": "P", "row_sum": "l", "l_rescale": "l",
    "pv": "O unnormalised", "normalise": "O", "store": "O", "lse": "LSE",
}  # fmt: skip
# Lines that hold a role though no key has them: a key is of what can be watched, whole rows of one instance.
MORE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "flash_fwd_kernel.h": {
        "l": ("softmax.h: summary(mi) =",),  # a lane's part of the sum
        "masked S": (
            "mask.h: tensor(make_coord(i, mi), make_coord(j, nj)) = -INFINITY",
        ),  # the statement of the key's if
    },
}


@dataclass(frozen=True)
class Text:
    """A file of a package, and the kernels of the corpus whose keys are of it (none: nobody made a key)."""

    package: str
    source: str
    keys: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


TEXTS: Mapping[str, Text] = {
    "fa2": Text("flash-attn==2.8.3", "csrc/flash_attn/src/flash_fwd_kernel.h", ("fa2_causal", "fa2_full")),
    "cutlass41": Text(
        "flash-attn==2.8.3", "csrc/cutlass/examples/41_fused_multi_head_attention/kernel_forward.h",
        ("cutlass41_f16", "cutlass41_f32"),
    ),
    "fa2_backward": Text("flash-attn==2.8.3", "csrc/flash_attn/src/flash_bwd_kernel.h"),
    "dynamic_mask": Text("flash-dmattn==1.2.2", "csrc/flash_dmattn/src/flash_fwd_kernel.h"),
    "cqsa": Text("stream-cqsa==2.2.3", "csrc/flash_attn/src/flash_fwd_kernel.h"),
    "flashinfer_mla_cute": Text(
        "flashinfer-python==0.7.4", "include/flashinfer/attention/decode_mla_cute_sm80.cuh", (), ("include",)
    ),
}  # fmt: skip


def read(text: Text) -> CuteReading:
    """The reading of a fetched file. Raises Missing."""
    root = root_of(text.package)
    path = root / text.source
    source = with_includes(
        parse(str(path), path.read_bytes()), search=[str(root / folder) for folder in text.include], budget_s=5.0
    )
    return read_cute(source)


def labels_of(found: CuteReading, home: tuple[str, ...]) -> Iterator[tuple[str, Span]]:
    """(role, place) of every judged label, at the innermost call in the files `home`."""
    for step in found.steps:
        for chain in step.places if step.name in ROLES else ():
            own = [frame for frame in chain if Path(frame.path).name in home] or [chain[-1]]
            yield ROLES[step.name], own[-1]


def row_of(name: str) -> dict[str, object]:
    """What the table has of one text. Raises Missing."""
    text = TEXTS[name]
    found = read(text)
    row: dict[str, object] = {
        "function": found.function,
        "steps": [step.name for step in found.steps],
        "why": found.why,
        "unknown": [call for call, _ in found.unknown],
    }
    if not text.keys:
        return row
    ones = [kernels()[key] for key in text.keys]
    home = tuple(ones[0].table.get("home", ())) or (Path(text.source).name,)
    labels = list(dict.fromkeys((role, s.path, s.line) for role, s in labels_of(found, home)))
    more = MORE.get(Path(text.source).name, {})
    allowed = {
        role: (*(start for one in ones for start in one.key.get(role, ())), *more.get(role, ()))
        for role in ROLES.values()
    }
    wanted = {(role, s) for role, starts in allowed.items() for s in starts if s.startswith("!")}
    wrong = [(r, p, n) for r, p, n in labels if not any(fits(s, p, _line(p, n)) for s in allowed[r])]
    hit = {(r, s) for r, s in wanted if any(r == role and _on(s, p, n) for role, p, n in labels)}
    return row | {
        "judged": len(labels),
        "right": len(labels) - len(wrong),
        "wanted": len(wanted),
        "found": len(hit),
        "wrong": [f"{r}: {Path(p).name}: {_line(p, n)}" for r, p, n in wrong],
        "missed": sorted(f"{r}: {s[1:]}" for r, s in wanted - hit),
    }


def _line(path: str, number: int) -> str:
    lines = Path(path).read_text("utf-8", "replace").splitlines()
    return lines[number].strip() if 0 <= number < len(lines) else ""


def _on(start: str, path: str, number: int) -> bool:
    return fits(start, path, _line(path, number)) or fits(start, path, _line(path, number - 1))


def recorded() -> dict[str, dict[str, object]]:
    """Text -> row."""
    return json.loads(TABLE.read_text())


def main() -> int:
    """Prints the rows; ``--record`` writes those of what could be fetched."""
    rows = recorded() if TABLE.exists() else {}
    for name in TEXTS:
        try:
            rows[name] = row_of(name)
        except Missing as reason:
            print(f"{name}: {reason}")
            continue
        print(name, json.dumps(rows[name], indent=1))
    if "--record" in sys.argv:
        lines = [f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in TEXTS if name in rows]
        TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

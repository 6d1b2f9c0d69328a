"""Labels against a key made by hand. Precision counts labels, recall the lines that must be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cubridge_engine.watch import Site, Watched

# What the key is about; loads of Q, K and V are known by their addresses and need none.
JUDGED = ("S", "masked S", "tile max", "m", "P", "tile sum", "l", "O unnormalised", "O", "LSE")


@dataclass(frozen=True)
class Score:
    """`wrong` and `missed` name role and line."""

    right: int
    judged: int
    hit: int
    wanted: int
    wrong: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def text(self) -> str:
        """``12/12 right, 7/8 found``."""
        return f"{self.right}/{self.judged} right, {self.hit}/{self.wanted} found"


@cache
def _lines(path: str) -> list[str]:
    try:
        return [line.strip() for line in Path(path).read_text("utf-8", "replace").splitlines()]
    except OSError:
        return []


def fits(start: str, path: str, line: str) -> bool:
    """Whether a line of the key is this line; ``file.h: start`` where it names the file."""
    start = start.removeprefix("!")
    file, colon, rest = start.partition(": ")
    if colon and Path(path).name == file:
        return line.startswith(rest)
    return line.startswith(start)


def place_of(site: Site, home: Sequence[str]) -> tuple[str, str]:
    """(file, text of the line) that a label is judged at: its shown line, or the innermost call in the files `home`."""
    frames = [f for f in site.chain if Path(f.path).name in home] or [site.span]
    if frames[0] is None:
        return "", ""
    lines = _lines(frames[0].path)
    return frames[0].path, lines[frames[0].line] if frames[0].line < len(lines) else ""


def scored(watched: Watched, key: Mapping[str, tuple[str, ...]], home: Sequence[str] = ()) -> Score:
    """The labels of JUDGED roles, each at the line of ``place_of``."""
    seen = [(site.role, *place_of(site, home)) for site in watched.sites if site.role in JUDGED]
    right = [any(fits(start, path, line) for start in key.get(role, ())) for role, path, line in seen]
    wanted = [(role, start) for role, starts in key.items() for start in starts if start.startswith("!")]
    hit = [any(r == role and fits(start, path, line) for r, path, line in seen) for role, start in wanted]
    return Score(
        sum(right), len(right), sum(hit), len(hit),
        tuple(f"{r}: {Path(p).name}: {t}" for (r, p, t), ok in zip(seen, right, strict=True) if not ok),
        tuple(f"{role}: {start[1:]}" for (role, start), ok in zip(wanted, hit, strict=True) if not ok),
    )  # fmt: skip

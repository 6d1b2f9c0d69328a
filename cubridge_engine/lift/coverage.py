"""How much of a kernel was understood: the landmarks of attention, and the share of statements that became
operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnostics import Span

# Landmark -> the words a report uses for it.
LANDMARKS: dict[str, str] = {
    "kv_loop": "the loop over KV tiles",
    "qk": "the product Q K^T",
    "row_max": "the row maximum",
    "exp": "the exponential P = exp(S - m)",
    "row_sum": "the row sum",
    "rescale": "the rescaling of O",
    "pv": "the product P V",
    "normalise": "the normalisation O / l",
    "store": "the store of O",
}
# What is there when the weights are a function of one score each: no state of a row.
WEIGHT_LANDMARKS: dict[str, str] = {name: LANDMARKS[name] for name in ("kv_loop", "qk", "pv", "store")}


@dataclass(frozen=True, slots=True)
class Landmark:
    """One step of attention: where it was found, or why not."""

    name: str
    words: str
    span: Span | None
    why: str = ""
    provenance: str = "syntax"  # syntax | observed: as `Origin.provenance`; read: by a library's calls, no program

    @property
    def found(self) -> bool:
        """True when the step was found."""
        return self.span is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """A step of attention that was observed when the compiled kernel ran. `span` is the line where its value is
    complete, `also` the other lines that hold it, `holds` what that is (``S (raw)``), `confidence` as of the label,
    and `problem` the sizes it was seen on. `read`: how it stands to what was read there (``agrees``, ``beside``: on
    other lines than that which reading names, ``conflicts``), '' where reading did not find the step.
    """

    name: str
    words: str
    span: Span
    holds: str
    confidence: str
    problem: str
    also: tuple[Span, ...] = ()
    read: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """`statements` of the kernel (and what it calls) that were executed; `opaque` of them were not understood."""

    landmarks: tuple[Landmark, ...] = ()
    statements: int = 0
    opaque: int = 0
    opaque_ops: int = 0
    grid: bool = False

    @property
    def share(self) -> float:
        """Share of statements that were understood, 0 to 1."""
        return 1.0 if not self.statements else 1.0 - self.opaque / self.statements

    @property
    def found(self) -> int:
        """How many landmarks were found, by reading or by watching."""
        return sum(mark.found for mark in self.landmarks)

    @property
    def observed(self) -> int:
        """How many landmarks are known from watching alone."""
        return sum(mark.found and mark.provenance == "observed" for mark in self.landmarks)

    @property
    def labelled(self) -> int:
        """How many landmarks are known from the calls of a tensor library alone (`library`)."""
        return sum(mark.found and mark.provenance == "read" for mark in self.landmarks)

    @property
    def missing(self) -> tuple[str, ...]:
        """The words of the landmarks that were not found."""
        return tuple(mark.words for mark in self.landmarks if not mark.found)

    @property
    def complete(self) -> bool:
        """True when every landmark was read and nothing is opaque. What was only observed is no program."""
        labels = self.observed or self.labelled
        return bool(self.landmarks) and not (self.missing or labels or self.opaque_ops) and self.grid

    @property
    def score(self) -> float:
        """For choosing between readings: landmarks first, then the understood share."""
        return self.found + self.share / 2 + (1 if self.complete else 0)

    def sentence(self) -> str:
        """`7 of 9 steps; missing: the row sum; 1 statement not understood`."""
        parts = [
            f"{self.found} of {len(self.landmarks)} steps" + (f" ({self.observed} observed)" * bool(self.observed))
        ]
        if self.labelled:
            parts.append("labelled by the calls of its tensor library, without a program")
        if self.missing:
            parts.append(f"missing: {', '.join(self.missing)}")
        if self.opaque_ops:
            count = max(self.opaque, 1)
            parts.append(f"{count} statement{'s' if count > 1 else ''} not understood")
        return "; ".join(parts)

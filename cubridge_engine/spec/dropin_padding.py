"""A kernel that is wider than the spec: what a drop-in adds to q, k and v, and cuts off o."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .attention import Attention, widths_of
from .dropin_derived import argument_names

FUNCTION = "with_widths"


@dataclass(frozen=True, slots=True)
class Padding:
    """The kernel's widths: D of q and k, Dv of v and o."""

    d: int
    dv: int

    def source(self, attention: Attention) -> str:
        """A function that makes a kernel for the spec's tensors of one that wants these widths."""
        inputs, taken = attention.inputs, {"kernel", "call", "F", "torch", FUNCTION, "others", "o", "lse"}
        names = argument_names([i.name for i in inputs], taken)
        by_role = {i.role: name for name, i in zip(names, inputs, strict=True) if i.role != "operand"}
        wide = {by_role[role]: f"F.pad({by_role[role]}, (0, {n} - {by_role[role]}.shape[-1]))" for role, n in self.rows}
        given = ", ".join(wide[name] if name == by_role["v"] else name for name in names)
        lse = any(output.role == "lse" for output in attention.outputs)
        d, dv = widths_of(attention, (self.d, self.dv))
        lines = [
            f"if ({by_role['q']}.shape[-1], {by_role['v']}.shape[-1]) != ({d}, {dv}):",
            f'    raise ValueError("q and k must have {d} columns, and v {dv}")',
            *(f"{by_role[role]} = {wide[by_role[role]]}" for role in "qk"),
            f"{'o, lse' if lse else 'o'} = kernel({given}, *others)",
            f"return o[..., : {by_role['v']}.shape[-1]]{', lse' if lse else ''}",
        ]
        return "\n".join(
            [
                f"def {FUNCTION}(kernel):",
                f'    """`kernel`, which takes {self.d} columns of q and k and {self.dv} of v, for fewer:',
                "    zeros are added behind them, and o is cut off again.",
                '    """',
                "",
                f"    def call({', '.join([*names, '*others'])}):",
                *(f"        {line}" for line in lines),
                "",
                "    return call",
            ]
        )

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """The width of each input."""
        return ("q", self.d), ("k", self.d), ("v", self.dv)

    def note(self, attention: Attention) -> str:
        """For the docstring of the file."""
        d, dv = widths_of(attention, (self.d, self.dv))
        have = f"{d} -> {self.d}" if (d, self.d) == (dv, self.dv) else f"{d} -> {self.d} (v: {dv} -> {self.dv})"
        return f"Padded {have}: `kernel` is called with columns of zeros behind those of q, k and v (`{FUNCTION}`)."


def statement(padding: Padding | None) -> Sequence[str]:
    """What a drop-in's function does with its kernel first."""
    return () if padding is None else (f"kernel = {FUNCTION}(kernel)",)


def functions(padding: Padding | None, attention: Attention) -> list[str]:
    """The lines of the functions that the file needs, each after two blank lines."""
    return [] if padding is None else ["", "", *padding.source(attention).splitlines()]

"""Numbers taken out of a tensor decide what runs: refused, with the form that says the same where they are lengths."""

from __future__ import annotations

from ..diagnostics import Diagnostic, make
from .lengths import cumulative_axis
from .program import Program, span_of
from .trace import Line


def data_dependent(program: Program, line: Line | int | None) -> Diagnostic:
    """CB255 for a loop over packed sequences, CB256 for one over the lengths of a batch, CB223 for any other."""
    span = span_of(program.path, program.source, line or program.line)
    names, example = program.tensor_names, program.example
    for name, tensor in zip(names, example, strict=True):
        axis = cumulative_axis(example, tensor)
        if axis is not None:
            return make("CB255", span, name=name, rows=f"{names[axis[0]]}.shape[{axis[1]}]")
    for name, tensor in zip(names, example, strict=True):
        whole = not tensor.dtype.is_floating_point and tensor.dtype.itemsize >= 4
        if whole and tensor.dim() == 1 and tensor.shape[0] == example[0].shape[0]:
            return make("CB256", span, name=name)
    return make("CB223", span, related=())

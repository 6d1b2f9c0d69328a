"""Reading a PyTorch spec: ``spec.py -> Attention``. Runs in a worker process; torch is imported in functions only."""

from . import codes as _codes
from .attention import Attention, TensorInput, TensorOutput
from .formula import evaluate_attention
from .inputs import make_inputs
from .program import Program
from .read import SpecResult, read_spec
from .reference import eager, reference

__all__ = [
    "Attention",
    "Program",
    "SpecResult",
    "TensorInput",
    "TensorOutput",
    "eager",
    "evaluate_attention",
    "make_inputs",
    "read_spec",
    "reference",
]

del _codes

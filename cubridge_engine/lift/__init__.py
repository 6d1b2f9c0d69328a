"""Lifting: CUDA text to CuIR by symbolic execution; roles from data flow, never from names."""

from . import codes as _codes
from .coverage import Coverage, Landmark, Seen
from .lifted import Lifted, lift

__all__ = ["Coverage", "Landmark", "Lifted", "Seen", "lift"]
assert _codes

"""Kernels written with CuTe, read by what the calls of its interface do.

The library's own text is not executed: `table.py` says what each call does to the tensors that it is given. What comes
out is no program but labels on lines, with the reason where there are none.
"""

from .merge import is_of_cute, with_cute
from .reading import CuteReading, CuteStep, read_cute

__all__ = ["CuteReading", "CuteStep", "is_of_cute", "read_cute", "with_cute"]

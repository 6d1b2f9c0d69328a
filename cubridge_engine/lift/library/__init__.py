"""Kernels written with a library of tensors (CuTe, CUTLASS 3), read by what the calls of its interface do.

The library's own text is not executed: `table.py` says what each call does to the tensors that it is given. What comes
out is no program but labels on lines, with the reason where there are none.
"""

from .merge import is_of_library, with_library
from .reading import LibraryReading, LibraryStep, read_library

__all__ = ["LibraryReading", "LibraryStep", "is_of_library", "read_library", "with_library"]

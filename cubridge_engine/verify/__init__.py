"""Verification: the grid of shapes, the levels, the Report. Runs in a worker process (the reference is computed by
torch).
"""

from . import codes as codes

"""Executing PTX without a GPU: NumPy over many CTAs, with checkers for races, bounds, alignment and barriers.

module = load(ptx)
run = module.launch("kernel", grid=(4, 2), block=(128,), args=[Buffer(q, name="Q"), Buffer(o, "out", "O"), 64])
run.outputs["O"], run.findings, run.counts
"""

from .buffers import Buffer
from .codes import CODES
from .counts import BankSite, Counts
from .machine import SCHEDULES, Schedule
from .run import CHECKERS, Module, Run, load
from .tensormap import TensorMap

__all__ = [
    "CHECKERS",
    "CODES",
    "SCHEDULES",
    "BankSite",
    "Buffer",
    "Counts",
    "Module",
    "Run",
    "Schedule",
    "TensorMap",
    "load",
]

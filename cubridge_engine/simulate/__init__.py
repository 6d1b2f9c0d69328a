"""Executing PTX without a GPU: NumPy over many CTAs, with checkers for races, bounds, alignment and barriers.

    module = load(ptx)
    q, o = Buffer(array, "in", "Q", isolate=2), Buffer(zeros, "out", "O", isolate=2)
    run = module.launch("kernel", grid=(4, 2), block=(128,), args=[q, o, *q.strides[:3], *o.strides[:3], 64])
    run.ok, run.outputs["O"], run.findings, run.counts, module.line_costs("kernel", run)

What a verdict needs: every shape of the grid under all of ``SCHEDULES``, each head an allocation of its own
(``isolate``), ``run.ok`` and no finding, and the outputs equal to the reference within a tolerance. Outputs are
poisoned with NaN before the launch; tensors with rows that are padded (``row_pad``) and starts that are only 16-byte
aligned (``offset``) belong to the grid. `progress` and `cancel` work inside a launch. PTX leaves the order of sums in
tensor cores and the last bits of approximate functions open: compare with tolerances, never bit for bit.
"""

from .buffers import Buffer
from .codes import CODES
from .counts import BankSite, Counts, LineCost
from .im2col import Im2colMap
from .machine import SCHEDULES, Schedule
from .run import CHECKERS, Module, Run, Struct, load
from .slices import StaticLaunch
from .static import Alignment, static_findings
from .tensormap import TensorMap

__all__ = [
    "CHECKERS",
    "CODES",
    "SCHEDULES",
    "Alignment",
    "BankSite",
    "Buffer",
    "Counts",
    "Im2colMap",
    "LineCost",
    "Module",
    "Run",
    "Schedule",
    "StaticLaunch",
    "Struct",
    "TensorMap",
    "load",
    "static_findings",
]

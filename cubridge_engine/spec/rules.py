"""The table of element rules, complete: importing this module registers every operator the reader knows."""

from __future__ import annotations

from . import ops_activations, ops_index, ops_make, ops_math
from .elements import RULES

MODULES = (ops_activations, ops_index, ops_make, ops_math)

__all__ = ["MODULES", "RULES"]

"""Transfer: (CuIR, Attention) -> target CuIR, by a table of rules."""

from . import codes as codes
from .engine import transfer
from .explain import describe
from .model import (
    Check,
    Edit,
    HeadEdit,
    InverseEdit,
    MaskEdit,
    Operand,
    ParamEdit,
    RangeEdit,
    ScoreEdit,
    StateEdit,
    Step,
    TransferResult,
    WalkEdit,
)
from .rules import RULES
from .semantics import NotAttention, Semantics, semantics_of

__all__ = [
    "RULES",
    "Check",
    "Edit",
    "HeadEdit",
    "InverseEdit",
    "MaskEdit",
    "NotAttention",
    "Operand",
    "ParamEdit",
    "RangeEdit",
    "ScoreEdit",
    "Semantics",
    "StateEdit",
    "Step",
    "TransferResult",
    "WalkEdit",
    "describe",
    "semantics_of",
    "transfer",
]

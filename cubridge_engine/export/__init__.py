"""A kernel as a PyTorch operator in one file that needs nothing of CuBridge."""

from . import codes as codes
from .plan import Extra, Number, Plan, Scales, plan_export
from .text import module_text

__all__ = ["Extra", "Number", "Plan", "Scales", "codes", "module_text", "plan_export"]

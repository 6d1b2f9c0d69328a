"""Findings without a spec: what is wrong with a kernel, by reading it and by watching it, on the responsible line."""

from . import codes as _codes
from .fixes import apply_fix, verified
from .model import CheckConfig, Checked, Edit, Finding, Fix, Rule
from .pages import page_of, pages
from .run import check, check_file, config_for, config_of

__all__ = [
    "CheckConfig",
    "Checked",
    "Edit",
    "Finding",
    "Fix",
    "Rule",
    "apply_fix",
    "check",
    "check_file",
    "config_for",
    "config_of",
    "page_of",
    "pages",
    "verified",
]
assert _codes

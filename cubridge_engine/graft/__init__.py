"""Adapting by watching: a kernel that reading does not understand, changed where it was seen to hold its scores."""

from .build import Builder
from .codes import CODES
from .contract_edit import contract_edit
from .edit import Edited, check_spec, edit
from .gate import Grafted, gate
from .graft import Understood, understand
from .model import FileEdit, Refused, Site

__all__ = [
    "CODES",
    "Builder",
    "Edited",
    "FileEdit",
    "Grafted",
    "Refused",
    "Site",
    "Understood",
    "check_spec",
    "contract_edit",
    "edit",
    "gate",
    "understand",
]

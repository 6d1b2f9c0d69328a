"""How to call a kernel: its contract, found in the file, by its launcher, by names and trial, or asked for."""

from .bind import bind
from .model import SOURCES, Binding, BindOptions, Fact, Question

__all__ = ["SOURCES", "BindOptions", "Binding", "Fact", "Question", "bind"]

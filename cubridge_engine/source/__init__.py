"""CUDA text to syntax: length-preserving sanitiser, tree-sitter-cuda, spans, includes. Reading never raises."""

from .codes import ROWS
from .flatten import Flat, flatten
from .includes import Includes, follow_includes, with_includes
from .overlay import overlay, read_bytes
from .parse import LIMIT, parse
from .preprocessor import PREDEFINED, Include, Macro
from .sanitise import RULES, Rule
from .source_file import Blanked, Function, Launch, SourceFile
from .text_index import Encoding, TextIndex

__all__ = [
    "LIMIT",
    "PREDEFINED",
    "ROWS",
    "RULES",
    "Blanked",
    "Encoding",
    "Flat",
    "Function",
    "Include",
    "Includes",
    "Launch",
    "Macro",
    "Rule",
    "SourceFile",
    "TextIndex",
    "flatten",
    "follow_includes",
    "overlay",
    "parse",
    "read_bytes",
    "with_includes",
]

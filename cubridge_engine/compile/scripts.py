"""What setup.py, a loader beside the file and CMakeLists.txt say of the compiler's flags, as far as it can be read.

Nothing is run. A macro is taken only from a list of nvcc's flags that is written down without a condition; one under a
condition is a choice of the user's, and is only named. A language standard counts from C++20: below it, C++17 does.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .checkout import roots, script_text, scripts

_NVCC_FLAG = re.compile(r"--?(expt-|use_fast_math|gencode|Xptxas|ptxas-options|threads|generate-code)")
_STD = re.compile(r"-std=c\+\+(2[0-9]|2[a-c])\b")
_CMAKE_STD = re.compile(r"(?:CUDA_STANDARD|cuda_std_|-std=c\+\+)\s*(2[0-9])\b")
_ANY_MACRO = re.compile(r"(?<![\w-])-D([A-Za-z_]\w*)")
_MACRO = re.compile(r"-D([A-Za-z_]\w*)(=[\w.+-]*)?$")
_CONDITIONS = (ast.If, ast.IfExp, ast.Try, ast.While, ast.For, ast.Match)


@dataclass(frozen=True, slots=True)
class Scripted:
    """`std` such as ``c++20`` and `defines` with the file that says them; `choices`: macro -> ``setup.py:38``."""

    std: str = ""
    std_from: str = ""
    defines: tuple[str, ...] = ()
    defines_from: str = ""
    choices: tuple[tuple[str, str], ...] = ()


def scripted(path: Path) -> Scripted:
    """What build scripts say of the file at `path`; the nearest that says a thing decides. Never raises."""
    std = std_from = defines_from = ""
    defines: tuple[str, ...] = ()
    choices: dict[str, str] = {}
    for script in scripts(path, roots(path)[-1]):
        text = script_text(script)
        if script.suffix != ".py":
            newest = max(_CMAKE_STD.findall(text), default="")
            std, std_from = (f"c++{newest}", script.name) if newest and not std else (std, std_from)
            for number, line in enumerate(text.splitlines(), 1):
                for name in _ANY_MACRO.findall(line):
                    choices.setdefault(name, f"{script.name}:{number}")
            continue
        if "nvcc" not in text and "cuda" not in text.lower():
            continue
        if (newest := max(_STD.findall(text), default="")) and not std:
            std, std_from = f"c++{newest}", script.name
        sure, open_ = _macros(text)
        if sure and not defines:
            defines, defines_from = tuple(sure), script.name
        for name, line in open_.items():
            choices.setdefault(name, f"{script.name}:{line}")
    return Scripted(std, std_from, defines, defines_from, tuple(choices.items()))


def _macros(text: str) -> tuple[list[str], dict[str, int]]:
    """Macros that are always given, and those under a condition with their lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape in the user's script is no concern of ours
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], {}
    sure: list[str] = []
    open_: dict[str, int] = {}
    for flags, always in _lists(tree, True):
        words = [(c.value, c.lineno) for c in flags if isinstance(c, ast.Constant) and isinstance(c.value, str)]
        nvcc = any(_NVCC_FLAG.match(word) for word, _ in words)
        for word, line in words:
            macro = _MACRO.match(word)
            if macro is None:
                continue
            if nvcc and always:
                sure.append(word[2:])
            else:
                open_.setdefault(macro[1], line)
    return list(dict.fromkeys(sure)), open_


def _lists(node: ast.AST, always: bool) -> Iterator[tuple[list[ast.expr], bool]]:
    """Lists of expressions (the arguments of a call, too), and whether they stand under no condition."""
    for child in ast.iter_child_nodes(node):
        free = always and not isinstance(child, _CONDITIONS)
        if isinstance(child, ast.List):
            yield child.elts, free
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "append":
            yield child.args, False
        yield from _lists(child, free)

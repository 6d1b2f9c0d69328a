"""Which instance of a template kernel to call: its name expression, dtype and head dimension."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from ..compile import Instance
from ..compile.parameters import POINTER_DTYPES
from ..compile.toolchain import find_nvcc
from ..source import SourceFile
from . import hints
from .signature import Signature

_DTYPES = (("bfloat16", re.compile(r"bf(loat)?_?16|BFloat16")), ("float16", re.compile(r"half|Half|float16|fp16")),
           ("float32", re.compile(r"\bfloat\b")))  # fmt: skip
DEFAULT_DIMS = (64, 128, 32)


def dtype_of_type(text: str) -> str:
    """The dtype that a C++ type names; '' for none."""
    return next((dtype for dtype, pattern in _DTYPES if pattern.search(text)), "")


def dtype_of(kernel: Signature, expression: str) -> str:
    """The dtype of Q: of its pointer where that says it, else of the first type among the template arguments."""
    q = next((a for a in kernel.arguments if hints.tensor_role(a.name) == "q"), None)
    q = q or next((a for a in kernel.arguments if a.kind in POINTER_DTYPES), None)
    concrete = POINTER_DTYPES.get(q.kind) if q is not None else None
    return concrete or dtype_of_type(expression.partition("<")[2]) or "float16"


def head_dims(source: SourceFile, kernel: Signature) -> list[int]:
    """Head dimensions to try: those that the file fixes by a macro, a constant or a default, then the usual ones."""
    found: list[int] = []
    for name, macro in source.macros.items():
        if macro.params is None and hints.size_role(name) == "D" and macro.body.strip(" ()").isdigit():
            found.append(int(macro.body.strip(" ()")))
    text = source.code.decode("utf-8", "replace")
    for name, value in re.findall(r"\b(?:constexpr|const)\s+(?:static\s+)?\w+\s+(\w+)\s*=\s*(\d+)\s*;", text):
        if hints.size_role(name) == "D":
            found.append(int(value))
    for template in kernel.templates:
        if hints.size_role(template.name) == "D" and template.default.isdigit():
            found.append(int(template.default))
    known = [d for d in dict.fromkeys(found) if 8 <= d <= 512]
    return known or list(DEFAULT_DIMS)


def expression_of(kernel: Signature, arguments: Sequence[str]) -> str:
    """``ns::kernel<__half, 64>``."""
    return f"{kernel.qualified}<{', '.join(arguments)}>" if arguments else kernel.qualified


def guessed_arguments(kernel: Signature, head_dim: int, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Template arguments from names and defaults, and the template parameters that nothing is known of."""
    found: list[str] = []
    open_: list[str] = []
    for template in kernel.templates:
        name = template.name
        if name in known:
            found.append(known[name])
        elif template.kind in ("typename", "class"):
            found.append("float" if re.search(r"acc|compute", name.lower()) else "__half")
        elif hints.size_role(name) in ("D", "Dv"):
            found.append(str(head_dim))
        elif template.default:
            found.append(template.default)
        elif template.kind == "bool" or hints.is_causal(name):
            found.append("false")
        elif re.search(r"threads|warp", name.lower()):
            found.append("4" if "warp" in name.lower() else "128")
        elif re.fullmatch(r"(k?b[rcmn]|k?block_?[mnrckv]\w*|tile\w*|br|bc)", name.lower()):
            found.append("32")
        else:
            open_.append(name)
            found.append("")
    return found, open_


def demangled(name: str) -> str:
    """``flash::fwd<__half, 64>`` of a name in the PTX; the name itself where no tool is there to ask."""
    nvcc = find_nvcc()
    tool = shutil.which("c++filt") or (str(nvcc.parent / "cu++filt") if nvcc is not None else None)
    if tool is None or not name.startswith("_Z"):
        return name
    try:
        done = subprocess.run([tool, name], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return name
    text = done.stdout.strip() or name
    return _without_parameters(re.sub(r"\((?:unsigned )?(?:int|long|bool)\)", "", text))


def _without_parameters(text: str) -> str:
    depth = 0
    for index, char in enumerate(text):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0 and not text[index:].startswith("(anonymous namespace)"):
            text = text[:index]
            break
    return text.replace("(anonymous namespace)::", "").removeprefix("void ").strip()


def instance_for(kernel: Signature, expression: str, head_dim: int, dtype: str = "") -> Instance:
    """The instance of an expression."""
    return Instance(expression, dtype or dtype_of(kernel, expression), head_dim, head_dim)

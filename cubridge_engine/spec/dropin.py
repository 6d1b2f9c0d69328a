"""The drop-in: the user's function again, as a Python file that leaves the attention to a kernel given to it.

Generated from the traced graph: the lines before and after the attention, with the user's own lines as comments, his
variable names where they are known, and sizes taken from the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .attention import Attention, Paging, TensorInput
from .core import Core
from .dropin_body import Body, NoDropIn
from .dropin_derived import CALL, Derived, argument_names, call_function
from .dropin_padding import FUNCTION, Padding, functions, statement
from .dropin_sizes import variants_of
from .program import Program
from .trace import flatten_outputs
from .unify import NotUnified

_INDENT = "    "


@dataclass(frozen=True)
class DropIn:
    """The file, and the function `name` in it. `core` is None where the spec is the attention alone."""

    text: str
    core: Core | None
    attention: Attention
    program: Program  # the user's function, whose place it takes
    name: str
    derived: Derived | None = None
    paged: bool = False  # the kernel takes k and v in pages, and their table behind the inputs

    def run(self, inputs: Sequence[Any], kernel: Callable[..., Any]) -> list[Any]:
        """The outputs on these arguments with that kernel. Raises what either raises."""
        import torch

        scope: dict[str, Any] = {}
        exec(compile(self.text, "drop-in", "exec"), scope)
        own = (self.program.module,) if self.core is not None and self.program.module is not None else ()
        with torch.no_grad():
            return flatten_outputs(scope[self.name](*own, *inputs, kernel=kernel))


def drop_in(
    core: Core,
    attention: Attention,
    notes: Sequence[str] = (),
    derived: Derived | None = None,
    padding: Padding | None = None,
    paged: bool = False,
) -> DropIn:
    """The file. `notes` are added to its docstring; `derived` is a tensor that the kernel takes after the inputs, and
    `padding` its widths where they are not the spec's. `paged`: it takes the caches themselves for k and v, and the
    table of their pages after the inputs. Raises NoDropIn, and what tracing raises.
    """
    program = core.whole.program
    arguments = argument_names(program.tensor_names)
    taken = {"module", "kernel", "torch", "F", "device", FUNCTION, *arguments}
    taken |= {CALL, *derived.names} if derived is not None else set()
    try:
        variants = variants_of(core, taken)
        call = "kernel(" if derived is None else f"{CALL}(kernel, "
        body = Body(core, attention, variants, arguments, taken | set(variants.names), call, paged)
        lines = body.lines()
    except NotUnified as error:
        raise NoDropIn(str(error)) from None
    return DropIn(
        _file(core, attention, body, (*statement(padding), *lines), notes, derived, padding),
        core,
        attention,
        program,
        _name(program),
        derived,
        paged,
    )


def _name(program: Program) -> str:
    return "attention" if program.is_module else f"{program.entry}_with_kernel"


def _structure(result: Any, names: list[str]) -> str:
    """The function's result with each tensor replaced by the next name: tuples, lists and dicts stay what they are."""
    import torch

    if result is None:
        return "None"
    if isinstance(result, torch.Tensor):
        return names.pop(0)
    if isinstance(result, dict):
        return "{" + ", ".join(f"{k!r}: {_structure(v, names)}" for k, v in result.items()) + "}"
    inner = ", ".join(_structure(v, names) for v in result)
    return f"[{inner}]" if isinstance(result, list) else f"({inner}{',' if len(result) == 1 else ''})"


def _result(core: Core, body: Body) -> str:
    """What the function returns; None in the place of an output that does not count."""
    import torch

    program = core.whole.program
    with torch.no_grad():
        example = replace(program, outputs=None).call(program.example)
    own = [body.value(n) if body.graph.is_node(n) else repr(n) for n in body.graph.outputs]
    names = dict(zip(program.outputs or range(len(own)), own, strict=True))
    return _structure(example, [names.get(n, "None") for n in range(len(flatten_outputs(example)))])


def _file(
    core: Core,
    attention: Attention,
    body: Body,
    lines: Sequence[str],
    notes: Sequence[str],
    derived: Derived | None,
    padding: Padding | None,
) -> str:
    program = core.whole.program
    file = Path(program.path).name
    module = program.is_module
    name = _name(program)
    own = ["module"] if program.module is not None else []
    parameters = [*own, *body.arguments, "*", "kernel"]
    paging = attention.paging if body.paged else None
    given = [i.name for i in attention.inputs] + ([paging.table] if paging is not None else [])
    given += [derived.name] if derived is not None else []
    fixed = [
        f"{n} = {v!r}"
        for n, v in zip(program.names, program.arguments, strict=True)
        if n not in program.tensor_names and isinstance(v, (int, float, bool, str, type(None)))
    ]
    head: list[str] = [
        f'"""{program.entry} of {file}, with its attention computed by a kernel.',
        "",
        f"``kernel({', '.join(given)})`` returns o [B, H, Sq, Dv]. It is called with",
        "",
        *(_described(i, paging) for i in attention.inputs),
        *(_table_lines(paging) if paging is not None else []),
        *([f"- {derived.name}: {derived.what}"] if derived is not None else []),
        "",
        "Strides are as they come: use `.contiguous()` in `kernel` if it needs that.",
        *([f"As in the example: {', '.join(fixed)}."] if fixed else []),
        *([padding.note(attention)] if padding is not None else []),
        *notes,
        '"""',
        "",
        "import torch",
        "import torch.nn.functional as F",
        *(_functions(derived, attention) if derived is not None else []),
        *functions(padding, attention),
        "",
        "",
        f"def {name}({', '.join(parameters)}):",
        f'{_INDENT}"""{_summary(program)}"""',
    ]
    code = [_INDENT + line for line in lines] + [f"{_INDENT}return {_result(core, body)}"]
    tail = _class(program.entry, body.arguments) if module else []
    text = "\n".join([*head, *code, *tail]) + "\n"
    return (
        text
        if padding is not None or "F." in "\n".join(code)
        else text.replace("import torch.nn.functional as F\n", "")
    )


def _functions(derived: Derived, attention: Attention) -> list[str]:
    return ["", *derived.source.splitlines(), "", "", *call_function(derived, attention.inputs).splitlines()]


def _summary(program: Program) -> str:
    if program.is_module:
        return f"The computation of {program.entry}.forward; weights are those of `module`."
    file = Path(program.path).name
    return f"The computation of {program.entry}" + (
        "." if program.module is None else f"; `module` is {file} imported, whose modules it uses."
    )


def _class(entry: str, arguments: Sequence[str]) -> list[str]:
    given = ", ".join(arguments)
    return [
        "",
        "",
        f"class {entry}WithKernel(torch.nn.Module):",
        f'    """Takes the place of {entry} and uses its weights."""',
        "",
        "    def __init__(self, module, kernel):",
        "        super().__init__()",
        "        self.module = module",
        "        self.kernel = kernel",
        "",
        f"    def forward(self, {given}):",
        f"        return attention(self.module, {given}, kernel=self.kernel)",
    ]


def shape_text(item: TensorInput) -> str:
    """``[B, H, Sq, D]``: the shape in which an input is handed to the kernel."""
    names = {"b": "B", "h": "H", "hk": "Hkv", "i": "Sq", "j": "Sk", "d": "Dv" if item.role == "v" else "D"}
    axes = [names.get(a, a) for a in item.axes]
    if item.role != "operand":
        have = {"hk": "h", "j": "i"}
        letters = [have.get(a, a) for a in item.axes]
        axes = ["1" if letter not in letters else axes[letters.index(letter)] for letter in "bhid"]
    return f"[{', '.join(axes)}]"


def _described(item: TensorInput, paging: Paging | None) -> str:
    if paging is None or item.role not in ("k", "v"):
        return f"- {item.name}: {shape_text(item)}, {item.dtype}{_where(item)}"
    name, width = (paging.k, "D") if item.role == "k" else (paging.v, "Dv")
    return f"- {item.name}: [pages, Hkv, {paging.size}, {width}], {item.dtype}: {name} where it is"


def _table_lines(paging: Paging) -> list[str]:
    where = f"row j % {paging.size} of page {paging.table}[b, j // {paging.size}]"
    return [
        f"- {paging.table}: [B, Sk // {paging.size}], {paging.dtype}: key j of sequence b is {where}",
    ]


def _where(item: TensorInput) -> str:
    return f" ({item.computed.split(':')[0]})" if item.computed else ""


__all__ = ["DropIn", "NoDropIn", "drop_in", "shape_text"]

"""`lift` and `spec`: what a kernel does, what a spec means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, cast

from ..diagnostics import Diagnostic
from ..ir.inner_lines import with_inner_lines
from ..ir.text import print_kernel
from ..ir.text_expr import print_expr
from ..results import Lifting, SpecReading
from ..spec import read_spec
from ..spec.attention import Attention
from ..verify.stages import Progress, Stages
from .common import diagnostic_dicts, exit_code
from .files import Options, file_ref, lift_at, parse_kernel_file, read_file
from .spec_page import draw, page


def lift_kernel(kernel_path: str, options: Options | None = None, progress: Progress = lambda *_: None) -> Lifting:
    """Read a kernel file into CuIR text. Needs no torch; never raises."""
    options = options or Options()
    stages = Stages(("parse", "lift"), progress)
    diagnostics: list[Diagnostic] = []
    data, problems = read_file(kernel_path)
    diagnostics.extend(problems)
    lifted: Any = None
    if data is not None:
        with stages.run("parse"):
            source = parse_kernel_file(kernel_path, data)
            diagnostics.extend(source.diagnostics)
        with stages.run("lift") as stage:
            lifted = lift_at(source, options.kernel_name, options.head_dim)
            diagnostics.extend(d for d in lifted.diagnostics if d not in diagnostics)
            if lifted.kernel is None:
                stage.fail("no attention kernel was understood")
    kernel = lifted.kernel if lifted is not None else None
    return Lifting.model_validate(
        {
            "command": "lift",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": tuple(stages.done),
            "exit_code": max(exit_code(diagnostics), 1 if kernel is None else 0),
            "kernel": file_ref(kernel_path, data),
            "kernel_name": kernel.name if kernel is not None else None,
            "summary": lifted.summary if lifted is not None else "",
            "cuir": print_kernel(with_inner_lines(kernel), lines=True) if kernel is not None else "",
            "coverage": plain(lifted.coverage) if lifted is not None else {},
        }
    )


def read_spec_file(
    spec_path: str,
    options: Options | None = None,
    progress: Progress = lambda *_: None,
    tiles: Mapping[str, int] | None = None,
) -> SpecReading:
    """Read a spec file: the attention it means, as text in the scalar language. Runs the user's code: worker only.

    `tiles` asks for the tile map of its mask (see `mask_map.tiles_of`).
    """
    options = options or Options()
    stages = Stages(("spec",), progress)
    diagnostics: list[Diagnostic] = []
    data, problems = read_file(spec_path)
    diagnostics.extend(problems)
    attention: dict[str, Any] | None = None
    drawn: dict[str, Any] | None = None
    if data is not None:
        with stages.run("spec") as stage:
            result = read_spec(spec_path, **options.reading(), head_dim=options.head_dim)
            diagnostics.extend(result.diagnostics)
            if result.attention is None or result.program is None:
                stage.fail("the spec was not understood")
            else:
                attention = attention_dict(result.attention) | page(result.attention, result.program)
                if tiles is not None:
                    drawn, problems = draw(result.attention, result.program, attention["summary"], tiles)
                    diagnostics.extend(problems)
    return SpecReading.model_validate(
        {
            "command": "spec",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": tuple(stages.done),
            "exit_code": exit_code(diagnostics),
            "spec": file_ref(spec_path, data),
            "attention": attention,
            "tiles": drawn,
        }
    )


def attention_dict(attention: Attention) -> dict[str, Any]:
    """An Attention as JSON: expressions in their text form, tensors with role, axes and dtype, 0-based lines of its
    parts.
    """

    def text(expr: Any) -> str | None:
        return None if expr is None else print_expr(expr)

    return {
        "name": attention.name,
        "score": text(attention.score),
        "mask": text(attention.mask),
        "fill": text(attention.fill),
        "sink": text(attention.sink),
        "head_map": text(attention.head_map),
        "normaliser": attention.normaliser,
        "divisor": text(attention.divisor),
        "empty_rows": attention.empty_rows,
        "inputs": [
            {"name": t.name, "role": t.role, "axes": list(t.axes), "dtype": t.dtype, "computed": t.computed}
            for t in attention.inputs
        ],
        "outputs": [{"role": t.role, "axes": list(t.axes), "dtype": t.dtype} for t in attention.outputs],
        "specialised": dict(attention.specialised),
        "equal_sizes": [list(pair) for pair in attention.equal_sizes],
        "ordered_sizes": [list(pair) for pair in attention.ordered_sizes],
        "lines": {name: span.line for name, span in attention.spans.items()},
        "cut": None if attention.cut is None else plain(attention.cut),
    }


def plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON values; anything else as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast("list[object]", value)]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)

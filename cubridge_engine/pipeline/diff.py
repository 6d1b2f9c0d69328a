"""`diff`: two kernels compared, what they compute apart from how. Runs in a worker process; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..compile import Contract
from ..compile.kept import engine_stamp, key_of, load_json, store_json
from ..diagnostics import Diagnostic, make
from ..lift import Lifted
from ..results import Diffed
from ..source import SourceFile
from ..understand.compare import compare
from ..understand.model import Comparison, Difference, Witness
from ..verify.stages import Progress, Stages
from .common import diagnostic_dicts, exit_code
from .explain import lifted_for_reading, lines_of, unknown_name
from .files import Options, contract_of, file_ref, lift_at, parse_kernel_file, read_file
from .widths import widths_of_kernel

KIND = "diff"


@dataclass(slots=True)
class _Side:
    """One of the two files."""

    path: str
    options: Options
    data: bytes | None = None
    source: SourceFile | None = None
    lifted: Lifted | None = None
    contract: Contract | None = None

    @property
    def name(self) -> str | None:
        """Its kernel's name, where one was read."""
        return self.lifted.kernel.name if self.lifted is not None and self.lifted.kernel is not None else None


def diff_kernels(
    a: str,
    b: str,
    options: Options | None = None,
    b_kernel_name: str | None = None,
    progress: Progress = lambda *_: None,
) -> Diffed:
    """Compare the kernel of file `b` with that of file `a`. Never raises for what they hold."""
    options = options or Options()
    stages = Stages(("parse", "lift", "compare"), progress)
    sides = (_Side(a, options), _Side(b, replace(options, kernel_name=b_kernel_name or options.kernel_name)))
    diagnostics: list[Diagnostic] = []
    with stages.run("parse"):
        for side in sides:
            diagnostics += _parse(side)
    if any(side.source is None for side in sides):
        return _result(sides, diagnostics, stages, {})
    key = key_of(*_decides(sides))
    kept = load_json(KIND, key)
    if kept is not None:
        stages.note("lift", "skipped", "kept from an earlier run")
        stages.note("compare", "skipped", "kept from an earlier run")
        return _result(sides, [], stages, kept["table"]).model_copy(update={"diagnostics": tuple(kept["diagnostics"])})
    with stages.run("lift") as stage:
        unread = _lift(sides, diagnostics)
        if unread:
            stage.fail(unread)
    if unread:
        return _result(sides, diagnostics, stages, {"why": unread})
    one, other = (side.lifted.kernel for side in sides if side.lifted is not None)
    assert one is not None
    assert other is not None
    with stages.run("compare"):
        comparison = compare(one, other, (sides[0].contract, sides[1].contract))
    table = _table(comparison, a, b) | {"a_name": sides[0].name, "b_name": sides[1].name}
    store_json(KIND, key, {"table": table, "diagnostics": diagnostic_dicts(diagnostics)})
    return _result(sides, diagnostics, stages, table)


def _parse(side: _Side) -> list[Diagnostic]:
    side.data, problems = read_file(side.path)
    if side.data is None:
        return list(problems)
    side.source = parse_kernel_file(side.path, side.data)
    return [*problems, *side.source.diagnostics]


def _decides(sides: tuple[_Side, _Side]) -> list[str | bytes]:
    texts: list[str | bytes] = [engine_stamp()]
    for side in sides:
        assert side.source is not None
        texts += [side.path, side.source.data, repr(side.options), *(h.source.data for h in side.source.headers)]
    return texts


def _lift(sides: tuple[_Side, _Side], diagnostics: list[Diagnostic]) -> str:
    """Lift both, at the same widths where that is possible. Returns why that failed, or ''."""
    for side in sides:
        assert side.source is not None
        wrong = unknown_name(side.source, side.options.kernel_name)
        if wrong is not None:
            diagnostics.append(wrong)
            return wrong.message
        side.lifted = lifted_for_reading(side.source, side.options)
        diagnostics.extend(d for d in side.lifted.diagnostics if d not in diagnostics)
        if side.lifted.kernel is None or not side.lifted.coverage.complete:
            span = side.source.span_of(0, 0)
            if side.lifted.kernel is None:
                diagnostics.append(make("CB023", span, path=side.path))
            else:
                diagnostics.append(make("CB027", side.lifted.kernel.origin.span, what=side.lifted.coverage.sentence()))
            return f"{side.path} was not understood: {side.lifted.coverage.sentence()}"
    _same_widths(*sides)
    for side in sides:
        assert side.lifted is not None
        side.contract, problems = contract_of(side.path, side.lifted.kernel)
        diagnostics.extend(problems)
    return ""


def _same_widths(a: _Side, b: _Side) -> None:
    """Read one again at the other's widths, where it is a template over them."""
    for side, other in ((b, a), (a, b)):
        assert side.lifted is not None
        assert other.lifted is not None
        assert side.source is not None
        assert side.lifted.kernel is not None
        assert other.lifted.kernel is not None
        widths = widths_of_kernel(other.lifted.kernel)
        if widths_of_kernel(side.lifted.kernel) == widths:
            return
        again: Lifted = lift_at(side.source, side.options.kernel_name, widths)
        if again.coverage.complete:
            side.lifted = again


def _table(c: Comparison, a: str, b: str) -> dict[str, Any]:
    return {
        "same": c.same,
        "why": c.why,
        "setting": c.setting,
        "semantic": [_difference(d, a, b) for d in c.semantic],
        "orchestration": [
            {
                "key": x.key,
                "name": x.name,
                "a": x.a,
                "b": x.b,
                "a_lines": lines_of(x.a_spans, a),
                "b_lines": lines_of(x.b_spans, b),
            }
            for x in c.orchestration
        ],
    }


def _difference(d: Difference, a: str, b: str) -> dict[str, Any]:
    return {
        "part": d.part,
        "sentence": d.sentence,
        "a": d.expected,
        "b": d.found,
        "a_lines": lines_of([d.expected_span] if d.expected_span is not None else [], a),
        "b_lines": lines_of([d.span] if d.span is not None else [], b),
        "witness": None if d.witness is None else _witness(d.witness),
    }


def _witness(w: Witness) -> dict[str, Any]:
    return {
        "sizes": dict(w.sizes),
        "b": w.b,
        "h": w.h,
        "i": w.i,
        "j": w.j,
        "in_a": w.expected,
        "in_b": w.found,
        "values": dict(w.values),
    }


def _result(
    sides: tuple[_Side, _Side], diagnostics: list[Diagnostic], stages: Stages, table: Mapping[str, Any]
) -> Diffed:
    return Diffed.model_validate(
        {
            "command": "diff",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": tuple(stages.done),
            "exit_code": max(exit_code(diagnostics), 0 if table.get("same") is True else 1),
            "a": file_ref(sides[0].path, sides[0].data),
            "b": file_ref(sides[1].path, sides[1].data),
            **table,
        }
    )

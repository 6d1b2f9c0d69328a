"""What `check` looks for on request only, since it takes seconds: differences from an expectation, and what executing
the kernel shows. The results are kept, by the content of everything that decides them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..bind import Binding, BindOptions, bind
from ..compile import Contract
from ..compile.alone import AloneOptions, compiled_alone
from ..compile.kept import engine_stamp, key_of, load_json, store_json
from ..diagnostics import Diagnostic, Severity, diagnostic_from_json, diagnostic_to_json
from ..lift import Lifted
from ..spec.attention import Attention
from ..verify.targets import archs_of
from .expect import parse_expect
from .expectation import expected_findings
from .fixes import fix_from_json, fix_to_json
from .model import Finding
from .subject import Subject
from .watching import Progress, Watchable, watch_findings, watchable

KIND = "watch"


@dataclass(frozen=True, slots=True)
class Request:
    """`watch`: execute the kernel. `expect`: words of an expectation; `attention`: that of a spec, in its place."""

    watch: bool = False
    expect: str = ""
    attention: Attention | None = None
    arch: str = ""

    @property
    def expects(self) -> bool:
        """True when something is expected of the kernel's function."""
        return bool(self.expect) or self.attention is not None


@dataclass(frozen=True, slots=True)
class Answered:
    """`findings` of watching and of expectation; `diagnostics` say why something could not be looked for, `notes` what
    was left out; `launches` of `cases` were executed, in `seconds`.
    """

    findings: tuple[Finding, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    notes: tuple[str, ...] = ()
    launches: int = 0
    cases: tuple[str, ...] = ()
    seconds: float = 0.0


def answer(
    path: str,
    data: bytes,
    lifted: Lifted,
    contract: Contract | None,
    request: Request,
    progress: Progress = lambda share, text: None,
) -> Answered:
    """Look for what was requested. Without a contract, how to call the kernel is found out first (room ``bind``).

    Raises what `progress` raises, where the job was cancelled.
    """
    kernel = lifted.kernel
    width = (kernel.D, kernel.Dv) if kernel is not None else (64, 64)
    if contract is not None and contract.instances and width[0] not in contract.head_dims:
        width = contract.instances[0].widths
    expected, problems = request.attention, tuple[Diagnostic, ...]()
    if request.expect and expected is None:
        expected, problems = parse_expect(request.expect, *width)
        if expected is None:
            return Answered(diagnostics=problems)
    result = Answered()
    if expected is not None and kernel is not None:
        found, notes = expected_findings(kernel, expected, contract)
        result = replace(result, findings=found, notes=notes)
    elif expected is not None:
        result = replace(result, notes=("the kernel was not read as a whole: only watching can compare its function",))
    if not request.watch:
        return result
    watched = _watched(path, data, lifted, contract, expected, request, width[0], progress)
    return _joined(result, watched)


def _watched(
    path: str,
    data: bytes,
    lifted: Lifted,
    contract: Contract | None,
    expected: Attention | None,
    request: Request,
    head_dim: int,
    progress: Progress,
) -> Answered:
    name = lifted.kernel.name if lifted.kernel is not None else ""
    bound: Binding | None = None
    if contract is None:
        progress(0.0, "how to call the kernel")
        bound = bind(path, data, BindOptions(kernel=name))
        contract = bound.contract
        if contract is None:
            asked = tuple(question.text for question in bound.questions)
            return Answered((), bound.diagnostics, (*asked, "the kernel was not executed: how to call it is not known"))
    key = key_of(engine_stamp(), path, data, repr(contract), repr(expected), name, request.arch)
    kept = _kept(key)
    if kept is not None:
        progress(1.0, "kept from an earlier run")
        return kept
    subject, problems = _subject(path, data, contract, bound, request.arch, head_dim)
    if subject is None:
        return Answered((), problems, ("the kernel was not executed: it does not compile",))
    read = Subject(lifted.source, lifted, contract) if lifted.source is not None else None
    report = watch_findings(replace(subject, read=read), expected, progress)
    result = Answered(report.findings, (), report.notes, report.launches, report.cases, report.seconds)
    store_json(KIND, key, _table(result))
    return result


def _subject(
    path: str, data: bytes, contract: Contract, bound: Binding | None, arch: str, head_dim: int
) -> tuple[Watchable | None, tuple[Diagnostic, ...]]:
    """The kernel compiled: as it stands, else without its host code."""
    dims = contract.head_dims
    chosen = head_dim if head_dim in dims else dims[0]
    subject, problems = watchable(path, data, contract, arch=arch, head_dim=chosen)
    if subject is not None:
        return subject, ()
    instance = next(i for i in contract.instances if i.head_dim == chosen)
    alone = bound.compiled if bound is not None else None
    if alone is None or instance.expression not in alone.lowered:
        target = arch or archs_of((), contract, data)[0]
        alone = compiled_alone(path, data, AloneOptions(arch=target, expressions=(instance.expression,)))
    if alone.ptx is None or instance.expression not in alone.lowered:
        return None, alone.diagnostics or problems
    return Watchable(path, data, contract, instance, alone.ptx, alone.lowered[instance.expression]), ()


def _joined(expectation: Answered, watched: Answered) -> Answered:
    """Both, each cause once: wrong numbers at a line that the expectation names say the same again."""
    lines = {f.span.line for f in expectation.findings if f.span is not None}
    rest = [f for f in watched.findings if not (f.code in ("CB880", "CB881", "CB883") and lines and _same(f, lines))]
    return replace(
        watched,
        findings=(*expectation.findings, *rest),
        diagnostics=(*expectation.diagnostics, *watched.diagnostics),
        notes=(*expectation.notes, *watched.notes),
    )


def _same(found: Finding, lines: set[int]) -> bool:
    return found.span is None or found.span.line in lines or found.code == "CB881"


def _table(result: Answered) -> dict[str, Any]:
    return {
        "findings": [
            {
                "diagnostic": diagnostic_to_json(f.diagnostic),
                "kind": f.kind,
                "confidence": f.confidence,
                "method": f.method,
                "fix": None if f.fix is None else fix_to_json(f.fix),
            }
            for f in result.findings
        ],
        "notes": list(result.notes),
        "launches": result.launches,
        "cases": list(result.cases),
        "seconds": result.seconds,
    }


def _kept(key: str) -> Answered | None:
    table = load_json(KIND, key)
    if table is None:
        return None
    try:
        found = tuple(
            Finding(
                diagnostic_from_json(f["diagnostic"]),
                f["kind"],
                f["confidence"],
                f["method"],
                None if f["fix"] is None else fix_from_json(f["fix"]),
            )
            for f in table["findings"]
        )
        return Answered(found, (), tuple(table["notes"]), table["launches"], tuple(table["cases"]), table["seconds"])
    except (KeyError, TypeError):  # of another version
        return None


def has_error(answered: Answered) -> bool:
    """True when something was found that is proven wrong."""
    return any(f.severity is Severity.ERROR for f in answered.findings)

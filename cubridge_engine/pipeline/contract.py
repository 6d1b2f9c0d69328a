"""`contract`: how a kernel is called, found and, on request, written beside it. Runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..bind import SOURCES, Binding, BindOptions, Fact, bind
from ..compile.contract_text import contract_text
from ..diagnostics import Diagnostic, Span, make
from ..results import Bound, BoundFactResult, QuestionResult
from ..verify.stages import Progress, Stages
from .common import diagnostic_dicts, exit_code
from .files import Options, file_ref, read_file


@dataclass(frozen=True, slots=True)
class ContractRequest:
    """What is asked: `answers` by parameter or word, whether host code may run (`record`) and the call be tried
    (`trial`), whether to look `again` beside a contract.toml, whether to `write` one, and over an old one (`force`).
    """

    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    record: bool = True
    trial: bool = True
    again: bool = False
    arch: str = "sm_80"
    seconds: float = 120.0
    write: bool = False
    force: bool = False


def find_contract(
    kernel_path: str,
    options: Options | None = None,
    request: ContractRequest | None = None,
    progress: Progress = lambda *_: None,
) -> Bound:
    """Find out how the kernel is called; write its contract where that is asked. Never raises for what it holds."""
    options, request = options or Options(), request or ContractRequest()
    stages = Stages(("bind", "write"), progress)
    data, problems = read_file(kernel_path)
    if data is None:
        return _result(kernel_path, None, None, problems, None, stages)
    with stages.run("bind") as stage:
        wanted = BindOptions(
            kernel=options.kernel_name or "",
            answers={name: str(value) for name, value in request.answers.items()},
            record=request.record,
            trial=request.trial,
            ignore_contract=request.again,
            arch=request.arch,
            seconds=request.seconds,
        )
        binding = bind(kernel_path, data, wanted, progress=progress)
        if binding.contract is None:
            stage.fail("what only the user knows is open" if binding.questions else "it was not found")
    diagnostics = list(binding.diagnostics)
    written: Path | None = None
    if request.write and binding.contract is not None:
        with stages.run("write") as stage:
            written, problem = _write(kernel_path, binding, request.force)
            if problem is not None:
                diagnostics.append(problem)
                stage.fail("nothing was written")
    return _result(kernel_path, data, binding, diagnostics, written, stages)


def _text(binding: Binding) -> str | None:
    if binding.contract is None:
        return None
    notes = (
        f"How to compile and call {binding.kernel}: {binding.tried or 'not tried'}.",
        *dict.fromkeys(f"{SOURCES[fact.source]}: {fact.where}" for fact in binding.facts if fact.source != "contract"),
        "cubridge_engine/compile/contract.py documents the fields and the roles.",
    )
    return contract_text(binding.contract, notes)


def _write(kernel_path: str, binding: Binding, force: bool) -> tuple[Path | None, Diagnostic | None]:
    """Write contract.toml beside the kernel; CB628 where one is there, CB004 where it cannot be."""
    target = Path(kernel_path).parent / "contract.toml"
    start = Span(str(target), 0, 0, 0, 0, 0, 0)
    text = _text(binding)
    assert text is not None, "only a whole contract is written"
    try:
        # 'x' fails for a file that is there, even one that appeared just now.
        with target.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        return None, make("CB628", start, path=str(target))
    except OSError as error:
        return None, make("CB633", start, path=str(target), reason=error.strerror or str(error))
    return target, None


def _place(span: Span | None) -> dict[str, Any] | None:
    return asdict(span) if span is not None and span.path else None


def _result(
    kernel_path: str,
    data: bytes | None,
    binding: Binding | None,
    diagnostics: list[Diagnostic] | tuple[Diagnostic, ...],
    written: Path | None,
    stages: Stages,
) -> Bound:
    facts = binding.facts if binding is not None else ()
    questions = binding.questions if binding is not None else ()
    code = exit_code(diagnostics)
    return Bound(
        command="contract",
        diagnostics=diagnostic_dicts(diagnostics),
        stages=tuple(stages.done),
        exit_code=code or (0 if binding is not None and binding.contract is not None else 1),
        kernel=file_ref(kernel_path, data),
        kernel_name=binding.kernel or None if binding is not None else None,
        way=binding.way if binding is not None else "",
        tried=binding.tried if binding is not None else "",
        facts=tuple(_fact(fact) for fact in facts),
        questions=tuple(
            QuestionResult(what=q.what, subject=q.subject, text=q.text, candidates=q.candidates, span=_place(q.span))
            for q in questions
        ),
        contract=_text(binding) if binding is not None else None,
        exists=(Path(kernel_path).parent / "contract.toml").is_file(),
        written=str(written) if written is not None else None,
    )


def _fact(fact: Fact) -> BoundFactResult:
    row = {"what": fact.what, "value": fact.value, "source": fact.source, "where": fact.where}
    return BoundFactResult.model_validate({**row, "span": _place(fact.span)})

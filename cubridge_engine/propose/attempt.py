"""One proposal tried out: parsed, checked, put in place, read, executed, compiled, simulated. Runs in the worker.

Nothing here decides that a proposal is good: it hands the changed text to the same calls that verify any text, and
passes on what they say. A proposal never raises its own level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..device import device_available
from ..diagnostics import Diagnostic, diagnostic_from_json
from ..pipeline.adapt import adapt
from ..pipeline.files import Options
from ..results import Adaptation
from ..source import overlay
from ..transfer.rules import RULES
from ..verify.levels import ORDER
from ..verify.stages import Progress
from ..verify.subject import VerifyOptions
from . import codes as codes
from .asking import job_of
from .candidate import hunks_of, with_hunks
from .finished import finished, of_verification
from .guard import Rejected
from .program import BadProgram, check_program
from .replies import STAGES, BadReply, Readings, Refusal, Replacements, RuleSequence, TargetProgram, parse_reply
from .situation import Situation, State, look

LIFTING = frozenset({"CB023", "CB027"})  # the kernel as a whole was not understood


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an attempt. `accepted`: `state` goes on from it, or, when `result` is there, it is the answer.

    `stage` is the last of `STAGES` that was reached, `feedback` the first thing that is wrong, `parts` what the model
    contributed, `changed` how many bytes it wrote.
    """

    stage: str
    accepted: bool = False
    feedback: str = ""
    parts: tuple[str, ...] = ()
    changed: int = 0
    state: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    refused: bool = False


def attempt(params: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The `Verdict` on one reply as JSON. Task ``propose_attempt``: parameters of ``adapt``, and ``state``, ``role``,
    ``reply`` (its text), ``model``."""
    with overlay(params.get("texts") or {}):
        return asdict(_verdict(params, progress))


def _verdict(params: Mapping[str, Any], progress: Progress) -> Verdict:
    options, checks = job_of(params)
    state = State.of(params.get("state"))
    try:
        answer = parse_reply(params["role"], params["reply"])
    except BadReply as why:
        return Verdict("reply", feedback=str(why))
    if isinstance(answer, Refusal):
        return Verdict("parsed", feedback=f"the model refused: {answer.reason[:300]}", refused=True)
    options = replace(
        options,
        bindings={**state.bindings, **options.bindings},
        head_dim=options.head_dim if options.head_dim is not None else state.head_dim,
    )
    job = _Job(params["kernel"], params["spec"], options, checks, state, str(params["model"]), progress)
    found = look(job.kernel, job.spec, options, checks.archs, state)
    if found.role != params["role"]:
        return Verdict("parsed", feedback=f"this is not asked for any more: {found.why or found.role}")
    try:
        match answer:
            case Readings():
                verdict = job.lift(found, answer)
            case RuleSequence():
                verdict = job.rules(found, answer)
            case TargetProgram():
                verdict = job.program(found, answer)
            case Replacements():
                verdict = job.lower(found, answer)
    except (Rejected, BadProgram) as why:
        return Verdict("parsed", feedback=str(why))
    return verdict


@dataclass(frozen=True, slots=True)
class _Job:
    """What an attempt works on."""

    kernel: str
    spec: str
    options: Options
    checks: VerifyOptions
    state: State
    model: str
    progress: Progress

    def lift(self, found: Situation, answer: Readings) -> Verdict:
        """Plain statements in place of opaque ones; then the rules do the rest."""
        assert found.source is not None
        hunks = hunks_of(found.source, found.sites, answer.sites, self.model) if answer.sites else ()
        bindings = {b.name: b.value for b in answer.bindings}
        names = {p.name for p in found.lifted.kernel.params} if found.lifted.kernel is not None else set(bindings)
        unknown = sorted(set(bindings) - names)
        if unknown:
            raise Rejected(f"the kernel has no parameter {unknown[0][:60]!r}")
        if not hunks and not bindings and answer.head_dim is None:
            raise Rejected("nothing is proposed")
        # What the user gave comes before what a model guesses.
        options = replace(
            self.options,
            bindings={**bindings, **self.options.bindings},
            head_dim=self.options.head_dim if self.options.head_dim is not None else answer.head_dim,
        )
        text = with_hunks(found.source, hunks).decode("utf-8")
        parts = (*(h.why.removeprefix("proposed: ") for h in hunks), *(f"{n} = {v:g}" for n, v in bindings.items()))
        state = State(text, None, options.bindings, options.head_dim, (*self.state.parts, *parts))
        changed = sum(len(item.text) for item in answer.sites)
        return self._by_rules(found, options, state, parts, changed, {h.why for h in hunks})

    def rules(self, found: Situation, answer: RuleSequence) -> Verdict:
        """Fewer rules than all of them."""
        known = {rule.name for rule in RULES}
        unknown = [name for name in answer.rules if name not in known]
        if unknown or not answer.rules:
            raise Rejected(f"there is no rule {unknown[0][:60]!r}" if unknown else "no rule is named")
        options = replace(self.options, rules=tuple(dict.fromkeys(answer.rules)))
        left_out = ", ".join(sorted(known - set(answer.rules)))
        part = f"rules left out: {left_out}"
        state = replace(self.state, parts=(*self.state.parts, part))
        return self._by_rules(found, options, state, (part,), 0, set())

    def program(self, found: Situation, answer: TargetProgram) -> Verdict:
        """A target program: executed against the spec as it stands; its text is for the next question."""
        assert found.attention is not None
        problem = check_program(answer.cuir, found, self.options, self.checks, self.progress)
        if problem:
            return Verdict("read", feedback=problem)
        state = replace(self.state, target=answer.cuir, parts=(*self.state.parts, "target program"))
        return Verdict("ir", True, parts=("target program",), changed=len(answer.cuir), state=state.json())

    def lower(self, found: Situation, answer: Replacements) -> Verdict:
        """New text for sites; read back, compared with the target, and verified as any text is."""
        assert found.source is not None
        hunks = hunks_of(found.source, found.sites, answer.sites, self.model)
        text = with_hunks(found.source, hunks)
        parts = tuple(h.why.removeprefix("proposed: ") for h in hunks)
        first = replace(self.checks, use_gpu=False)
        result, problem = of_verification(found, text, self.kernel, self.spec, self.options, first, self.progress)
        if result is not None and self._may_use_gpu(result):
            result, problem = of_verification(
                found, text, self.kernel, self.spec, self.options, self.checks, self.progress
            )
        changed = sum(len(item.text) for item in answer.sites)
        if result is None:
            return Verdict("allowed" if "can no longer be read" in problem else "read", False, problem, parts, changed)
        state = replace(self.state, text=text.decode("utf-8"), parts=(*self.state.parts, *parts))
        return self._judged(found, result, parts, changed, state)

    def _by_rules(
        self,
        found: Situation,
        options: Options,
        state: State,
        parts: tuple[str, ...],
        changed: int,
        written: set[str],
    ) -> Verdict:
        """The whole of `adapt` on the text so far."""
        texts = {self.kernel: state.text} if state.text is not None else {}
        with overlay(texts):
            result = adapt(self.kernel, self.spec, options, replace(self.checks, use_gpu=False), self.progress)
            if self._may_use_gpu(result):
                result = adapt(self.kernel, self.spec, options, self.checks, self.progress)
        codes_found = {d["code"] for d in result.diagnostics if d["severity"] == "error"}
        understood = not codes_found & LIFTING
        if written and understood and result.text is None and codes_found:
            # The region is read now, and the rules stopped later: the next question is another one.
            return Verdict("read", True, _first(result), parts, changed, state.json())
        return self._judged(found, result, parts, changed, state)

    def _may_use_gpu(self, result: Adaptation) -> bool:
        """A GPU runs what a model wrote only after the simulator found nothing wrong with it."""
        return self.checks.use_gpu and result.level == "simulated" and device_available() is not None

    def _judged(
        self, found: Situation, result: Adaptation, parts: tuple[str, ...], changed: int, state: State
    ) -> Verdict:
        """Accepted is what the verifier lets be applied, and nothing else."""
        stage = result.level if result.level in STAGES else {"lifted": "read", "gpu": "simulated"}.get(result.level)
        stage = stage or "allowed"
        usable = result.text is not None and result.applicability != "sketch" and result.exit_code == 0
        if not usable or ORDER[result.level] < ORDER["compiled"]:
            return Verdict(stage, False, _first(result), parts, changed)
        done = finished(result, found, state, self.model)
        return Verdict(stage, True, "", parts, changed, state.json(), done.model_dump(mode="json"))


def _first(result: Adaptation) -> str:
    """The first difference, as the verifier says it: the first error with its line, or what did not run."""
    items: list[Diagnostic] = [diagnostic_from_json(d) for d in result.diagnostics]
    errors = [d for d in items if d.severity.name == "ERROR" and d.code != "CB026"]
    lines = [f"{d.code}{f' (line {d.span.line + 1})' if d.span else ''}: {d.message}" for d in errors[:3]]
    if errors and errors[0].code in LIFTING:
        lines += [
            f"{d.code}{f' (line {d.span.line + 1})' if d.span else ''}: {d.message}" for d in items if d.code == "CB123"
        ][:4]
    stages = [f"{s.name} failed: {s.why}" for s in result.stages if s.state == "failed"]
    return "\n".join(lines or stages[:1] or ["it did not reach a level at which it may be used"])

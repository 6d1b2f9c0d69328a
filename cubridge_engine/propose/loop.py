"""Ask, try, tell what is wrong, ask again: until a proposal is accepted or the budget is spent.

Runs in the caller's process and knows nothing of kernels: reading and verifying are tasks of the worker, replies come
from a `Source`. Whatever is not accepted leaves no trace but in the transcript.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from ..diagnostics import Diagnostic, diagnostic_to_json, make
from ..jobs import JobOutcome
from . import codes as codes
from .client import Answered, AskFailed, Message, Source
from .config import Limits
from .replies import STAGES
from .transcript import BadTranscript, Transcript, digest
from .wording import cut, filled

# run(task, parameters, seconds) -> how the job of the worker ended
Run = Callable[[str, Mapping[str, Any], float], JobOutcome]
Progress = Callable[[str, float, str], None]

QUESTIONS = 4  # lift, transfer, lower, and one more
LEVELS = ("none", "lifted", "ir", "compiled", "simulated", "gpu")
KEPT_REPLY = 6_000  # characters of the last reply that go into the next question
POLL_S = 0.05


class Cancelled(Exception):
    """The user stopped the job."""


class _Ends(Exception):
    """The loop cannot go on; carries the finding."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(slots=True)
class Spent:
    """What asking took so far. `waiting`: seconds until replies came."""

    rounds: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    waiting: float = 0.0

    @property
    def tokens(self) -> int:
        """Of prompts and replies together."""
        return self.prompt_tokens + self.reply_tokens

    def usd(self, price: tuple[float, float] | None) -> float | None:
        """US dollars, where the price of a million tokens is known."""
        if price is None:
            return None
        return (self.prompt_tokens * price[0] + self.reply_tokens * price[1]) / 1e6

    def sentence(self, price: tuple[float, float] | None) -> str:
        """``1,204 tokens, 3.1 s of waiting``."""
        money = self.usd(price)
        paid = f", {money:.3f} US dollars" if money is not None else ""
        return f"{self.tokens:,} tokens, {self.waiting:.1f} s of waiting{paid}"


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt: what the worker's verdict was (see `attempt.Verdict`)."""

    role: str
    stage: str
    accepted: bool
    feedback: str
    text: str
    verdict: Mapping[str, Any]

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Finished before unfinished, then by level, then the smallest change."""
        result = self.verdict.get("result")
        level = LEVELS.index(result["level"]) if result else STAGES.index(self.stage)
        return (result is not None, level, -int(self.verdict.get("changed", 0)))


@dataclass(slots=True)
class Session:
    """One adaptation with a model. `cancelled` is asked often; `tried` has every attempt afterwards."""

    run: Run
    source: Source
    limits: Limits
    transcript: Transcript = field(default_factory=lambda: Transcript(None))
    progress: Progress = lambda *_: None
    cancelled: Callable[[], bool] = lambda: False
    spent: Spent = field(default_factory=Spent)
    tried: list[Tried] = field(default_factory=list["Tried"])
    _start: float = field(default_factory=time.monotonic)
    _asked: int = 0

    def adapt(self, params: Mapping[str, Any], refused: Mapping[str, Any]) -> dict[str, Any]:
        """The ``Adaptation`` that the model made possible; else `refused`, the one of the rules, with what went wrong.

        `params` are those of the worker's task ``adapt``. Raises Cancelled.
        """
        self.transcript.write(
            "start",
            version=1,
            cubridge=__version__,
            model=self.source.model,
            host=self.source.host,
            kernel=_ref(refused["kernel"]),
            spec=_ref(refused["spec"]),
            limits={"rounds": self.limits.rounds, "candidates": self.limits.candidates},
        )
        try:
            result = self._questions(dict(params), refused)
            self.transcript.write("end", state="accepted", level=result["level"], **self._figures())
            return result
        except _Ends as end:
            self.transcript.write(
                "end", state="rejected", why=f"{end.diagnostic.code}: {end.diagnostic.message}", **self._figures()
            )
            return with_finding(refused, end.diagnostic)
        except Cancelled:
            self.transcript.write("end", state="cancelled", **self._figures())
            raise
        finally:
            self.source.close()

    # --- questions and rounds ---

    def _questions(self, params: dict[str, Any], refused: Mapping[str, Any]) -> dict[str, Any]:
        state: Any = None
        found: Any = refused["diagnostics"]
        for _ in range(QUESTIONS):
            asked = self._work("propose_question", {**params, "state": state, "found": list(found)})
            if asked["role"] is None:
                raise _Ends(make("CB046", why=asked["why"]))
            best = self._rounds(params, state, asked)
            if best.verdict.get("result"):
                return self._marked(best.verdict["result"])
            state, found = best.verdict["state"], []
        raise _Ends(self._gave_up())

    def _rounds(self, params: dict[str, Any], state: Any, asked: Mapping[str, Any]) -> Tried:
        """The accepted attempt at one question. Raises _Ends."""
        opening: list[Message] = [
            {"role": "system", "content": asked["system"]},
            {"role": "user", "content": asked["user"]},
        ]
        messages = opening
        for number in range(self.limits.rounds):
            self._check_budget()
            label = f"{asked['role']}, round {number + 1} of {self.limits.rounds}"
            self.progress("ask the model", 0.0, label)
            self.spent.rounds += 1
            tried = [self._try(params, state, asked["role"], text) for text in self._replies(asked["role"], messages)]
            self.tried += tried
            accepted = [one for one in tried if one.accepted]
            if accepted:
                return max(accepted, key=lambda one: one.rank)
            last = max(tried, key=lambda one: one.rank)
            messages = [
                *opening,
                {"role": "assistant", "content": cut(last.text, KEPT_REPLY) or "(nothing)"},
                {"role": "user", "content": filled("again", {"feedback": last.feedback})},
            ]
        raise _Ends(self._gave_up())

    def _try(self, params: dict[str, Any], state: Any, role: str, text: str) -> Tried:
        self.progress("try the proposal", 0.0, role)
        self.spent.attempts += 1
        given = {**params, "state": state, "role": role, "reply": text, "model": self.source.model}
        outcome = self._outcome("propose_attempt", given)
        if outcome.value is not None:
            verdict: Mapping[str, Any] = outcome.value
        else:  # stopped by a limit, or the worker died of it: no verdict, no acceptance
            why = "; ".join(f"{d.code}: {d.message}" for d in outcome.diagnostics) or "it could not be tried"
            verdict = {"stage": "allowed", "accepted": False, "feedback": why, "changed": 0}
        tried = Tried(role, verdict["stage"], bool(verdict["accepted"]), verdict["feedback"], text, verdict)
        result = verdict.get("result")
        self.transcript.write(
            "verdict",
            question=self._asked - 1,
            role=role,
            stage=tried.stage,
            accepted=tried.accepted,
            feedback=tried.feedback,
            level=result["level"] if result else None,
        )
        return tried

    # --- the model ---

    def _replies(self, role: str, messages: Sequence[Message]) -> list[str]:
        """The distinct replies of all candidates. Raises _Ends when none came."""
        number, self._asked = self._asked, self._asked + 1
        self.transcript.write(
            "question", question=number, role=role, digest=digest(messages), messages=[dict(m) for m in messages]
        )
        answers: queue.SimpleQueue[tuple[int, Answered | Exception]] = queue.SimpleQueue()
        for candidate in range(self.limits.candidates):
            # Daemon threads: a server that never answers must not keep the process alive.
            threading.Thread(target=self._ask, args=(role, messages, (number, candidate), answers), daemon=True).start()
        texts: dict[int, str] = {}
        problem: Diagnostic | None = None
        for _ in range(self.limits.candidates):
            candidate, got = self._wait(answers)
            if isinstance(got, Answered):
                texts[candidate] = got.text
                self._count(number, candidate, role, got)
            elif isinstance(got, AskFailed):
                self.transcript.write("failed", question=number, candidate=candidate, code=got.code, why=got.why)
                problem = make(got.code, model=self.source.model, host=self.source.host, why=got.why)
            elif isinstance(got, BadTranscript):
                raise _Ends(make("CB047", path=getattr(self.source, "path", "the transcript"), why=str(got)))
            else:
                raise got
        if not texts:
            assert problem is not None
            raise _Ends(problem)
        return list(dict.fromkeys(texts[candidate] for candidate in sorted(texts)))

    def _ask(self, role: str, messages: Sequence[Message], place: tuple[int, int], answers: Any) -> None:
        try:
            answers.put((place[1], self.source.ask(role, messages, place)))
        except Exception as problem:
            answers.put((place[1], problem))

    def _wait(self, answers: queue.SimpleQueue[tuple[int, Answered | Exception]]) -> tuple[int, Answered | Exception]:
        while True:
            self._check_cancel()
            if self._left() <= 0:
                raise _Ends(self._over(f"{self.limits.seconds:g} seconds"))
            try:
                return answers.get(timeout=POLL_S)
            except queue.Empty:
                continue

    def _count(self, number: int, candidate: int, role: str, got: Answered) -> None:
        self.spent.prompt_tokens += got.prompt_tokens
        self.spent.reply_tokens += got.reply_tokens
        self.spent.waiting += got.seconds
        self.transcript.write(
            "reply",
            question=number,
            candidate=candidate,
            role=role,
            text=got.text,
            form=got.form,
            prompt_tokens=got.prompt_tokens,
            reply_tokens=got.reply_tokens,
            seconds=got.seconds,
        )

    # --- the worker ---

    def _work(self, task: str, params: Mapping[str, Any]) -> dict[str, Any]:
        outcome = self._outcome(task, params)
        if outcome.value is None:
            why = outcome.diagnostics[0] if outcome.diagnostics else make("CB046", why="the worker gave no answer")
            raise _Ends(why)
        return outcome.value

    def _outcome(self, task: str, params: Mapping[str, Any]) -> JobOutcome:
        self._check_cancel()
        outcome = self.run(task, params, max(1.0, self._left()))
        self._check_cancel()
        if outcome.state == "cancelled":
            raise Cancelled
        return outcome

    # --- budget ---

    def _left(self) -> float:
        return self.limits.seconds - (time.monotonic() - self._start)

    def _check_cancel(self) -> None:
        if self.cancelled():
            raise Cancelled

    def _check_budget(self) -> None:
        self._check_cancel()
        limits, usd = self.limits, self.spent.usd(self.limits.price)
        if self._left() <= 0:
            raise _Ends(self._over(f"{limits.seconds:g} seconds"))
        if limits.tokens is not None and self.spent.tokens >= limits.tokens:
            raise _Ends(self._over(f"{self.spent.tokens:,} of {limits.tokens:,} tokens"))
        if limits.usd is not None and usd is not None and usd >= limits.usd:
            raise _Ends(self._over(f"{usd:.3f} of {limits.usd:g} US dollars"))

    def _over(self, what: str) -> Diagnostic:
        return make("CB044", model=self.source.model, what=what)

    def _gave_up(self) -> Diagnostic:
        last = self.tried[-1].feedback if self.tried else "nothing was proposed"
        rounds = f"{self.spent.rounds} round{'' if self.spent.rounds == 1 else 's'}"
        spent = self.spent.sentence(self.limits.price)
        return make("CB043", model=self.source.model, rounds=rounds, spent=spent, last=" ".join(last.split())[:400])

    def _figures(self) -> dict[str, Any]:
        return {
            "rounds": self.spent.rounds,
            "attempts": self.spent.attempts,
            "prompt_tokens": self.spent.prompt_tokens,
            "reply_tokens": self.spent.reply_tokens,
            "seconds": round(self.spent.waiting, 3),
            "usd": self.spent.usd(self.limits.price),
        }

    def _marked(self, result: dict[str, Any]) -> dict[str, Any]:
        proposed = {**result["proposed"], **self._figures(), "model": self.source.model, "host": self.source.host}
        return {**result, "proposed": proposed}


def needs_model(result: Mapping[str, Any]) -> bool:
    """True where the rules gave nothing that may be applied, for a reason that is not the environment."""
    return result["exit_code"] == 1 and (result.get("text") is None or result["applicability"] == "sketch")


def with_finding(result: Mapping[str, Any], found: Diagnostic) -> dict[str, Any]:
    """`result` with one finding more, first of its kind."""
    return {**result, "diagnostics": [diagnostic_to_json(found), *result["diagnostics"]]}


def _ref(file: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": file["name"], "sha256": file["sha256"]}

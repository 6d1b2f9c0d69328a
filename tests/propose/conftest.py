"""Tasks of the suite, tried in this process: torch is imported once, and an attempt that was judged once is remembered.

The simulator runs where it is the subject only: what is accepted elsewhere reached level `compiled`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cubridge_engine.jobs import TASKS, JobOutcome
from cubridge_engine.pipeline import common
from cubridge_engine.propose import situation
from cubridge_engine.propose.client import Client
from cubridge_engine.propose.config import Limits
from cubridge_engine.propose.loop import Session
from cubridge_engine.propose.replies import BadReply, parse_reply
from cubridge_engine.propose.suite_tasks import Task, tasks_of
from cubridge_engine.spec import read_spec

QUICK = {"use_gpu": False, "use_simulator": False, "archs": ["sm_80"]}


class Worker:
    """The worker's tasks in this process. Parameters and results go through JSON, as they do to a worker."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._known: dict[tuple[str, str], Any] = {}

    def __call__(self, task: str, params: Any, seconds: float) -> JobOutcome:
        self.calls.append(task)
        text = json.dumps(_canonical(params), sort_keys=True)
        if (task, text) not in self._known:
            module, _, name = TASKS[task].partition(":")
            value = getattr(importlib.import_module(module), name)(json.loads(json.dumps(params)), lambda *_: None)
            self._known[task, text] = json.loads(json.dumps(value))
        return JobOutcome("done", self._known[task, text])


def _canonical(params: Any) -> Any:
    """Replies that say the same in other words (fenced, say) are one."""
    try:
        return {**params, "reply": parse_reply(params["role"], params["reply"]).model_dump()}
    except (KeyError, BadReply):
        return params


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """The worker; each spec is traced once, not at every attempt."""
    read: dict[Any, Any] = {}

    def once(path: str, **given: Any) -> Any:
        key = (path, Path(path).read_text(), repr(given))
        return read[key] if key in read else read.setdefault(key, read_spec(path, **given))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "read_spec", once)
        patch.setattr(situation, "read_spec", once)
        yield Worker()


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """The default suite by name."""
    return {task.name: task for task in tasks_of("default", tmp_path_factory.mktemp("suite"))}


@pytest.fixture(scope="session")
def params(tasks):
    """Parameters of the job on a task of the suite."""

    def of(name: str, **more: Any) -> dict[str, Any]:
        return {"kernel": tasks[name].kernel, "spec": tasks[name].spec, **QUICK, **more}

    return of


@pytest.fixture(scope="session")
def refused(worker, params):
    """What the rules say of a task."""

    def of(name: str, **more: Any) -> dict[str, Any]:
        return worker("adapt", params(name, **more), 60.0).value

    return of


@pytest.fixture
def attempt(worker, params):
    """The verdict on a reply (an answer object, or text)."""

    def trying(name: str, role: str, answer: Any, **more: Any) -> dict[str, Any]:
        text = answer if isinstance(answer, str) else json.dumps({"answer": answer})
        given = {"state": None, "role": role, "reply": text, "model": "scripted", **more}
        return worker("propose_attempt", params(name, **given), 60.0).value

    return trying


@pytest.fixture
def ask(worker, params, refused):
    """A whole session with a scripted server on a task: (result, session)."""

    def asking(name: str, server: Any, limits: Limits | None = None, **more: Any) -> tuple[dict[str, Any], Session]:
        session = Session(worker, Client(server.endpoint(), request_s=5.0), limits or Limits(rounds=2), **more)
        return session.adapt(params(name), refused(name)), session

    return asking


def lift(*texts: tuple[str, str], **more: Any) -> dict[str, Any]:
    """An answer of role lift."""
    sites = [{"site": site, "text": text} for site, text in texts]
    return {"kind": "lift", "sites": sites, "bindings": [], "head_dim": None, "reason": "", **more}


def lower(*texts: tuple[str, str]) -> dict[str, Any]:
    """An answer of role lower."""
    return {"kind": "lower", "sites": [{"site": site, "text": text} for site, text in texts], "reason": ""}


def reply(answer: dict[str, Any]) -> str:
    """The text of a reply."""
    return json.dumps({"answer": answer})


# The plain form of the row maximum that `ordered_max` takes on integers.
MAXIMUM = """\
m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 1));
m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 2));"""
RIGHT = reply(lift(("opaque1", MAXIMUM)))
CAPPED = "s[i] = kv0 + part + kQuad * i < sk ? 20.f * tanhf(s[i] * scale / 20.f) : -INFINITY;"

"""The command ``cubridge.askModel``: adapt with a model where the rules end. Nothing here runs, and nothing is offered,
until the user has named a model in the settings.

The key comes from the environment of this process (our extension puts it there from the editor's secret storage), never
from a setting or a message; the worker does not get it. What leaves the machine is agreed to once for each host.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from cubridge_engine.diagnostics import make
from cubridge_engine.jobs import JobOutcome
from cubridge_engine.propose import codes as codes
from cubridge_engine.propose.config import BadConfiguration, Endpoint, Limits, endpoint_of, limits_of, price_of

from . import adapt, engine, job
from .findings import Finding
from .progress import Progress

if TYPE_CHECKING:
    from .app import CubridgeServer

SENT = (
    "the CuIR of the kernel, lines of it around the places that are to change, what the spec means (not its text), and "
    "what the verifier says of each attempt"
)
YES = "Send"


def configured(ls: CubridgeServer) -> Endpoint | None:
    """The endpoint of the settings; None where none is named, or it cannot be used."""
    try:
        return _endpoint(ls) if ls.settings.model_name else None
    except BadConfiguration:
        return None


def refused_before(ls: CubridgeServer, path: str, sha: str) -> list[Finding]:
    """Adaptations of this very text that the rules could not make."""
    return [f for f in ls.findings.of_kernel(path) if f.job == "adapt" and not f.passed and f.kernel_sha == sha]


async def ask_model(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.askModel``. Replies as ``cubridge.adapt`` does."""
    nothing = {"delivered": "nothing"}
    try:
        endpoint = _endpoint(ls)
        _limits(ls)
    except BadConfiguration as bad:
        outcome = job.refused(make("CB042", what=str(bad), way_out=bad.way_out))
        job.tell(ls, outcome)
        return outcome.reply() | nothing
    if not ls.settings.trusted:
        return job.refused(make("CB071", job="asking a model")).reply() | nothing
    if not await _agreed(ls, endpoint, job.field_of(argument, "consent")):
        return job.refused(make("CB083", host=endpoint.host)).reply() | nothing
    return await adapt.adapt(ls, argument, "askModel")


async def work(ls: CubridgeServer, given: engine.JobInput, progress: Progress) -> engine.JobResult:
    """The rules, and then the model. Cancelling the awaiting task stops both and kills the worker's job."""
    first = await ls.worker.run(
        "adapt",
        given,
        on_progress=progress.report,
        time_limit_s=ls.settings.time_limit,
        memory_limit_bytes=ls.settings.memory_limit << 20,
    )
    from cubridge_engine.propose.loop import needs_model

    if first.crashed or not needs_model(first.result):
        return first
    result = await _session(ls, engine.params_of(given), first.result, progress)
    return engine.in_editor_words(result)


async def _session(
    ls: CubridgeServer, params: dict[str, Any], refused: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    from cubridge_engine.propose.client import Client
    from cubridge_engine.propose.loop import Session

    loop, stop = asyncio.get_running_loop(), threading.Event()
    running: set[Any] = set()

    def run(task: str, given: Mapping[str, Any], seconds: float) -> JobOutcome:
        limit = min(seconds, ls.settings.time_limit)
        job_ = ls.worker.outcome(task, given, progress.report, limit, ls.settings.memory_limit << 20)
        future = asyncio.run_coroutine_threadsafe(job_, loop)
        running.add(future)
        try:
            return future.result()
        finally:
            running.discard(future)

    def tell(stage: str, fraction: float, message: str) -> None:
        loop.call_soon_threadsafe(progress.report, stage, fraction, message)

    limits, endpoint = _limits(ls), _endpoint(ls)
    # Importing the library takes a second.
    client = await asyncio.to_thread(lambda: Client(endpoint, request_s=limits.seconds))
    session = Session(run, client, limits, progress=tell, cancelled=stop.is_set)
    try:
        return await asyncio.to_thread(session.adapt, params, refused)
    finally:
        stop.set()
        for future in tuple(running):
            future.cancel()


async def _agreed(ls: CubridgeServer, endpoint: Endpoint, consent: object) -> bool:
    """Whether the user knows what goes where: asked once for each host. Our extension asks itself, and remembers."""
    if consent == endpoint.host or endpoint.host in ls.agreed_hosts:
        return True
    if ls.client.diff_editor:
        return False
    question = f"Ask the model '{endpoint.model}'? This sends to {endpoint.host}: {SENT}."
    answer = await ls.window_show_message_request_async(
        t.ShowMessageRequestParams(t.MessageType.Warning, question, [t.MessageActionItem(YES)])
    )
    if answer is None or answer.title != YES:
        return False
    ls.agreed_hosts.add(endpoint.host)
    return True


def _endpoint(ls: CubridgeServer) -> Endpoint:
    return endpoint_of(ls.settings.model_name, ls.settings.model_base_url or None)


def _limits(ls: CubridgeServer) -> Limits:
    settings = ls.settings
    return limits_of(
        Limits(
            rounds=settings.model_rounds,
            candidates=settings.model_candidates,
            tokens=settings.model_budget_tokens or None,
            seconds=settings.model_budget_seconds,
            usd=settings.model_budget_usd or None,
            price=price_of(settings.model_price),
        )
    )

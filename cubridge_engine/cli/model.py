"""`cubridge adapt --model NAME`: the rules first; where they end, a model proposes and the verifier decides.

Imported only when a model is named. The worker stays up from attempt to attempt and never gets the key.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..diagnostics import diagnostic_to_json, make
from ..jobs import JobOutcome, Worker
from ..propose import codes as codes
from ..propose.client import Client, Source
from ..propose.config import KEY_VARIABLES, BadConfiguration, Endpoint, Limits, endpoint_of, limits_of, price_of
from ..propose.loop import Cancelled, Progress, Session, needs_model
from ..propose.transcript import BadTranscript, Replayed, Transcript
from .arguments import BadArgument
from .job import JobFailed, display, run_in_worker

# The worker runs the spec, which is the user's code: keys are not for it.
NO_KEYS = dict.fromkeys(KEY_VARIABLES, "")


def wants_model(args: argparse.Namespace) -> bool:
    """True when the command line names a model or a transcript to replay."""
    return bool(args.model or args.replay)


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what cannot be used before any work is done. Raises BadArgument."""
    if not wants_model(args):
        extra = [name for name in ("model_url", "transcript", "budget_usd") if getattr(args, name) is not None]
        if extra:
            what = f"--{extra[0].replace('_', '-')} is given and no model is named"
            raise BadArgument(make("CB042", what=what, way_out="Name one with --model."))
        return
    if args.transcript and Path(args.transcript).exists() and not args.force:
        raise BadArgument(make("CB002", path=args.transcript))
    limits(args)
    source_of(args).close()


def limits(args: argparse.Namespace) -> Limits:
    """The budget of the command line. Raises BadArgument."""
    try:
        price = price_of(args.price)
        given = Limits(
            rounds=args.rounds,
            candidates=args.candidates,
            tokens=args.budget_tokens,
            seconds=args.budget_seconds,
            usd=args.budget_usd,
            price=price,
        )
        return limits_of(given)
    except BadConfiguration as bad:
        raise BadArgument(make("CB042", what=str(bad), way_out=bad.way_out)) from None


def endpoint(args: argparse.Namespace) -> Endpoint:
    """The endpoint of the command line and the environment. Raises BadArgument."""
    try:
        return endpoint_of(args.model, args.model_url)
    except BadConfiguration as bad:
        raise BadArgument(make("CB042", what=str(bad), way_out=bad.way_out)) from None


def source_of(args: argparse.Namespace) -> Source:
    """Where replies come from. Raises BadArgument."""
    if not args.replay:
        return Client(endpoint(args), request_s=args.budget_seconds)
    try:
        return Replayed(args.replay)
    except OSError as error:
        raise BadArgument(make("CB047", path=args.replay, why=error.strerror or str(error))) from None
    except (BadTranscript, KeyError) as bad:
        raise BadArgument(make("CB047", path=args.replay, why=str(bad))) from None


def adapt_with_model(params: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """An ``Adaptation`` as JSON. Raises JobFailed, KeyboardInterrupt, and OSError for the transcript."""
    with Worker(env=NO_KEYS) as worker, display() as show:
        first = work(worker, args, show, "adapt", params, args.time_limit)
        if first.value is None:
            raise JobFailed.of(first)
        if not needs_model(first.value):
            named = args.model or "of the transcript"
            note = diagnostic_to_json(make("CB048", model=named)) if first.value["exit_code"] == 0 else None
            return {**first.value, "diagnostics": [*first.value["diagnostics"], *([note] if note else [])]}
        key = endpoint(args).key if args.model and not args.replay else ""
        with Transcript(args.transcript, (key,)) as transcript:
            session = Session(
                lambda task, given, seconds: work(worker, args, show, task, given, min(seconds, args.time_limit)),
                source_of(args),
                limits(args),
                transcript,
                show,
            )
            try:
                return session.adapt(params, first.value)
            except Cancelled:
                raise KeyboardInterrupt from None


def work(
    worker: Worker, args: argparse.Namespace, show: Progress, task: str, params: Mapping[str, Any], seconds: float
) -> JobOutcome:
    """One task in the worker, within the limits of the command line. Raises KeyboardInterrupt."""
    memory = args.memory * 1024 * 1024 if args.memory else None
    outcome = run_in_worker(
        task, params, on_progress=show, timeout_s=max(1.0, seconds), memory_bytes=memory, worker=worker
    )
    if outcome.state == "cancelled":
        raise KeyboardInterrupt
    return outcome

"""The way of a job on a kernel without a spec: check the request, run it in the worker, refuse a stale result.

One row of `KINDS` for each: what the worker calls it, what of the command's argument it takes, what it executes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from cubridge_engine.diagnostics import make

from . import convert, engine, job, toml_notes
from .job import Outcome
from .progress import Progress, job_progress

if TYPE_CHECKING:
    from .app import CubridgeServer

Fields = Mapping[str, Any]


def _never(_fields: Fields) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job. `task`: what the worker calls it. `fields`: further fields of the argument, by type; those of
    `files` are URIs. `executes`: whether it compiles or runs something of the user's, which takes a trusted workspace.
    `whole`: the field of the result without which the job has given nothing. `kernel`: the worker's name for its path.
    """

    task: str
    title: str
    fields: Mapping[str, type]
    whole: str
    executes: Callable[[Fields], bool] = _never
    files: tuple[str, ...] = ()
    kernel: str = "kernel"


KINDS: dict[str, Kind] = {
    "check": Kind(
        "check",
        "Checking {kernel}",
        {"watch": bool, "expect": str, "spec": str},
        "findings",
        lambda fields: bool(fields.get("watch") or fields.get("spec")),
        ("spec",),
    ),
    "explain": Kind(
        "explain", "Explaining {kernel}", {"watch": bool}, "sentences", lambda fields: bool(fields.get("watch"))
    ),
    "compare": Kind("diff", "Comparing {kernel} with {other}", {"other": str}, "same", files=("other",), kernel="a"),
    "contract": Kind(
        "contract",
        "Finding out how {kernel} is called",
        {"answers": dict, "write": bool, "force": bool},
        "facts",
        # Its launcher is compiled and called with a runtime of ours.
        lambda _fields: True,
    ),
}
_NAMES = {"other": "b"}  # what the worker calls a field, where it is another name


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was found right."""

    request: job.Request
    fields: dict[str, Any] = field(default_factory=dict[str, Any])  # files as paths


def parse(name: str, argument: object) -> Asked | Outcome:
    """Read the argument of the command ``cubridge.NAME``."""
    kind, command = KINDS[name], f"cubridge.{name}"
    request = job.parse_request(command, _without(argument, kind.files))
    if isinstance(request, Outcome):
        return request
    fields: dict[str, Any] = {}
    for key, wanted in kind.fields.items():
        value = job.field_of(argument, key)
        if wanted is dict and value is not None:
            value = job.as_object(value)
        if value is None:
            continue
        if not isinstance(value, wanted):
            return job.refused(make("CB072", command=command, problem=f"`{key}` is not {_WORDS[wanted]}"))
        fields[key] = convert.path_of(cast("str", value)) if key in kind.files else value
    return Asked(request, fields)


_WORDS: dict[type, str] = {bool: "true or false", str: "a text", dict: "an object"}


def _without(argument: object, names: tuple[str, ...]) -> object:
    given = job.as_object(argument)
    return None if given is None else {key: value for key, value in given.items() if key not in names}


async def run(ls: CubridgeServer, name: str, argument: object, worker: engine.Worker | None = None) -> Outcome:
    """Run the job `name` on the argument of its command. A cancel, of the request or of its progress, kills the worker.
    `worker`: another one than that of the user's own jobs."""
    asked = parse(name, argument)
    if isinstance(asked, Outcome):
        return asked
    path = convert.path_of(asked.request.kernel)
    if KINDS[name].executes(asked.fields) and not ls.settings.trusted:
        return job.refused(make("CB071", job=name))
    with ls.running.current_task():
        try:
            return await _run(ls, name, asked, path, worker or ls.worker)
        except asyncio.CancelledError:
            return Outcome("cancelled", path)


async def _run(ls: CubridgeServer, name: str, asked: Asked, path: str, worker: engine.Worker) -> Outcome:
    kind, request = KINDS[name], asked.request
    files = [path, *(asked.fields[key] for key in kind.files if key in asked.fields)]
    if not request.kernel.startswith("file:"):
        return job.refused(make("CB078", name=convert.base_name(path).rpartition(":")[2], job=name))
    document = ls.documents.get(request.kernel)
    version = document.version if document else None
    base = {file: ls.documents.text(file).data for file in files}
    for file, data in base.items():
        if not data:
            problem = "it is missing, unreadable or empty"
            return job.refused(make("CB075", name=convert.base_name(file), problem=problem))
    if request.version is not None and version is not None and request.version != version:
        return _stale(name, path, base[path], version)
    other, beside = convert.base_name(files[-1]), toml_notes.digests_beside(ls, path)
    async with job_progress(ls, kind.title.format(kernel=convert.base_name(path), other=other), request.token) as shown:
        given = engine.JobInput("", "", _params(kind, path, asked), job.unsaved(ls, files))
        found = await _work(ls, kind.task, given, shown, worker)
        if any(ls.documents.text(file).data != data for file, data in base.items()):
            shown.outcome = "the text changed meanwhile"
            return _stale(name, path, base[path], version)
        state = "failed" if found.crashed else "done" if found.result.get(kind.whole) is not None else "refused"
        shown.outcome = "done" if state == "done" else found.headline
    spec = str(asked.fields.get("spec", ""))
    return Outcome(state, path, spec, base[path], version, found.result, found.diagnostics, beside)


def _stale(name: str, path: str, base: bytes, version: int | None) -> Outcome:
    why = make("CB073", name=convert.base_name(path), job=name)
    return Outcome("stale", path, "", base, version, diagnostics=(why,))


def _params(kind: Kind, path: str, asked: Asked) -> dict[str, Any]:
    fields = {_NAMES.get(key, key): value for key, value in asked.fields.items() if value is not False}
    chosen = {key: value for key, value in asked.request.options.items() if key in ("kernel_name", "head_dim")}
    return {kind.kernel: path, **chosen, **fields}


async def _work(
    ls: CubridgeServer, task: str, given: engine.JobInput, shown: Progress, worker: engine.Worker
) -> engine.JobResult:
    return await worker.run(
        task,
        given,
        on_progress=shown.report,
        time_limit_s=ls.settings.time_limit,
        memory_limit_bytes=ls.settings.memory_limit << 20,
    )

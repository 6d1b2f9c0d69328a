"""The way of every job on a (kernel, spec) pair: check the request, run it in the worker, refuse a stale result.

A job ends in an `Outcome`; nothing here raises for bad input, a crashed worker or a cancel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lsprotocol import types as t

from cubridge_engine.diagnostics import Diagnostic, make

from . import choose, convert, diagnostics, engine, toml_notes
from .findings import Finding
from .progress import Progress, job_progress

if TYPE_CHECKING:
    from .app import CubridgeServer

LOG = logging.getLogger(__name__)
TITLES = {
    "adapt": "Adapting {kernel} to {spec}",
    "askModel": "Adapting {kernel} to {spec} with a model",
    "verify": "Verifying {kernel} against {spec}",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The one object that the commands take: ``{"kernel": uri, "spec"?, "version"?, "options"?, "workDoneToken"?}``."""

    kernel: str
    spec: str | None
    version: int | None
    options: Mapping[str, object]
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`state`: done | refused | stale | cancelled | failed. `result` is the engine's JSON (docs/json-contract.md)."""

    state: str
    kernel: str = ""  # path
    spec: str = ""  # path
    base: bytes = b""  # the kernel's text that the job saw
    version: int | None = None
    result: dict[str, Any] = field(default_factory=dict[str, Any])
    diagnostics: tuple[Diagnostic, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()  # `toml_notes.digests_beside` when it began

    @property
    def message(self) -> str:
        """The first error in one line, or ''."""
        worst = max(self.diagnostics, key=lambda item: item.severity, default=None)
        return f"{worst.code}: {worst.message}" if worst and self.state != "done" else ""

    def reply(self) -> dict[str, Any]:
        """What the command returns to the client."""
        return {
            "state": self.state,
            "message": self.message,
            "kernel": convert.uri_of(self.kernel) if self.kernel else "",
            "spec": convert.uri_of(self.spec) if self.spec else "",
            "version": self.version,
            "result": self.result or None,
        }


def refused(why: Diagnostic) -> Outcome:
    """An outcome that never got to the worker."""
    return Outcome("refused", diagnostics=(why,))


def parse_request(command: str, argument: object, *, may_ask: bool = False) -> Request | Outcome:
    """Read the command's argument; a wrong one gives a refusal that says what is wrong.

    `may_ask`: with a spec and no kernel the user is asked for one; then `kernel` of the request is empty.
    """
    given = as_object(argument)
    if given is None:
        return refused(make("CB072", command=command, problem="there is no argument object"))
    kernel, spec, version = given.get("kernel"), given.get("spec"), given.get("version")
    if may_ask and kernel is None and isinstance(spec, str):
        kernel = ""
    elif not isinstance(kernel, str) or not convert.is_kernel(kernel):
        return refused(make("CB072", command=command, problem="`kernel` is not the URI of a .cu or .cuh file"))
    if spec is not None and not isinstance(spec, str):
        return refused(make("CB072", command=command, problem="`spec` is not a URI"))
    options = cast("dict[str, object]", as_object(given.get("options")) or {})
    unknown = sorted(set(options) - set(engine.OPTIONS))
    if unknown:
        return refused(make("CB072", command=command, problem=f"unknown options {', '.join(unknown)}"))
    token = given.get("workDoneToken")
    return Request(
        kernel, spec, version if isinstance(version, int) else None, options, token if isinstance(token, str) else None
    )


def field_of(argument: object, name: str) -> object:
    """A field of a command's argument object; None when there is none."""
    return (as_object(argument) or {}).get(name)


def as_object(value: object) -> dict[str, Any] | None:
    """A JSON object, which pygls gives as a dict, or nested as an attribute bag."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return cast("Any", value)._asdict()
    return dict(vars(value)) if hasattr(value, "__dict__") else None


async def run(ls: CubridgeServer, job: str, argument: object) -> Outcome:
    """Run `job` (adapt | askModel | verify). A cancel, of the request or of its progress, kills the worker."""
    request = parse_request(f"cubridge.{job}", argument, may_ask=True)
    if isinstance(request, Outcome):
        return request
    if not ls.settings.trusted:
        return refused(make("CB071", job=job))
    with ls.running.current_task():
        try:
            return await _run(ls, job, request)
        except asyncio.CancelledError:
            return Outcome("cancelled", convert.path_of(request.kernel), convert.path_of(request.spec or ""))


async def _run(ls: CubridgeServer, job: str, request: Request) -> Outcome:
    chosen = await _choose(ls, job, request)
    if isinstance(chosen, Outcome):
        return chosen
    kernel, spec = chosen
    path = convert.path_of(kernel)
    name, spec_name = convert.base_name(path), convert.base_name(spec)
    if not kernel.startswith("file:"):
        return refused(make("CB078", name=name.rpartition(":")[2], job=job))
    document = ls.documents.get(kernel)
    version = document.version if document else None
    base, spec_data = ls.documents.text(path).data, ls.documents.text(spec).data
    for file, data in ((name, base), (spec_name, spec_data)):
        if not data:
            return refused(make("CB075", name=file, problem="it is missing, unreadable or empty"))
    if request.version is not None and version is not None and request.version != version:
        return Outcome("stale", path, spec, base, version, diagnostics=(make("CB073", name=name, job=job),))

    options = ls.settings.job_options() | dict(request.options)
    beside = toml_notes.digests_beside(ls, path)
    async with job_progress(ls, TITLES[job].format(kernel=name, spec=spec_name), request.token) as progress:
        if job != "verify":
            options = {"drop_in": convert.drop_in_name(path, spec)} | options
        opened = [convert.path_of(uri) for uri in ls.documents.uris() if uri.startswith("file:")]  # perhaps its headers
        given = engine.JobInput(path, spec, options, unsaved(ls, [path, spec, *opened]))
        found = await work(ls, job, given, progress)
        for file, data in ((path, base), (spec, spec_data)):
            if ls.documents.text(file).data != data:
                progress.outcome = f"{convert.base_name(file)} changed meanwhile"
                why = make("CB073", name=convert.base_name(file), job=job)
                return Outcome("stale", path, spec, base, version, diagnostics=(why,))
        progress.outcome = found.headline
    if found.crashed:  # a worker that died or was stopped says nothing about the kernel: the message and the log do
        return Outcome("failed", path, spec, base, version, found.result, found.diagnostics)
    _keep(ls, job, Outcome("", path, spec, base, beside=beside), spec_data, found)
    ls.costs.put(convert.sha256(_counted_text(job, base, found)), found.result)
    return Outcome("done" if found.passed else "refused", path, spec, base, version, found.result, found.diagnostics)


def _counted_text(job: str, base: bytes, found: engine.JobResult) -> bytes:
    """The text whose lines a result's costs speak of, as a client sends it: the adapted one, or the kernel's own."""
    text = found.result.get("text")
    adapted = job != "verify" and isinstance(text, str)
    return str(text).removeprefix("\ufeff").encode("utf-8", "surrogatepass") if adapted else base


def unsaved(ls: CubridgeServer, paths: Iterable[str]) -> dict[str, str]:
    """The client's text of those of `paths` that the disk has differently: a job reads it in their place."""
    texts = {path: ls.documents.text(path).data for path in paths if ls.documents.is_open(path)}
    return {
        path: data.decode("utf-8", "surrogatepass")
        for path, data in texts.items()
        if not convert.same_text(data, convert.read_disk(path))
    }


async def work(ls: CubridgeServer, job: str, given: engine.JobInput, progress: Progress) -> engine.JobResult:
    """Run `job` in the worker, within the user's limits."""
    if job == "askModel":
        from . import ask_model

        return await ask_model.work(ls, given, progress)
    return await ls.worker.run(
        job,
        given,
        on_progress=progress.report,
        time_limit_s=ls.settings.time_limit,
        memory_limit_bytes=ls.settings.memory_limit << 20,
    )


def _keep(ls: CubridgeServer, job: str, of: Outcome, spec_data: bytes, found: engine.JobResult) -> None:
    changed = ls.findings.put(
        Finding(
            job="verify" if job == "verify" else "adapt",
            kernel=of.kernel,
            spec=of.spec,
            kernel_sha=convert.sha256(of.base),
            spec_sha=convert.sha256(spec_data),
            level=found.level,
            passed=found.passed,
            diagnostics=found.diagnostics,
            kernel_name=str(found.result.get("kernel_name") or ""),
            beside=of.beside,
        )
    )
    diagnostics.publish(ls, changed)
    ls.refresh_lenses()


async def _choose(ls: CubridgeServer, job: str, request: Request) -> tuple[str, str] | Outcome:
    """(URI of the kernel, path of the spec): those asked for, the only ones there are, or the user's picks."""
    spec = convert.path_of(request.spec) if request.spec else None
    kernel: str | None = request.kernel
    try:
        if spec is None:
            spec = await choose.spec(ls, job, convert.path_of(request.kernel))
        elif not request.kernel:
            kernel = await choose.kernel(ls, job, spec)
    except LookupError:
        return refused(make("CB074" if spec is None else "CB081"))
    if not kernel or spec is None:
        return Outcome("cancelled", convert.path_of(request.kernel), spec or "")
    return kernel, spec


def tell(ls: CubridgeServer, outcome: Outcome) -> None:
    """Say why a job that the user started gave nothing. Our extension shows the reply itself."""
    if outcome.message and not ls.client.diff_editor:
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Error, f"CuBridge {outcome.message}"))

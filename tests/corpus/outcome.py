"""What becomes of one form: read, rechecked, adapted. Runs in a process that may be lost."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .form import Form
from .packages import Unavailable, cache, site

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu"
SECONDS = 120.0  # of each stage; machines that run tests are busy
# Codes of specs that never became a graph: their import, their run, their export.
NOT_EXPORTED = ("CB203", "CB205", "CB207", "CB208", "CB210", "CB211", "CB223", "CB243")


@dataclass(slots=True)
class Outcome:
    """`state`: 'read' (and equal to the package at new sizes), 'refused', 'wrong' (accepted, and different), 'skipped'.

    `code`, `line` (the harness's text) and `message` say why it was refused. `level` is how far the adaptation of
    flash_fwd_scalar came, '' when it was not tried; `adapt_code` says what stopped it. `seconds` of the processor.
    """

    name: str
    state: str
    code: str = ""
    line: str = ""
    message: str = ""
    means: str = ""
    compared: tuple[str, ...] = ()
    worst: float = 0.0
    level: str = ""
    adapt_code: str = ""
    adapt_message: str = ""
    seconds: float = 0.0

    @property
    def exported(self) -> bool:
        """True when the form became a graph."""
        return self.state != "skipped" and self.code not in NOT_EXPORTED


def spec_path(form: Form) -> Path:
    """Write the form's spec file beside the packages, and give its path. Raises Unavailable."""
    folder = cache() / "specs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (form.name.replace(" ", "_").replace("/", "_") + ".py")
    text = form.text(str(site(form.package)))
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
    return path


def judge(form: Form, level: str) -> Outcome:
    """Read the form, recheck it, and adapt the scalar kernel to it up to `level` ('' not at all)."""
    from cubridge_engine.spec import read_spec

    from .recheck import Different, recheck

    try:
        path = str(spec_path(form))
    except Unavailable as why:
        return Outcome(form.name, "skipped", message=str(why))
    _quiet()
    started = time.process_time()
    with _silence():
        result = read_spec(path, time_limit=SECONDS)
    seconds = round(time.process_time() - started, 2)
    if result.attention is None or result.program is None:
        first = result.diagnostics[0]
        line = form.line_of(first.span.line + 1) if first.span is not None else ""
        return Outcome(form.name, "refused", first.code, line, first.message, seconds=seconds)
    outcome = Outcome(form.name, "read", means=meaning(result.attention), seconds=seconds)
    try:
        outcome.worst, compared = recheck(form, path, result)
        outcome.compared = tuple(compared)
    except Different as difference:
        outcome.state, outcome.message = "wrong", str(difference)
    except ValueError as error:
        outcome.message = f"not rechecked: {error}"
    if level == "ir" and outcome.state == "read":
        _to_ir(outcome, result.attention, result.program)
    elif level and outcome.state == "read":
        _through_pipeline(outcome, path)
    return outcome


def meaning(attention: Any) -> str:
    """The mathematics in one line, for people."""
    from cubridge_engine.ir.text_expr import print_expr

    parts = [f"score {print_expr(attention.score)}"]
    for name in ("mask", "sink"):
        value = getattr(attention, name)
        if value is not None:
            parts.append(f"{name} {print_expr(value)}")
    parts.append(f"kv head {print_expr(attention.head_map)}")
    parts += [f"{a} = {b}" for a, b in attention.equal_sizes]
    parts += [f"{n} = {v}" for n, v in attention.specialised.items()]
    if attention.normaliser != "softmax":
        parts.insert(0, f"normaliser {attention.normaliser}")
    return "; ".join(parts)


def _to_ir(outcome: Outcome, attention: Any, program: Any) -> None:
    """Transfer and lower, lift the text again and execute it on the whole grid: level ir, from the reading in hand."""
    from tests.examples.adapted import NotAdapted, adapt_to

    outcome.level = "none"
    try:
        done = adapt_to(attention, program, KERNEL.parent.name)
    except NotAdapted as why:
        outcome.adapt_code, _, outcome.adapt_message = str(why).partition(" ")
        return
    outcome.level = "lifted"
    ran, problems = done.check(done.text)
    if ran.passed and not problems:
        outcome.level = "ir"
        return
    for diagnostic in (*problems, *ran.diagnostics):
        outcome.adapt_code, outcome.adapt_message = diagnostic.code, diagnostic.message
        return


def _through_pipeline(outcome: Outcome, path: str) -> None:
    """What `cubridge adapt` reaches without a GPU."""
    from cubridge_engine.pipeline.adapt import adapt
    from cubridge_engine.pipeline.files import Options
    from cubridge_engine.verify.subject import VerifyOptions

    with _silence():
        done = adapt(str(KERNEL), path, Options(time_limit=SECONDS), VerifyOptions(use_gpu=False))
    outcome.level = done.level
    errors = [d for d in done.diagnostics if d["severity"] == "error"]
    if errors:
        outcome.adapt_code, outcome.adapt_message = errors[0]["code"], errors[0]["message"]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        yield


def _quiet() -> None:
    """Packages talk while they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)


def task(form: Form, level: str) -> dict[str, Any]:
    """`judge` for another process: the outcome as plain data. Never raises."""
    import torch

    torch.set_num_threads(1)
    torch._dynamo.reset()
    try:
        return asdict(judge(form, level))
    except Exception as error:
        return asdict(Outcome(form.name, "refused", "crash", message=f"{type(error).__name__}: {error}"))


def run(forms: list[Form], level: str = "", jobs: int = 1) -> Iterator[Outcome]:
    """All forms, `jobs` side by side, each in a process that a form may kill: it is reported, and the rest goes on."""
    left: queue.SimpleQueue[Form] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    for form in forms:
        left.put(form)
    for _ in range(jobs):
        threading.Thread(target=_work, args=(left, done, level), daemon=True).start()
    for _ in forms:
        yield done.get()


def _work(left: queue.SimpleQueue[Form], done: queue.SimpleQueue[Outcome], level: str) -> None:
    """Take forms until none is left, in one process after another where a form kills its own."""
    while True:
        with ProcessPoolExecutor(1) as pool:
            while True:
                try:
                    form = left.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put(Outcome(**pool.submit(task, form, level).result()))
                except BrokenProcessPool:
                    done.put(Outcome(form.name, "refused", "crash", message="the process died"))
                    break

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cubridge_engine.jobs import TASKS, AsyncWorker, Worker, run_job

NAMES = (
    "echo",
    "steps",
    "noisy",
    "forever",
    "launch",
    "spin",
    "eat",
    "crash",
    "fail",
    "leave",
    "not_json",
    "has_torch",
)
WAIT_S = 120.0  # for what happens at once: a busy machine may take its time
TABLE = {**TASKS, **{name: f"tests.jobs.job_tasks:{name}" for name in NAMES}}


@pytest.fixture
def worker():
    with Worker(tasks=TABLE) as made:
        yield made


def gone(pid: int, within_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def running(worker: Worker, task: str, params: dict, **limits: float):
    """Start a job and wait for its first progress; (handle, progress list)."""
    seen: list[tuple[str, float, str]] = []
    handle = worker.run(task, params, on_progress=lambda *row: seen.append(row), **limits)
    within(lambda: any(row[0] == "running" for row in seen))
    return handle, seen


def within(happened: Callable[[], bool]) -> None:
    """Wait until it has happened."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_value_comes_back_and_the_process_stays(worker: Worker) -> None:
    first = worker.run("echo", {"text": "é\n", "n": [1, None]}).result(WAIT_S)
    second = worker.run("echo", {}).result(WAIT_S)
    assert first.state == "done"
    assert first.value is not None
    assert (first.value["text"], first.value["n"]) == ("é\n", [1, None])
    assert second.value == {"pid": first.value["pid"]}


def test_progress_is_in_order_and_before_the_result(worker: Worker) -> None:
    seen: list[tuple[str, float, str]] = []
    assert worker.run("steps", {"n": 200}, on_progress=lambda *row: seen.append(row)).result(WAIT_S).value == {"n": 200}
    assert seen == [("count", n / 200, f"step {n}") for n in range(200)]


def test_a_failing_progress_callback_does_not_fail_the_job(worker: Worker) -> None:
    assert worker.run("steps", {"n": 2}, on_progress=lambda *_: 1 / 0).result(WAIT_S).state == "done"


def test_prints_do_not_corrupt_the_protocol(worker: Worker) -> None:
    outcome = worker.run("noisy", {}).result(WAIT_S)
    assert outcome.value == {"read": ""}, "user code neither forges events nor reads requests"
    again = worker.run("echo", {"x": 1}).result(WAIT_S)
    assert again.value is not None
    assert again.value["x"] == 1


@pytest.mark.parametrize("child", ["", "group", "own session"])
def test_cancel_is_quick_and_takes_the_children_along(worker: Worker, child: str) -> None:
    handle, seen = running(worker, "forever", {"child": child})
    pid = worker.pid
    assert pid is not None
    start = time.monotonic()
    handle.cancel()
    outcome = handle.result(WAIT_S)
    print(f"cancel took {(time.monotonic() - start) * 1e3:.0f} ms")
    assert outcome.state == "cancelled"
    assert [d.code for d in outcome.diagnostics] == ["CB804"]
    assert gone(pid)
    for row in seen:
        assert row[0] != "child" or gone(int(row[2]))
    fresh = worker.run("echo", {}).result(WAIT_S)
    assert fresh.value is not None
    assert fresh.value["pid"] != pid


ENDLESS = """.version 9.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0) {
.reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p;
ld.param.u64 %d0, [p0];
mov.u32 %r0, 0;
LOOP:
add.u32 %r0, %r0, 1;
setp.ne.u32 %p, %r0, 0;
@%p bra LOOP;
st.global.u32 [%d0], %r0;
ret;
}
"""


def shares_of(seen: list[tuple[str, float, str]]) -> list[float]:
    return [fraction for stage, fraction, _ in seen if stage == "launch"]


def test_cancel_inside_a_launch_leaves_the_process_warm(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubridge_engine.jobs.pool._GRACE_S", WAIT_S)  # the launch ends because it is asked to
    handle, seen = running(worker, "launch", {"ptx": ENDLESS})
    pid = worker.pid
    within(lambda: len(shares_of(seen)) >= 3)
    start = time.monotonic()
    handle.cancel()
    assert handle.result(WAIT_S).state == "cancelled"
    print(f"cancel took {(time.monotonic() - start) * 1e3:.0f} ms")
    shares = shares_of(seen)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] < 1
    again = worker.run("echo", {}).result(WAIT_S)
    assert again.value is not None
    assert again.value["pid"] == pid


def test_cancel_of_a_queued_job_is_at_once_and_leaves_the_running_one(worker: Worker) -> None:
    first, _ = running(worker, "forever", {})
    second = worker.run("echo", {})
    second.cancel()
    assert second.done()
    assert second.result(0).state == "cancelled"
    assert not first.done()
    first.cancel()
    third = worker.run("echo", {"n": 3}).result(WAIT_S)
    assert third.value is not None
    assert third.value["n"] == 3


def test_time_limit_names_the_line(worker: Worker, tmp_path: Path) -> None:
    spec = tmp_path / "spec.py"
    spec.write_text("def attention():\n    x = 0\n    while True:\n        x += 1\n")
    outcome = worker.run("spin", {"path": str(spec)}, timeout_s=1.0).result(WAIT_S)
    (found,) = outcome.diagnostics
    assert (outcome.state, found.code) == ("failed", "CB801")
    assert found.span is not None
    assert found.span.path == str(spec)
    assert found.span.line in (2, 3)
    assert "spec.py:" in found.message


def test_memory_limit(worker: Worker) -> None:
    outcome = worker.run("eat", {}, memory_bytes=200 << 20, timeout_s=WAIT_S).result(WAIT_S)
    assert [d.code for d in outcome.diagnostics] == ["CB802"]
    assert worker.run("echo", {}).result(WAIT_S).state == "done"


@pytest.mark.parametrize(
    ("params", "how"), [({}, "exit status 3"), ({"signal": int(signal.SIGSEGV)}, "signal SIGSEGV")]
)
def test_crash_is_explained_and_the_next_job_runs(worker: Worker, params: dict, how: str) -> None:
    outcome = worker.run("crash", params).result(WAIT_S)
    (found,) = outcome.diagnostics
    assert found.code == "CB803"
    assert how in found.message
    assert "last words" in str(found.data["stderr"])
    assert worker.run("echo", {}).result(WAIT_S).state == "done"


def test_killed_while_idle(worker: Worker) -> None:
    first = worker.run("echo", {}).result(WAIT_S)
    assert first.value is not None
    psutil.Process(first.value["pid"]).kill()
    second = worker.run("echo", {}).result(WAIT_S)
    assert second.value is not None
    assert second.value["pid"] != first.value["pid"]


@pytest.mark.parametrize(
    ("task", "params", "code", "text"),
    [
        ("fail", {}, "CB805", "ValueError: no such tile {x}"),
        ("leave", {}, "CB805", "SystemExit: 0"),
        ("not_json", {}, "CB805", "not JSON serializable"),
        ("nonsense", {}, "CB806", "nonsense"),
        ("echo", {"x": object()}, "CB808", "not JSON serializable"),
    ],
)
def test_failures_are_diagnostics(worker: Worker, task: str, params: dict, code: str, text: str) -> None:
    outcome = worker.run(task, params).result(WAIT_S)
    assert outcome.state == "failed"
    assert [d.code for d in outcome.diagnostics] == [code]
    assert text in outcome.diagnostics[0].message
    assert worker.run("echo", {}).result(WAIT_S).state == "done", "the worker goes on"


def test_no_interpreter() -> None:
    with Worker(tasks=TABLE, python="/nonexistent/python") as worker:
        assert [d.code for d in worker.run("echo", {}).result(WAIT_S).diagnostics] == ["CB807"]


def test_close_ends_everything() -> None:
    worker = Worker(tasks=TABLE)
    handle, _ = running(worker, "forever", {})
    queued = worker.run("echo", {})
    pid = worker.pid
    assert pid is not None
    worker.close()
    assert (handle.result(WAIT_S).state, queued.result(WAIT_S).state) == ("cancelled", "cancelled")
    assert gone(pid)
    with pytest.raises(RuntimeError):
        worker.run("echo", {})


def test_worker_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom cubridge_engine.jobs import Worker\n"
        "w = Worker(tasks={'forever': 'tests.jobs.job_tasks:forever'})\n"
        "w.run('forever', {}, on_progress=lambda *a: print(w.pid, flush=True))\ntime.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    with psutil.Popen([sys.executable, "-c", code], stdout=-1, cwd=root) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)


def test_parent_and_worker_do_not_load_torch(worker: Worker) -> None:
    assert worker.run("has_torch", {}).result(WAIT_S).value == {"torch": False}


def test_warm_up_imports_in_the_worker(worker: Worker) -> None:
    warmed = worker.warm_up(("colorsys",)).result(WAIT_S)
    assert warmed.value is not None
    assert warmed.value["pid"] == worker.pid


def test_run_job_waits() -> None:
    assert [d.code for d in run_job("nonsense", {}).diagnostics] == ["CB806"]


async def test_async_progress_then_result() -> None:
    worker = AsyncWorker(Worker(tasks=TABLE))
    seen: list[str] = []
    outcome = await worker.submit("steps", {"n": 3}, on_progress=lambda stage, part, text: seen.append(text))
    assert outcome.value == {"n": 3}
    assert seen == ["step 0", "step 1", "step 2"]
    await worker.close()


async def test_cancelling_the_task_kills_the_job() -> None:
    worker = AsyncWorker(Worker(tasks=TABLE))
    begun = asyncio.Event()
    task = asyncio.create_task(worker.submit("forever", {}, on_progress=lambda *_: begun.set()))
    await asyncio.wait_for(begun.wait(), WAIT_S)
    pid = worker.worker.pid
    assert pid is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(gone, pid)
    await worker.close()


def test_an_interpreter_without_the_engine_is_explained() -> None:
    with Worker(tasks=TABLE, env={"PYTHONPATH": "", "PYTHONHOME": "/nonexistent"}) as worker:
        outcome = worker.run("echo", {}).result(WAIT_S)
        assert [d.code for d in outcome.diagnostics] == ["CB803"]
        assert "No module named" in str(outcome.diagnostics[0].data["stderr"])

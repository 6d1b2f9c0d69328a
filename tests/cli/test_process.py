"""The real command in a process of its own, with the real worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

WAIT_S = 300.0  # for what happens at once: a busy machine may take its time
LOOP = """
import torch


def attention(q, k, v):
    while True:
        pass


def example_inputs():
    return tuple(torch.randn(1, 2, 32, 64) for _ in range(3))
"""


def command(*argv: object) -> list[str]:
    return [sys.executable, "-m", "cubridge_engine.cli.main", *(str(a) for a in argv)]


def test_spec_in_a_real_worker(examples: Path) -> None:
    done = subprocess.run(
        command("spec", examples / "gemma2_softcap_window.py", "--format", "json"),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    attention = json.loads(done.stdout)["attention"]
    assert "tanh" in attention["score"]
    assert attention["mask"]


def test_prints_of_the_spec_do_not_reach_stdout(write_spec) -> None:
    path = write_spec("print('noise')\nimport nothing_of_that_name\n")
    done = subprocess.run(
        command("spec", path, "--format", "json"), capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["diagnostics"][0]["code"] == "CB203"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupt_kills_the_worker(write_spec, kernel: Path) -> None:
    path = write_spec(LOOP)
    running = subprocess.Popen(
        command("adapt", kernel, path, "--time-limit", "2000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in its background with SIGINT ignored, and so would be whatever we start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stderr is not None
    for line in running.stderr:
        if line.strip() == "cubridge: spec":
            break
    children = psutil.Process(running.pid).children(recursive=True)
    assert children
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=WAIT_S) == 130
    gone, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert not alive
    assert gone


def test_lift_needs_no_spec(kernel: Path) -> None:
    done = subprocess.run(
        command("lift", kernel, "--format", "json"), capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    data = json.loads(done.stdout)
    assert done.returncode == 0, data["diagnostics"]
    assert "mma qk" in data["cuir"]
    assert data["kernel_name"] == "flash_fwd_sm80"

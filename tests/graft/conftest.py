"""FlashAttention-2's sources: its sdist, pinned, fetched with pip when a test asks for it, unpacked once into a
cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.one_at_a_time import one_at_a_time

PIN = "flash-attn==2.8.3"
KEPT = ("csrc/flash_attn/", "csrc/cutlass/include/", "setup.py")


@pytest.fixture(scope="session")
def flash_attention_2(request: pytest.FixtureRequest) -> Path:
    """The folder of the sources, in the cache that holds the other packages of the tests."""
    if os.environ.get("CUBRIDGE_FOREIGN") == "0":
        pytest.skip("CUBRIDGE_FOREIGN=0 forbids fetching")
    assert request.config.cache is not None
    home = Path(request.config.cache.mkdir("foreign")) / PIN.replace("==", "-")
    done = home / "unpacked"
    with one_at_a_time(home):
        if not done.exists():
            done.write_text(_fetched(home))
    return home / done.read_text()


def _fetched(home: Path) -> str:
    command = [sys.executable, "-m", "pip", "--retries", "1", "download", "-q", "--no-deps", "--no-binary=:all:"]
    # pip asks an sdist for its metadata; that of this one needs torch, which is here, and nothing built.
    command += ["--no-build-isolation", "-d", str(home), PIN]
    environment = {**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
    fetched = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    if fetched.returncode:
        last = " ".join(fetched.stderr.strip().splitlines()[-1:])
        pytest.skip(f"{PIN} cannot be fetched: {last}")
    (archive,) = home.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        root = archive.name.removesuffix(".tar.gz")
        wanted = [m for m in file.getmembers() if m.name.removeprefix(f"{root}/").startswith(KEPT)]
        file.extractall(home, wanted, filter="data")
    archive.unlink()
    return root

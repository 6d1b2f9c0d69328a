"""Explanations kept from earlier runs. Light to import, so that a command finds one without starting a worker.

The key is the text of the file and of its headers, the options, the contracts that may apply, and the engine itself.
A result also says which headers it was made with: one that has changed since, wherever it lies, is a miss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..compile.bundled import bundled_contracts
from ..compile.cache import cache_key
from ..compile.kept import engine_stamp, load_json, store_json
from ..results_base import Stage
from ..results_understood import Explained
from ..source.overlay import read_bytes

KIND = "explain"
WHY = "kept from an earlier run"
STAGES = ("parse", "lift", "explain")


def look_up(path: str, kernel_name: str | None, head_dim: int | None, watch: bool = False) -> Explained | None:
    """The explanation of the file as it is now, or None."""
    data = _read(path)
    if data is None:
        return None
    table = load_json(KIND, _key(path, data, kernel_name, head_dim, watch))
    if table is None:
        return None
    try:
        headers: Mapping[str, str] = table["headers"]
        kept = Explained.model_validate(table["result"])
    except (ValidationError, KeyError):  # of another version of the contract
        return None
    if any(_digest(_read(header)) != digest for header, digest in headers.items()):
        return None
    stages = tuple(Stage(name=name, state="skipped", seconds=0.0, why=WHY) for name in STAGES)
    return kept.model_copy(update={"stages": stages})


def keep(
    result: Explained,
    data: bytes,
    headers: Sequence[tuple[str, bytes]],
    kernel_name: str | None,
    head_dim: int | None,
    watch: bool = False,
) -> None:
    """Keep the explanation of a file that holds `data`, read with these headers (path, bytes)."""
    digests = {path: _digest(text) for path, text in headers}
    table = {"headers": digests, "result": result.model_dump(mode="json")}
    store_json(KIND, _key(result.kernel.path, data, kernel_name, head_dim, watch), table)


def _key(path: str, data: bytes, kernel_name: str | None, head_dim: int | None, watch: bool) -> str:
    contracts = [Path(path).parent / "contract.toml", *bundled_contracts()]
    texts = [_digest(_read(str(contract))) for contract in contracts]
    return cache_key(data, path, (engine_stamp(), repr((kernel_name, head_dim, watch)), *texts), ())


def _read(path: str) -> bytes | None:
    try:
        return read_bytes(path)
    except OSError:
        return None


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()

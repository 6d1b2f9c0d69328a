"""The user's settings (``cubridge.*``), from initializationOptions and from configuration changes.

Unknown keys are ignored and a value of the wrong type keeps the default: a typo in a settings file must not stop the
server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Settings:
    """Names are those of the settings, in snake case; units are in the comments."""

    trusted: bool = True  # False: reading only, nothing of the workspace is executed
    code_lens: bool = True
    inlay_hints: bool = True
    arch: str = ""  # sm_80, sm_90 ...; empty: what the kernel's contract lists
    use_gpu: bool = True
    empty_rows: str = "keep"  # keep | exact
    read_specs: str = "ask"  # ask | save: when a spec is run to say what it means
    check_while_typing: bool = True  # rules of reading, in this process
    check_watch: str = "ask"  # ask | save: when a kernel is run in the simulator to find what reading cannot
    check_expect: str = ""  # what a check by watching compares with, as `cubridge check --expect`: causal,gqa
    time_limit: float = 300.0  # seconds for one job
    memory_limit: int = 8192  # MiB for one job
    model_name: str = ""  # empty: no model is asked, offered or mentioned
    model_base_url: str = ""  # empty: CUBRIDGE_MODEL_BASE_URL, else OpenAI
    model_rounds: int = 4
    model_candidates: int = 1
    model_budget_tokens: int = 200_000  # 0: no limit
    model_budget_seconds: float = 600.0
    model_budget_usd: float = 0.0  # 0: no limit
    model_price: str = ""  # PROMPTS,REPLIES in US dollars for a million tokens

    def job_options(self) -> dict[str, object]:
        """The part that a worker job needs."""
        options: dict[str, object] = {"empty_rows": self.empty_rows, "use_gpu": self.use_gpu}
        return options | ({"archs": [self.arch]} if self.arch else {})


def snake(name: str) -> str:
    """``timeLimit`` -> ``time_limit``, ``model.baseUrl`` -> ``model_base_url``."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: "_" + match[1].lower(), name).replace(".", "_")


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by full name: a client gives ``model.name`` as it is, or as an object `model` with a `name`."""
    for key, value in values.items():
        inner = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
        if isinstance(inner, Mapping):
            yield from flat(cast("Mapping[str, Any]", inner), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def merge(settings: Settings, values: object) -> Settings:
    """`settings` with the recognised entries of `values` (a dict with camelCase keys, or an attribute bag)."""
    if values is None:
        return settings
    given: Mapping[str, Any] = (
        cast("Mapping[str, Any]", values) if isinstance(values, Mapping) else dict(getattr(values, "__dict__", {}))
    )
    accepted: dict[str, Any] = {}
    defaults = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    for key, value in flat(given):
        name = snake(key)
        if name not in defaults:
            continue
        wanted = type(defaults[name])
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is wanted:
            accepted[name] = value
    return replace(settings, **accepted)

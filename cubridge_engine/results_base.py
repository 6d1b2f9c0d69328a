"""What every result of the JSON contract has in common (see `results`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

State = Literal["passed", "failed", "skipped"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stage(Frozen):
    """One step of a job: `why` says why it failed or did not run."""

    name: str
    state: State
    seconds: float
    why: str = ""


class FileRef(Frozen):
    """A file as it was read: `sha256` of its bytes."""

    path: str
    name: str
    sha256: str


class Result(Frozen):
    """Common to every command."""

    schema_version: int = SCHEMA_VERSION
    command: str
    diagnostics: tuple[dict[str, Any], ...] = ()
    stages: tuple[Stage, ...] = ()
    exit_code: int = 0

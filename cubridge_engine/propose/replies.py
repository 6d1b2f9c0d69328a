"""What a model may answer: one small object, checked before anything is done with it.

Plain unions with Literal tags, no defaults, an object at the root: every server that takes a JSON schema takes these
(a tagged union as ``oneOf`` is rejected by many).
"""

from __future__ import annotations

import json
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

# How far an attempt came, in order: it is a reply, one in the form asked for, one that may be tried, the kernel with it
# was read, then levels of verification.
STAGES = ("reply", "parsed", "allowed", "read", "ir", "compiled", "simulated")
MAX_REPLY = 60_000  # characters; a longer one is no answer to any of the questions


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SiteText(_Strict):
    """New text for one of the named sites."""

    site: str
    text: str


class Binding(_Strict):
    """A value for one of the kernel's own parameters."""

    name: str
    value: float


class Readings(_Strict):
    """Plain code that means the same as each opaque region, values of parameters, and which instantiation to read."""

    kind: Literal["lift"]
    sites: list[SiteText]
    bindings: list[Binding]
    head_dim: int | None
    reason: str


class RuleSequence(_Strict):
    """The rules to apply, by name; all others are left out."""

    kind: Literal["rules"]
    rules: list[str]
    reason: str


class TargetProgram(_Strict):
    """The whole target program as CuIR text."""

    kind: Literal["cuir"]
    cuir: str
    reason: str


class Replacements(_Strict):
    """New text for named sites of the kernel."""

    kind: Literal["lower"]
    sites: list[SiteText]
    reason: str


class Refusal(_Strict):
    """The model cannot do it."""

    kind: Literal["refusal"]
    reason: str


class LiftReply(_Strict):
    """Role lift."""

    answer: Readings | Refusal


class TransferReply(_Strict):
    """Role transfer."""

    answer: RuleSequence | TargetProgram | Refusal


class LowerReply(_Strict):
    """Role lower."""

    answer: Replacements | Refusal


Answer = Readings | RuleSequence | TargetProgram | Replacements | Refusal
ROLES: dict[str, type[LiftReply] | type[TransferReply] | type[LowerReply]] = {
    "lift": LiftReply,
    "transfer": TransferReply,
    "lower": LowerReply,
}


class BadReply(ValueError):
    """The reply is not what was asked for; the text says why in one clause that the model can be told."""


def parse_reply(role: str, text: str) -> Answer:
    """The answer in a reply: JSON as it is, or the last fenced block of it. Raises BadReply."""
    if len(text) > MAX_REPLY:
        raise BadReply(f"the reply has {len(text)} characters, more than {MAX_REPLY}")
    if not text.strip():
        raise BadReply("the reply is empty")
    value = _json_in(text)
    try:
        return ROLES[role].model_validate(value).answer
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the root"
        raise BadReply(f"the reply does not follow the schema: {place}: {first['msg'].lower()}") from None


def _json_in(text: str) -> object:
    """The JSON object of a reply; what a model thinks aloud before it, and fences around it, are not part of it."""
    text = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    fenced = re.findall(r"```(?:json)?[ \t]*\n(.*?)\n[ \t]*```", text, flags=re.DOTALL)
    candidate = text if text.startswith("{") or not fenced else fenced[-1].strip()
    if not candidate.startswith("{"):
        raise BadReply("the reply holds no JSON object")
    try:
        return json.loads(candidate, parse_constant=_no_constant)
    except RecursionError:
        raise BadReply("the reply is nested too deeply") from None
    except ValueError as problem:
        raise BadReply(f"the reply is no JSON, or was cut off: {problem}") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")

"""Which model is asked, and how much of it may be used. Read from arguments and environment; a key is never stored."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT_URL = "https://api.openai.com/v1"
KEY_VARIABLE = "CUBRIDGE_MODEL_API_KEY"
KEY_VARIABLES: tuple[str, ...] = (KEY_VARIABLE, "OPENAI_API_KEY")  # none of them is for the worker


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server and one of its models. `key` never shows in a repr, a log or a transcript."""

    model: str
    base_url: str = DEFAULT_URL
    key: str = field(default="", repr=False, compare=False)

    @property
    def host(self) -> str:
        """Where prompts go, as a person would say it: ``localhost:8000``."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2] or self.base_url


@dataclass(frozen=True, slots=True)
class Limits:
    """What one adaptation may use. `tokens` counts prompts and replies, `seconds` the whole time, `usd` money at
    `price`: US dollars for a million tokens of prompts and of replies. None: no limit of that kind.
    """

    rounds: int = 4
    candidates: int = 1
    tokens: int | None = 200_000
    seconds: float = 600.0
    usd: float | None = None
    price: tuple[float, float] | None = None


class BadConfiguration(ValueError):
    """What is configured cannot be used. `way_out` says what to do."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what)
        self.way_out = way_out


def endpoint_of(model: str, url: str | None = None, environ: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint for `model`: `url`, else CUBRIDGE_MODEL_BASE_URL, else OpenAI's.

    OPENAI_API_KEY goes to OpenAI's own address only. Raises BadConfiguration for an address that is none.
    """
    base = url or environ.get("CUBRIDGE_MODEL_BASE_URL") or DEFAULT_URL
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadConfiguration(f"'{base}' is no address of a model server", "Write it as http://HOST:PORT/v1.")
    if parts.username or parts.password:
        raise BadConfiguration("the address of the model server holds a password", f"Put the key in {KEY_VARIABLE}.")
    if not model.strip():
        raise BadConfiguration("no model is named", "Name one, as the server lists it.")
    key = environ.get(KEY_VARIABLE, "")
    if not key and base == DEFAULT_URL:
        key = environ.get("OPENAI_API_KEY", "")
        if not key:
            raise BadConfiguration("there is no key for OpenAI's endpoint", f"Set {KEY_VARIABLE}.")
    return Endpoint(model.strip(), base, key)


def price_of(text: str | None) -> tuple[float, float] | None:
    """``"2.5,10"`` as US dollars for a million tokens of prompts and of replies. Raises BadConfiguration."""
    if not text:
        return None
    try:
        into, out = (float(part) for part in text.split(","))
    except ValueError:
        raise BadConfiguration(f"'{text}' is no price", "Write two numbers: PROMPTS,REPLIES in US dollars.") from None
    return into, out


def limits_of(limits: Limits) -> Limits:
    """`limits`, if they make sense. Raises BadConfiguration."""
    if limits.rounds < 1 or limits.candidates < 1 or limits.candidates > 16:
        raise BadConfiguration("a model is asked in 1 round or more, for 1 to 16 candidates", "Choose other numbers.")
    if limits.usd is not None and limits.price is None:
        raise BadConfiguration(
            "a budget in money needs the price of the model",
            "Pass --price PROMPTS,REPLIES (US dollars for a million tokens), or use a budget in tokens.",
        )
    return limits

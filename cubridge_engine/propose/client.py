"""One question to an OpenAI-compatible endpoint. The only module that talks to it, and the only one that has the key.

How replies are constrained is found out once for each endpoint and model: a JSON schema, else an object with that
schema as llama.cpp takes it, else any JSON object, else words (the prompts ask for JSON in any case).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .config import Endpoint
from .replies import ROLES

Message = Mapping[str, str]
FORMS = ("json_schema", "object_schema", "json_object", "text")
NOT_TAKEN = frozenset({400, 422, 500, 501})  # what servers say to a parameter that they do not know
RETRIES = 2  # of the client library: after 429, 5xx, a timeout, a broken connection, as Retry-After says
REPLY_TOKENS = 8_192

_FORM: dict[tuple[str, str], str] = {}  # (address, model) -> the first of FORMS that it takes
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply. Tokens as the server counts them, else estimated; `form` is how the reply was constrained."""

    text: str
    form: str
    prompt_tokens: int
    reply_tokens: int
    seconds: float


class AskFailed(Exception):
    """The endpoint gave no reply. `code` is CB040 or CB041; the text never holds the key."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Source(Protocol):
    """Where replies come from: an endpoint, or a transcript."""

    model: str
    host: str

    def ask(self, role: str, messages: Sequence[Message], place: tuple[int, int]) -> Answered:
        """The reply to `messages`; `place` is (number of the question, candidate). Raises AskFailed."""
        ...

    def close(self) -> None:
        """Give up whatever is still waited for."""
        ...


class Client:
    """An endpoint. Thread-safe. `request_s`: seconds for one request; the budget of the loop ends waiting for all."""

    def __init__(self, endpoint: Endpoint, *, request_s: float) -> None:
        from openai import OpenAI  # a second to import, and not needed without a model

        self.model, self.host = endpoint.model, endpoint.host
        self._endpoint = endpoint
        # Local servers ask for no key, and the library insists on one.
        self._client = OpenAI(
            api_key=endpoint.key or "none", base_url=endpoint.base_url, timeout=request_s, max_retries=RETRIES
        )
        self._limit = "max_tokens"

    def ask(self, role: str, messages: Sequence[Message], place: tuple[int, int]) -> Answered:
        """See `Source`. The first question finds out which of FORMS the endpoint takes."""
        key = (self._endpoint.base_url, self.model)
        with _LOCK:
            known = _FORM.get(key)
        forms = [known] if known is not None else list(FORMS)
        start = time.monotonic()
        for number, form in enumerate(forms):
            try:
                reply = self._request(role, messages, form)
            except _NotTaken as problem:
                if number + 1 < len(forms):
                    continue
                raise AskFailed("CB040", self._clean(str(problem))) from None
            with _LOCK:
                _FORM[key] = form
            return _answered(reply, messages, form, time.monotonic() - start)
        raise AssertionError("there is always a last form")

    def close(self) -> None:
        """Close the connections: a request that is still waiting ends with an error."""
        self._client.close()

    def _request(self, role: str, messages: Sequence[Message], form: str) -> Any:
        import openai

        given: dict[str, Any] = {"model": self.model, "messages": list(messages), self._limit: REPLY_TOKENS}
        if form != "text":
            given["response_format"] = response_format(role, form)
        try:
            return self._client.chat.completions.create(**given)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as problem:
            raise AskFailed("CB041", self._clean(str(problem))) from None
        except openai.APIStatusError as problem:
            if problem.status_code not in NOT_TAKEN:
                raise AskFailed("CB040", self._clean(str(problem))) from None
            if self._limit == "max_tokens" and "'max_tokens'" in str(problem):
                self._limit = "max_completion_tokens"
                return self._request(role, messages, form)
            raise _NotTaken(str(problem)) from None
        except openai.APITimeoutError:
            raise AskFailed("CB040", "it did not answer in time") from None
        except openai.APIConnectionError as problem:
            raise AskFailed("CB040", self._clean(f"no connection ({problem.__cause__ or problem})")) from None
        except (openai.OpenAIError, ValueError) as problem:
            raise AskFailed("CB040", self._clean(str(problem))) from None

    def _clean(self, text: str) -> str:
        """An error's words without the key, in one line of bounded length."""
        key = self._endpoint.key
        return " ".join((text.replace(key, "***") if key else text).split())[:300]


class _NotTaken(Exception):
    """The server rejects the request as it is."""


def response_format(role: str, form: str) -> dict[str, Any]:
    """The parameter that asks for JSON."""
    if form == "json_object":
        return {"type": "json_object"}
    schema = ROLES[role].model_json_schema()
    if form == "object_schema":
        return {"type": "json_object", "schema": schema}
    return {"type": "json_schema", "json_schema": {"name": f"cubridge_{role}", "schema": schema, "strict": True}}


def _answered(reply: Any, messages: Sequence[Message], form: str, seconds: float) -> Answered:
    """What counts of a completion, whatever of it a server left out."""
    choices = getattr(reply, "choices", None) or []
    message = choices[0].message if choices else None
    text = (message.content if message is not None else None) or ""
    refusal = getattr(message, "refusal", None)
    if refusal and not text:
        text = json.dumps({"answer": {"kind": "refusal", "reason": str(refusal)}})
    usage = getattr(reply, "usage", None)
    prompt = getattr(usage, "prompt_tokens", None) or sum(len(m["content"]) for m in messages) // 4
    written = getattr(usage, "completion_tokens", None) or len(text) // 4
    return Answered(text, form, int(prompt), int(written), round(seconds, 3))

"""`make test-model`: a real server with a small model. Its replies are parsed, none is accepted, nothing hangs."""

from __future__ import annotations

import json
import os

import pytest

from bench.model import NoServer, server
from cubridge_engine.propose import client
from cubridge_engine.propose.client import Client
from cubridge_engine.propose.config import Endpoint, Limits
from cubridge_engine.propose.loop import Session
from cubridge_engine.propose.replies import STAGES

PYTHON = os.environ.get("CUBRIDGE_MODEL_PYTHON", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="CUBRIDGE_MODEL_PYTHON names no interpreter: see make test-model"),
]


@pytest.fixture(scope="module")
def url():
    try:
        with server(PYTHON) as address:
            yield address
    except NoServer as why:
        pytest.skip(f"no real server here: {why}")


@pytest.mark.parametrize("name", ["maximum on integers", "mask in the scaling", "last tile first"])
def test_replies_are_parsed_and_rejected(worker, params, refused, url, name: str) -> None:
    endpoint = Endpoint("smollm2", url)
    session = Session(worker, Client(endpoint, request_s=600.0), Limits(rounds=1, seconds=600.0))
    result = session.adapt(params(name), refused(name))
    assert result["proposed"] is None
    assert result["text"] is None
    assert json.dumps(result)
    assert len(session.tried) == 1
    assert not session.tried[0].accepted
    assert STAGES.index(session.tried[0].stage) >= STAGES.index("parsed"), session.tried[0].feedback
    assert client._FORM[url, "smollm2"] in ("json_schema", "object_schema")

"""`cubridge adapt --model` and `cubridge eval`, with a scripted server in place of a model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cubridge_engine.cli import evaluate, model
from cubridge_engine.propose.suite_tasks import tasks_of
from tests.propose.conftest import MAXIMUM, RIGHT, lift, reply
from tests.propose.endpoint import KEY, Say, Scripted

from .conftest import run_here

WRONG = reply(lift(("opaque1", MAXIMUM.split("\n")[0])))
QUICK = ("--no-gpu", "--arch", "sm_80")


@pytest.fixture
def task(tmp_path: Path):
    return next(task for task in tasks_of("default", tmp_path / "suite") if task.name == "maximum on integers")


@pytest.fixture
def asking(cubridge, monkeypatch):
    """The command line, with the jobs of asking in this process too."""
    here = lambda task, params, *, on_progress, timeout_s, memory_bytes, worker: run_here(  # noqa: E731
        task, params, on_progress=on_progress, timeout_s=timeout_s, memory_bytes=memory_bytes
    )
    monkeypatch.setattr(model, "run_in_worker", here)
    monkeypatch.setenv("CUBRIDGE_MODEL_API_KEY", KEY)
    return partial(cubridge, "adapt")


def test_a_proposal_is_written_and_replayed_offline(asking, task, tmp_path: Path) -> None:
    out, log = tmp_path / "out.cu", tmp_path / "t.jsonl"
    with Scripted([Say(WRONG), Say(RIGHT)]) as server:
        where = ("--model", "scripted", "--model-url", server.url, "--transcript", log)
        code, text, err = asking(task.kernel, task.spec, *where, *QUICK, "-o", out)
    assert code == 0, err
    assert "proposed by scripted at 127.0.0.1" in text
    assert "accepted in round 2 after 2 attempts: 2000 tokens asked, 200 answered" in text
    assert "warning[CB045]: 'opaque1' was proposed by the model 'scripted'" in err
    assert MAXIMUM.split("\n")[1] in out.read_text()
    for written in (text, err, out.read_text(), log.read_text()):
        assert KEY not in written
    again = tmp_path / "again.cu"  # the server is gone
    code, _, err = asking(task.kernel, task.spec, "--replay", log, *QUICK, "-o", again)
    assert code == 0, err
    assert again.read_text() == out.read_text()


def test_the_rules_come_first(asking, tmp_path: Path) -> None:
    plain = next(task for task in tasks_of("default", tmp_path / "suite") if task.name == "plain")
    with Scripted([Say(RIGHT)]) as server:
        code, _, err = asking(plain.kernel, plain.spec, "--model", "scripted", "--model-url", server.url, *QUICK)
        assert server.requests == []
    assert code == 0
    assert "CB048" in err


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (("--transcript", "t.jsonl"), "no model is named"),
        (("--model", "m", "--model-url", "ftp://x"), "no address"),
        (("--model", "m", "--model-url", "http://127.0.0.1:1/v1", "--budget-usd", "1"), "needs the price"),
        (("--model", "m", "--model-url", "http://127.0.0.1:1/v1", "--rounds", "0"), "1 round or more"),
        (("--replay", "nowhere.jsonl"), "cannot be replayed"),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_work(asking, task, given: tuple[str, ...], word: str) -> None:
    code, out, err = asking(task.kernel, task.spec, *given)
    assert (code, out) == (2, "")
    assert word in err


def test_without_a_model_the_command_does_not_mention_one(asking, task) -> None:
    code, out, err = asking(task.kernel, task.spec, *QUICK)
    assert code == 1
    assert not re.search(r"\bmodel\b", out + err)


def test_help_and_plain_jobs_do_not_load_the_client() -> None:
    code = "import sys; from cubridge_engine.cli.main import main; main(['lift', '.']); "
    code += "sys.exit('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


def test_eval_measures_rules_and_model(cubridge, monkeypatch, asking, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    base = Path(evaluate.__file__).parents[1] / "propose" / "suite"
    suite.write_text(
        f'[[task]]\nname = "integers"\nkernel = "{base}/ordered_max/kernel.cu"\nspec = "{base}/softcap.py"\n'
    )
    with Scripted([Say(WRONG), Say(RIGHT), Say("no idea")]) as server:
        where = ("--model", "scripted", "--model-url", server.url, "--samples", "3", "--rounds", "1")
        code, out, err = cubridge("eval", suite, *where, "--no-simulator", "--format", "json")
    assert code == 0, err
    found = json.loads(out)
    (row,) = found["tasks"]
    assert (row["rules"], row["code"]) == ("none", "CB027")
    assert [s["stage"] for s in row["samples"]] == ["allowed", "compiled", "reply"]
    assert row["pass_at_k"]["parsed"] == pytest.approx(2 / 3)
    assert row["pass_at_k"]["applicable"] == pytest.approx(1 / 3)
    assert (found["rules_alone"], found["with_model"]) == (0, 1)


def test_eval_refuses_what_it_cannot_run(cubridge, tmp_path: Path) -> None:
    empty = tmp_path / "s.toml"
    empty.write_text("")
    for given, word in (((empty,), "has no [[task]]"), (("default", "--k", "2"), "needs 2 samples")):
        code, _, err = cubridge("eval", *given)
        assert code == 2
        assert word in err

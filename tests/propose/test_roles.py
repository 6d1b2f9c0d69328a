"""The three questions, each on a kernel that the rules cannot adapt, with right and with subtly wrong answers."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest

from cubridge_engine.ir.text import parse_kernel, print_kernel
from cubridge_engine.lower import identifiers
from cubridge_engine.lower import lower as lower_by_rules
from cubridge_engine.pipeline.files import lift_at
from cubridge_engine.propose import finished
from cubridge_engine.propose.client import Client
from cubridge_engine.propose.config import Limits
from cubridge_engine.propose.loop import Session
from cubridge_engine.propose.sites import edit_sites
from cubridge_engine.source import parse
from cubridge_engine.spec import read_spec
from cubridge_engine.transfer import transfer
from cubridge_engine.transfer.rules import RULES
from tests.examples import near_misses
from tests.examples.adapted import Adapted

from .conftest import CAPPED, MAXIMUM, QUICK, RIGHT, lift, lower, reply
from .endpoint import Say, Scripted


def test_where_the_rules_end(worker, params, refused) -> None:
    """The suite says which rule stops each of its kernels; so does the product."""
    roles = {"maximum on integers": "lift", "mask in the scaling": "lower", "last tile first": "transfer"}
    for name, role in roles.items():
        assert refused(name)["text"] is None
        asked = worker("propose_question", params(name, state=None, found=[]), 60.0).value
        assert asked["role"] == role
        assert "$" not in asked["user"].replace("$out", "")  # every place of the prompt was filled
    assert refused("plain")["level"] == "compiled"


def test_an_opaque_region_is_adapted_with_a_proposal(worker, params, refused) -> None:
    """The showcase: no rule reads the row maximum; with plain statements in its place, the simulator verifies it."""
    name = "maximum on integers"
    assert refused(name)["diagnostics"][0]["code"] == "CB027"
    with Scripted([Say(RIGHT)]) as server:
        session = Session(worker, Client(server.endpoint(), request_s=5.0), Limits())
        result = session.adapt(params(name, use_simulator=True), refused(name))
    assert (result["level"], result["applicability"], result["exit_code"]) == ("simulated", "verified", 0)
    assert result["proposed"]["parts"] == ["opaque1"]
    assert result["proposed"]["model"] == "scripted"
    assert [h["proposed"] for h in result["hunks"]] == [False, False, True]
    assert "// cubridge: proposed opaque1 (scripted)" in result["text"]
    (mark,) = [d for d in result["diagnostics"] if d["code"] == "CB045"]
    original = Path(params(name)["kernel"]).read_text().split("\n")
    assert "int key = __float_as_int(m_new);" in original[mark["span"]["line"]]
    assert "20 * tanh(S / 20)" in result["diff"]  # the change itself is the work of rules


def test_what_was_proposed_is_marked_in_the_program(worker, params, attempt) -> None:
    done = attempt("maximum on integers", "lift", lift(("opaque1", MAXIMUM)))
    kernel = lift_at(parse("kernel.cu", done["result"]["text"].encode()), None, 32).kernel
    text = print_kernel(kernel, lines=True)
    marked = [line for line in text.split("\n") if line.endswith(", proposed")]
    assert [line.split()[0] for line in marked] == ["lane_reduce"]
    assert parse_kernel(text) == kernel


def test_a_lowering_site_is_filled_by_a_proposal(attempt) -> None:
    done = attempt("mask in the scaling", "lower", lower(("scores", CAPPED)))
    assert done["accepted"]
    assert done["result"]["level"] == "compiled"
    assert "+      // cubridge: begin proposed scores (scripted)\n" in done["result"]["diff"]


WRONG_SCORES = {
    "another cap": CAPPED.replace("20.f *", "21.f *"),
    "capped after the mask": ("s[i] = 20.f * tanhf((kv0 + part + kQuad * i < sk ? s[i] * scale : -INFINITY) / 20.f);"),
    "no scale": CAPPED.replace(" * scale", ""),
    "the tail is attended": CAPPED.replace("kv0 + part + kQuad * i < sk", "kv0 + part + kQuad * i <= sk"),
    "another column": CAPPED.replace("part + kQuad * i", "part * kQuad + i"),
}


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_wrong_replacements_are_rejected(attempt, name: str) -> None:
    done = attempt("mask in the scaling", "lower", lower(("scores", WRONG_SCORES[name])))
    assert not done["accepted"]
    assert done["result"] is None
    assert done["feedback"]


def program_of(asked: str) -> str:
    """The CuIR text of a question."""
    found = re.search(r"^cuir 1\n.*?^}\n", asked, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0]


def test_a_target_program_is_executed_and_then_written(worker, params, attempt) -> None:
    name = "last tile first"
    asked = worker("propose_question", params(name, state=None, found=[]), 60.0).value
    own = program_of(asked["user"])
    target = own.replace("keep j < Sk;", "keep j < Sk & j <= i;")
    done = attempt(name, "transfer", {"kind": "cuir", "cuir": target, "reason": ""})
    assert (done["accepted"], done["stage"], done["result"]) == (True, "ir", None)
    state = done["state"]
    then = worker("propose_question", params(name, state=state, found=[]), 60.0).value
    assert then["role"] == "lower"
    assert "j < Sk & j <= i" in then["user"]
    wrong = attempt(name, "lower", lower(("mask.condition", "col >= sk || col > row + 1")), state=state)
    assert not wrong["accepted"]
    assert "the mask reads j <= i + 1, not j <= i" in wrong["feedback"]
    right = attempt(name, "lower", lower(("mask.condition", "col >= sk || col > row")), state=state)
    assert right["accepted"]
    assert right["result"]["proposed"]["parts"] == ["target program", "mask.condition"]


WRONG_PROGRAMS = {
    "one key too few": ("keep j < Sk;", "keep j < Sk & j < i;", "O differs from the spec"),
    "as it was": ("keep j < Sk;", "keep j < Sk ;", ""),
    "no tile visited": ("n_tiles * 16 - 16", "0 - 16", "O differs from the spec"),
    "another kernel": ("kernel ordered_max", "kernel other", "name is other and must stay ordered_max"),
    "a buffer without end": ("Qs[1, 16, 32]", "Qs[9999, 16, 32]", "a buffer has more than"),
    "no program": ("cuir 1", "cuir one", "the program is no CuIR"),
    "parameters swapped": ("param 0 Q", "param 0 K", "parameters must stay"),
}


@pytest.mark.parametrize("name", WRONG_PROGRAMS)
def test_wrong_programs_are_rejected(worker, params, attempt, name: str) -> None:
    task = "last tile first"
    asked = worker("propose_question", params(task, state=None, found=[]), 60.0).value
    old, new, word = WRONG_PROGRAMS[name]
    text = program_of(asked["user"]).replace(old, new, 1)
    done = attempt(task, "transfer", {"kind": "cuir", "cuir": text, "reason": ""})
    assert not done["accepted"]
    assert word in done["feedback"]


def test_leaving_out_rules_is_verified_like_anything_else(attempt) -> None:
    """Without the rule that masks, the kernel attends to keys that it must not: leaving it out is no way around."""
    kept = ["interface", "head_map", "bind_scale", "normaliser", "score", "bind_flag", "sink", "empty_rows", "operands"]
    done = attempt("last tile first", "transfer", {"kind": "rules", "rules": kept, "reason": ""})
    assert not done["accepted"]
    assert "the kernel keeps every key, the spec keeps j <= i" in done["feedback"]
    unknown = attempt("last tile first", "transfer", {"kind": "rules", "rules": ["trust_me"], "reason": ""})
    assert "there is no rule 'trust_me'" in unknown["feedback"]


def test_leaving_out_a_rule_that_goes_wrong_is_accepted(attempt) -> None:
    """The rule that narrows the KV range is wrong on this loop; without it the mask alone is right, if slower."""
    kept = [rule.name for rule in RULES if rule.name != "kv_range"]
    done = attempt("last tile first", "transfer", {"kind": "rules", "rules": kept, "reason": ""})
    assert done["accepted"], done["feedback"]
    assert done["result"]["level"] == "compiled"
    assert done["result"]["proposed"]["parts"] == ["rules left out: kv_range"]


# --- near misses of the examples, as proposals ---

WINDOW = """\
import torch


def attention(q, k, v):
    s = q @ k.transpose(-1, -2) / 32**0.5
    s = 20.0 * torch.tanh(s / 20.0)
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None, :]
    s = s.masked_fill((j > i) | (j <= i - 24), float("-inf"))
    return torch.softmax(s, dim=-1) @ v


def example_inputs():
    return [torch.randn(1, 2, 48, 32) for _ in range(3)]
"""


@pytest.fixture(scope="module")
def windowed(tasks, tmp_path_factory):
    """(parameters, the adaptation by rules) of a softcap with a causal window on the plain kernel."""
    spec = tmp_path_factory.mktemp("window") / "spec.py"
    spec.write_text(WINDOW)
    path = tasks["plain"].kernel
    source = parse(path, Path(path).read_bytes())
    attention = read_spec(str(spec)).attention
    assert attention is not None
    lifted = lift_at(source, None, 32)
    result = transfer(lifted.kernel, attention, reserved=identifiers(source), tile_lists=False)
    lowered = lower_by_rules(lifted, result, source, spec="spec.py")
    assert lowered.text is not None
    adapted = Adapted(source, lifted, attention, result, lowered, lowered.text.decode(), None)  # type: ignore[arg-type]
    return {"kernel": path, "spec": str(spec), **QUICK}, adapted


LINES, WORDS = r".*\n", r"\w+|\s+|[^\w\s]"


def changes(old: str, new: str, pattern: str, at: int = 0) -> list[tuple[int, int, str]]:
    """(start, end, new text) of each change; within changed lines, of each changed word."""
    left, right = re.findall(pattern, old), re.findall(pattern, new)
    starts = [at]
    for piece in left:
        starts.append(starts[-1] + len(piece))
    found: list[tuple[int, int, str]] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        text = "".join(right[c:d])
        if tag == "replace" and pattern == LINES:
            found += changes("".join(left[a:b]), text, WORDS, starts[a])
        elif tag != "equal":
            found.append((starts[a], starts[b], text))
    return found


def as_answer(adapted: Adapted, text: str) -> dict | None:
    """The change from the kernel to `text` as an answer of role lower; None when it is not inside sites."""
    old = adapted.source.data.decode()
    sites = edit_sites(adapted.source, adapted.lifted.kernel, adapted.lifted.anchors)
    by_site: dict[str, tuple[int, int, list[tuple[int, int, str]]]] = {}
    for start, end, new in changes(old, text, LINES):
        around = [s for s in sites if s.start <= start and end <= s.end]
        site = min(around, key=lambda s: s.end - s.start, default=None)
        if site is None:
            return None
        by_site.setdefault(site.name, (site.start, site.end, []))[2].append((start, end, new))
    answer: list[tuple[str, str]] = []
    for name, (first, last, edits) in by_site.items():
        body = old[first:last]
        for start, end, new in reversed(edits):
            body = body[: start - first] + new + body[end - first :]
        answer.append((name, body))
    return lower(*answer)


def test_the_near_misses_of_the_examples_are_rejected_as_proposals(worker, windowed) -> None:
    params, adapted = windowed
    given = {**params, "state": None, "role": "lower", "model": "scripted"}

    def verdict(answer: dict) -> dict:
        return worker("propose_attempt", {**given, "reply": json.dumps({"answer": answer})}, 60.0).value

    right = as_answer(adapted, adapted.text)
    assert right is not None
    assert verdict(right)["accepted"], verdict(right)["feedback"]
    tried = []
    for edit in near_misses.NEAR_MISSES:
        text = edit(adapted)
        answer = as_answer(adapted, text) if text not in (None, adapted.text) else None
        if answer is None:
            continue
        done = verdict(answer)
        assert not done["accepted"], edit.__name__
        assert done["result"] is None
        tried.append(edit.__name__)
    assert len(tried) >= 5, tried


def test_a_wrong_proposal_is_rejected_by_execution_alone(worker, windowed, monkeypatch) -> None:
    """Comparing with the target program is one line of defence; here it is taken away."""
    params, adapted = windowed
    monkeypatch.setattr(finished, "_off_target", lambda *_: "")
    answer = as_answer(adapted, near_misses.window_off_by_one(adapted))
    assert answer is not None
    given = {**params, "state": None, "role": "lower", "model": "another", "reply": reply(answer)}
    done = worker("propose_attempt", given, 60.0).value
    assert not done["accepted"]
    assert "CB70" in done["feedback"]

"""What a reply may hold: its form, its texts, where it may write. Nothing here compiles anything."""

from __future__ import annotations

import json

import pytest

from cubridge_engine.propose.candidate import hunks_of, model_name, with_hunks
from cubridge_engine.propose.config import (
    BadConfiguration,
    Endpoint,
    Limits,
    endpoint_of,
    limits_of,
    price_of,
)
from cubridge_engine.propose.guard import FORBIDDEN, MAX_TEXT, PTX, Rejected, check_text
from cubridge_engine.propose.measure import pass_at
from cubridge_engine.propose.replies import ROLES, BadReply, Replacements, SiteText, parse_reply
from cubridge_engine.propose.sites import Site
from cubridge_engine.source import parse

from .conftest import MAXIMUM, lift, lower, reply

ALLOWED = {
    "plain": MAXIMUM,
    "a loop": "#pragma unroll\nfor (int i = 0; i < 4; ++i) {\n  s[i] = fmaxf(s[i], 0.f);\n}",
    "unroll by a number": "#pragma unroll 4\nfor (int i = 0; i < 4; ++i) { s[i] += 1.f; }",
    "comments": "// S = relu(S)\ns[i] = fmaxf(s[i], 0.f); /* not below 0 */",
    "a listed instruction": 'asm volatile("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));',
    "an expression": "col >= sk || col > row",
}

REJECTED = {
    "include": '#include "/etc/passwd"',
    "include with spaces": "# include <cuda.h>",
    "define": "#define sk 1\nx = 1.f;",
    "another pragma": "#pragma nv_diag_suppress 20012",
    "conditional": "#if 1\nx = 1.f;\n#endif",
    "spliced directive": "x = 1.f; \\\n#include <a>",
    "digraph": "%:include <a>",
    "trigraph": "??=include <a>",
    "_Pragma": '_Pragma("nv_exec_check_disable")',
    "asm of memory": 'asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(p));',
    "asm of control": 'asm volatile("exit;");',
    "two instructions": 'asm volatile("add.f32 %0, %1, %2; trap;" : "=f"(x) : "f"(a), "f"(b));',
    "asm by another name": '__asm__("add.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));',
    "leaves the function": "x = 1.f; } __global__ void other() { y = 1.f;",
    "leaves a loop": "} {",
    "not closed": "if (x > 0.f) {",
    "hides its end in a comment": "x = 1.f; /* {",
    "a string": 'printf("%d", 1);',
    "a character": "char c = 'a';",
    "endless": "while (true) { x += 1.f; }",
    "time": "if (clock64() & 1) { x = 0.f; }",
    "a trap": "__trap();",
    "atomics": "atomicAdd(&l, 1.f);",
    "shared memory of its own": "__shared__ float extra[64];",
    "a launch": "k<<<1, 1>>>(x);",
    "a header of ours": "// CuBridge: level gpu\nx = 1.f;",
    "an end of ours": "x = 1.f; // cubridge: end proposed\ny = 2.f;",
    "another direction of reading": "x = 1.f; // \u202e } {",
    "a zero byte": "x = 1.f;\0",
    "too long": "x = 1.f; " * (MAX_TEXT // 8),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_plain_device_code_may_be_tried(name: str) -> None:
    check_text(ALLOWED[name])


@pytest.mark.parametrize("name", REJECTED)
def test_anything_else_may_not(name: str) -> None:
    with pytest.raises(Rejected):
        check_text(REJECTED[name])


def test_the_list_of_instructions_has_no_memory_and_no_control() -> None:
    words = {part for name in PTX for part in name.split(".")}
    assert not words & {"ld", "st", "atom", "red", "cp", "bar", "bra", "call", "exit", "ret", "trap", "mbarrier"}
    assert {"while", "__asm__", "extern", "clock64"} <= FORBIDDEN


SOURCE = parse("k.cu", b"__global__ void k(float* p) {\n  float x = 1.f;\n  p[0] = x;\n}\n")
SITES = {
    "one": Site("one", 32, 46, "a declaration"),
    "whole": Site("whole", 32, 58, "both"),
    "value": Site("value", 42, 45, "a value", False),
    "before": Site("before", 30, 30, "insert"),
}


def texts(**given: str) -> list[SiteText]:
    return [SiteText(site=site, text=text) for site, text in given.items()]


def test_texts_stand_at_their_sites_between_marks() -> None:
    hunks = hunks_of(SOURCE, SITES, texts(one="const float x = 2.f;", before="const int n = 4;"), "m (1) */")
    assert with_hunks(SOURCE, hunks).decode() == (
        "__global__ void k(float* p) {\n"
        "  // cubridge: begin proposed before (m__1___/)\n  const int n = 4;\n  // cubridge: end proposed\n"
        "  // cubridge: begin proposed one (m__1___/)\n  const float x = 2.f;\n  // cubridge: end proposed\n"
        "  p[0] = x;\n}\n"
    )
    (inner,) = hunks_of(SOURCE, SITES, texts(value="2.f"), "m")
    assert inner.new == "/* cubridge: begin proposed value (m) */ 2.f /* cubridge: end proposed */"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"two": "x"}, "there is no site 'two'"),
        ({"one": "float x = 2.f;", "whole": "p[0] = 1.f;"}, "overlap"),
        ({"one": "float x = 1.f;"}, "stay as it is"),
        ({}, "no site is changed"),
    ],
)
def test_only_named_sites_change_and_each_once(given: dict[str, str], word: str) -> None:
    with pytest.raises(Rejected, match=word):
        hunks_of(SOURCE, SITES, texts(**given), "m")


def test_a_models_name_cannot_close_a_comment() -> None:
    assert "*/" not in model_name("a*/b\n}")
    assert model_name("org/model-1:8b@q4") == "org/model-1:8b@q4"


def test_replies_are_read_strictly() -> None:
    answer = lower(("scores", "x"))
    assert isinstance(parse_reply("lower", reply(answer)), Replacements)
    for role, text, word in (
        ("lower", reply(lift(("scores", "x"))), "does not follow the schema"),
        ("lower", reply({**answer, "level": "gpu"}), "extra"),
        ("lower", json.dumps(answer), "does not follow the schema"),
        ("lower", reply({**answer, "sites": [{"site": "scores"}]}), "text"),
        ("lift", reply({**lift(), "head_dim": "64"}), "head_dim"),
        ("lift", reply(lift()).replace("[]", "[NaN]", 1), "no number"),
        ("lower", "[" * 100_000, "more than"),
        ("lower", '{"answer": ' + '{"a":' * 20_000, "nested|cut off|more than"),
    ):
        with pytest.raises(BadReply, match=word):
            parse_reply(role, text)


def test_schemas_are_plain_unions_without_defaults() -> None:
    for model in ROLES.values():
        text = json.dumps(model.model_json_schema())
        assert "oneOf" not in text
        assert "default" not in text
        assert "discriminator" not in text
        for part in (model.model_json_schema(), *model.model_json_schema()["$defs"].values()):
            assert part["additionalProperties"] is False
            assert set(part["required"]) == set(part["properties"])


def test_keys_go_to_their_own_host_only() -> None:
    openai = {"OPENAI_API_KEY": "o"}
    assert endpoint_of("m", None, openai).key == "o"
    assert endpoint_of("m", "http://localhost:1/v1", openai).key == ""
    assert endpoint_of("m", "http://localhost:1/v1", {"CUBRIDGE_MODEL_API_KEY": "c"}).key == "c"
    assert endpoint_of("m", None, {"CUBRIDGE_MODEL_BASE_URL": "http://gw.example/v1"}).host == "gw.example"
    assert "secret" not in repr(Endpoint("m", "http://h/v1", "secret"))
    for model, url, env in (
        ("m", None, {}),
        ("", "http://h/v1", {}),
        ("m", "file:///x", {}),
        ("m", "http://u:p@h/v1", {}),
    ):
        with pytest.raises(BadConfiguration):
            endpoint_of(model, url, env)


def test_budgets_make_sense() -> None:
    assert price_of("2.5,10") == (2.5, 10.0)
    for bad in ({"usd": 1.0}, {"rounds": 0}, {"candidates": 17}):
        with pytest.raises(BadConfiguration):
            limits_of(Limits(**bad))  # type: ignore[arg-type]
    with pytest.raises(BadConfiguration):
        price_of("cheap")


def test_pass_at_k_is_unbiased() -> None:
    assert pass_at(4, 1, 1) == 0.25
    assert pass_at(4, 2, 2) == pytest.approx(1 - 1 / 6)
    assert pass_at(1, 1, 2) is None

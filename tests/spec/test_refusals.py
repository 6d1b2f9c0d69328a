# ruff: noqa: E501 - a spec text reads best as one string
"""Specs that cannot be read: the code, the line and a way out; never an exception, never a wrong Attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cubridge_engine.diagnostics import Severity
from cubridge_engine.spec import SpecResult, read_spec

from .conftest import SQUARE, spec_text

QKV = "s = q @ k.mT * 0.1"


def body(*lines: str, args: str = "") -> str:
    return f"def attention(q, k, v{args}):\n" + "".join(f"    {line}\n" for line in lines)


# name: (spec text, code, a word of the line it must point at)
CASES: dict[str, tuple[str, str, str]] = {
    "syntax": ("def attention(q, k, v:\n    return q\n", "CB202", "attention"),
    "import": ("import torch\nimport no_such_module_here\n", "CB203", "no_such_module_here"),
    "raises on import": ("import torch\nx = [][0]\n", "CB203", "[][0]"),
    "exits on import": ("import sys\nsys.exit(3)\n", "CB203", "exit"),
    "no attention": ("def attn(q, k, v):\n    return q\n", "CB204", "attn"),
    "module needs arguments": (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, n):\n        super().__init__()\n    def forward(self, q, k, v):\n        return q\n",
        "CB205",
        "class Model",
    ),
    "four required arguments, no example": ("def attention(q, k, v, bias):\n    return q\n", "CB206", "attention"),
    "example raises": (
        "def attention(q, k, v):\n    return q\ndef example_inputs():\n    return 1 // 0\n",
        "CB207",
        "1 // 0",
    ),
    "too few inputs": (
        "import torch\ndef attention(q, k, v):\n    return q\ndef example_inputs():\n    return torch.randn(2, 3), torch.randn(2, 3)\n",
        "CB208",
        "example_inputs",
    ),
    "inputs are integers": (
        "import torch\ndef attention(q, k, v):\n    return q\ndef example_inputs():\n    return [torch.ones(2, 2, dtype=torch.int32)] * 3\n",
        "CB208",
        "example_inputs",
    ),
    "shapes disagree": (spec_text(body("return (q @ k).softmax(-1) @ v")), "CB210", "q @ k"),
    "exits when called": (spec_text(body("raise SystemExit(3)")), "CB210", "SystemExit"),
    "gate of other scores": (
        spec_text(
            body(QKV, "return s.softmax(-1) @ v * torch.sigmoid((2 * s).logsumexp(-1, True) - g)", args=", g"),
            SQUARE,
            "torch.randn(4, 1, 1)",
        ),
        "CB234",
        "sigmoid",
    ),
    "returns None": (spec_text(body("q @ k.mT")), "CB212", "def attention"),
    "returns text": (spec_text(body("return 'o'")), "CB212", "def attention"),
    "dropout": (spec_text(body(QKV, "p = F.dropout(s.softmax(-1), 0.1)", "return p @ v")), "CB220", "F.dropout"),
    "dropout in SDPA": (
        spec_text(body("return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)")),
        "CB220",
        "dropout_p",
    ),
    "top-k": (
        spec_text(
            body(
                QKV,
                "t = s.topk(8, -1).values[..., -1:]",
                "s = s.masked_fill(s < t, -math.inf)",
                "return s.softmax(-1) @ v",
            )
        ),
        "CB222",
        "topk",
    ),
    "branch on values": (
        spec_text(body(QKV, "if s.max() > 3:", "    s = s * 0.5", "return s.softmax(-1) @ v")),
        "CB223",
        "s.max()",
    ),
    "heads mixed": (
        spec_text(
            body(QKV, "s = torch.einsum('bhij,hg->bgij', s, w)", "return s.softmax(-1) @ v", args=", w"),
            SQUARE,
            "torch.randn(4, 4)",
        ),
        "CB224",
        "s.softmax",
    ),
    "softmax over queries": (spec_text(body(QKV, "return s.softmax(-2) @ v")), "CB225", "s.softmax"),
    "running sum of scores": (spec_text(body(QKV, "s = s.cumsum(-1)", "return s.softmax(-1) @ v")), "CB226", "cumsum"),
    "sigmoid of a row's own maximum": (
        spec_text(body(QKV, "return torch.sigmoid(s - s.amax(-1, True)) @ v")),
        "CB227",
        "sigmoid",
    ),
    "linear": (spec_text(body("return q @ (k.mT @ v)")), "CB253", "q @"),
    "linear, normalised": (
        spec_text(
            body("q, k = F.elu(q) + 1, F.elu(k) + 1", "return (q @ (k.mT @ v)) / (q @ k.sum(2)[..., None])"),
        ),
        "CB253",
        "q @",
    ),
    "no product": (spec_text(body("return q + k + v")), "CB228", "q + k"),
    "softplus on scores": (spec_text(body(QKV, "s = torch.erfinv(s)", "return s.softmax(-1) @ v")), "CB229", "erfinv"),
    "differential": (spec_text(body(QKV, "return (s.softmax(-1) - (2 * s).softmax(-1)) @ v")), "CB233", "softmax"),
    "two attentions": (spec_text(body(QKV, "return s.softmax(-1) @ v - (2 * s).softmax(-1) @ v")), "CB233", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_refuses(name: str, read: Callable[..., SpecResult]) -> None:
    text, code, word = CASES[name]
    result = read(text)
    assert result.attention is None
    errors = [d for d in result.diagnostics if d.severity is Severity.ERROR]
    assert [d.code for d in errors] == [code], errors[0].message
    assert errors[0].message
    assert errors[0].help
    span = errors[0].span
    assert span is not None
    line = text.split("\n")[span.line]
    assert word in line
    assert line.encode()[span.column : span.end_column].strip()


def test_keys_first_is_not_said_of_a_product_with_projected_values(read: Callable[..., SpecResult]) -> None:
    """(p v) w is an attention with a projection, whatever the order of the products."""
    text = spec_text(body(QKV, "return s.softmax(-1) @ (v @ w)", args=", w"), SQUARE, "torch.randn(32, 32)")
    assert [d.code for d in read(text).diagnostics if d.code == "CB253"] == []


def test_two_layers_are_one_kernel_called_twice(read: Callable[..., SpecResult]) -> None:
    lines = ("o = F.scaled_dot_product_attention(q, k, v)", "return F.scaled_dot_product_attention(o, k, v)")
    result = read(spec_text(body(*lines)))
    assert result.attention is not None, [d.message for d in result.diagnostics]
    assert result.attention.cut is not None
    assert result.attention.cut.calls == 2


def test_a_reading_that_fails_at_the_example_is_not_tried_at_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan costs seconds; the example's own sizes tell after a few."""
    from cubridge_engine.spec.check import CheckFailed
    from cubridge_engine.spec.program import SpecError, load
    from cubridge_engine.spec.read import Reader

    program = load(str(Path(__file__).parents[2] / "examples" / "causal_sdpa.py"), "attention", 20.0)
    tried: list[dict[str, int]] = []

    def wrong(_self: Reader, _skeleton: object, plan: object, _first: object) -> None:
        tried.append(plan.fixed)  # type: ignore[attr-defined]
        raise CheckFailed({"Sq": 3}, "it differs")

    monkeypatch.setattr(Reader, "at_plan", wrong)
    with pytest.raises(SpecError) as refused:
        Reader(program, None).read()
    assert refused.value.diagnostic.code == "CB242"
    assert len(tried) == 3
    assert {"B", "H", "Hkv", "Sq", "Sk"} <= tried[-1].keys()


def test_waiting_is_limited_by_the_clock(read: Callable[..., SpecResult]) -> None:
    text = "import time\n" + spec_text(body("time.sleep(60)", "return q"))
    result = read(text, time_limit=1.0)
    assert [d.code for d in result.diagnostics] == ["CB211"]
    assert "sleep" in text.split("\n")[result.diagnostics[0].span.line]  # type: ignore[union-attr]


def test_time_that_other_processes_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs three times as fast as the work is that of a busy machine."""
    import time

    from cubridge_engine.spec.guard import TimeUp, guarded

    real = time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: real() / 3)
    began = real()

    def work() -> None:
        with guarded("spec.py", 0.2):
            while real() - began < 20:
                pass

    with pytest.raises(TimeUp):
        work()
    assert 0.6 <= real() - began < 20


def test_infinite_loop_names_the_line(read: Callable[..., SpecResult]) -> None:
    text = spec_text(body("while True:", "    q = q + 1", "return q"))
    result = read(text, time_limit=1.0)
    assert [d.code for d in result.diagnostics] == ["CB211"]
    span = result.diagnostics[0].span
    assert span is not None
    assert text.split("\n")[span.line].strip() in ("while True:", "q = q + 1")


@pytest.mark.parametrize(
    ("caught", "then"),
    [
        ("except Exception:", "pass"),
        ("except:", "pass"),
        ("except:", "{}['what a library does on its way out']"),
        ("finally:", "[][0]"),
        ("except BaseException:", "return q"),
    ],
)
def test_an_interrupt_ends_it_whatever_becomes_of_it(read: Callable[..., SpecResult], caught: str, then: str) -> None:
    loop = body(
        "while True:", "    try:", "        while True:", "            q = q + 1", f"    {caught}", f"        {then}"
    )
    assert [d.code for d in read(spec_text(loop), time_limit=0.5).diagnostics] == ["CB211"]


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"\x00", b"def attention(", b"attention = 3\n", b"raise KeyboardInterrupt"]
)
def test_any_bytes(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spec.py"
    path.write_bytes(data)
    result = read_spec(str(path))
    assert result.attention is None
    assert result.diagnostics


def test_missing_file(tmp_path: Path) -> None:
    assert [d.code for d in read_spec(str(tmp_path / "none.py")).diagnostics] == ["CB201"]


def test_unused_argument_is_a_warning(read: Callable[..., SpecResult]) -> None:
    result = read(spec_text(body(QKV, "return s.softmax(-1) @ v", args=", extra"), SQUARE, "torch.randn(4)"))
    assert result.attention is not None
    assert [(d.code, d.data["name"]) for d in result.diagnostics if d.severity is Severity.WARNING] == [
        ("CB213", "extra")
    ]


def test_tensors_inside_a_list_are_not_frozen(read: Callable[..., SpecResult]) -> None:
    """Only arguments that are tensors vary: (cos, sin) as one argument would silently stay that of the example."""
    body = """
    def attention(q, k, v, rotation):
        cos, sin = rotation
        return F.scaled_dot_product_attention(q * cos, k * sin, v)
    """
    result = read(spec_text(body, extra="(torch.randn(48, 32), torch.randn(48, 32))"))
    assert result.attention is None
    assert result.diagnostics[0].code == "CB208"
    assert "`rotation` holds tensors in a tuple" in result.diagnostics[0].message


def test_a_reading_cut_short_inside_vmap_leaves_nothing_behind():
    import torch

    from cubridge_engine.spec.guard import guarded

    def cut_short() -> None:
        with guarded("spec.py", 5.0):
            torch._C._functorch._vmap_increment_nesting(3, "error")
            raise KeyboardInterrupt  # as an alarm does, between entering and torch's own clean-up

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert torch.randn(2).shape == (2,)

"""A kernel is lifted once per content: elsewhere in the file one may type, and only its places move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cubridge_engine.diagnostics import Span
from cubridge_engine.ir.validate import iterate
from server import engine
from server.reuse import Lifts

SM80 = Path("expert_kernels/flash_fwd_sm80/kernel.cu")
SCALAR = Path("expert_kernels/flash_fwd_scalar/kernel.cu")
OTHER = """
// A host function with nothing to do with the kernel.
static int unrelated(int a) {
  return a + 1;
}

__global__ void fill(float* x, int n) {
  if (threadIdx.x < n) x[threadIdx.x] = 1.f;
}
"""


@pytest.fixture(scope="module")
def text() -> str:
    return SM80.read_text() + OTHER


@pytest.fixture(scope="module")
def first(text: str) -> tuple[engine.Reading, Lifts]:
    lifts = Lifts()
    return engine.read("k.cu", text.encode(), None, lifts), lifts


@pytest.fixture
def lifted_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were lifted from here on."""
    names: list[str] = []
    inner = engine._lift

    def counting(source: Any, name: str, *rest: Any) -> Any:
        names.append(name)
        return inner(source, name, *rest)

    monkeypatch.setattr(engine, "_lift", counting)
    return names


def places(reading: engine.Reading) -> Iterator[tuple[str, Span | None, Span | None]]:
    assert reading.kernel is not None
    for op in iterate(reading.kernel.program.body):
        origin: Any = op.origin  # type: ignore[attr-defined]
        yield type(op).__name__, origin.span, origin.callee


BLANKS = {
    "a comment in the kernel": ("const int lane", '// the lane "of\n  // the warp\n  const int lane'),
    "a comment behind a statement": (
        "const int warp = threadIdx.x / 32;",
        "const int warp = threadIdx.x / 32;  // 0 .. 3",
    ),
    "a comment in a call": ("mma_m16n8k16<T>(s[2 * np], qf[kk]", "mma_m16n8k16<T>(s[2 * np], /* Q */\n  qf[kk]"),
    "a line break": ("const int warp = threadIdx.x", "const int warp =\n      threadIdx.x"),
    "a blank": ("const int lane", "const  int lane"),
}
ELSEWHERE = {
    **BLANKS,
    "a comment above": ("#include <cuda_fp16.h>", "// one\n// two\n#include <cuda_fp16.h>"),
    "code in a host function": ("return a + 1;", "int b = a * 2;\n  return a + b;"),
    "a host function half typed": ("return a + 1;", "int b = (a +\n  return a + 1;"),
    "another kernel": ("= 1.f;", "= 2.f;"),
    "a function more": ("static int unrelated", "static int more(int x) { return x; }\n\nstatic int unrelated"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_typing_elsewhere_lifts_nothing_and_places_are_those_of_a_fresh_lift(
    name: str, text: str, first: tuple[engine.Reading, Lifts], lifted_again: list[str]
) -> None:
    reading, lifts = first
    edited = text.replace(*ELSEWHERE[name], 1).encode()
    assert edited != text.encode()
    moved = engine.read("k.cu", edited, reading, lifts)
    assert lifted_again == []
    fresh = engine.read("k.cu", edited, None, Lifts())
    assert list(places(moved)) == list(places(fresh))
    assert moved.kernel is not None
    assert fresh.kernel is not None
    assert moved.kernel.program == fresh.kernel.program
    assert moved.landmarks == fresh.landmarks
    assert moved.kernel.span == fresh.kernel.span


USED = {
    "the kernel": ("const int lane", "int lane"),
    "a device function it calls": ("ex2.approx.ftz.f32", "ex2.approx.f32"),
    "a constant": ("constexpr int Bc = 64;", "constexpr int Bc = 32;"),
    "its launch": ("<<<", "<<<+"),
    "a directive": ("#pragma unroll\n", "#pragma  unroll\n"),
    "a mark of ours": ("const int lane", "// cubridge: begin proposed x (y)\n  const int lane"),
    "a comment that takes code away": ("const int h =", "// const int h ="),
}


@pytest.mark.parametrize("name", USED)
def test_typing_in_what_the_kernel_uses_lifts_it_again(
    name: str, text: str, first: tuple[engine.Reading, Lifts], lifted_again: list[str]
) -> None:
    reading, lifts = first
    old, new = USED[name]
    assert old in text
    edited = text.replace(old, new, 1)
    engine.read("k.cu", edited.encode(), reading, lifts)
    assert lifted_again == ["flash_fwd_sm80"]


def test_going_back_to_an_older_text_lifts_nothing(
    text: str, first: tuple[engine.Reading, Lifts], lifted_again: list[str]
) -> None:
    reading, lifts = first
    changed = engine.read(
        "k.cu", text.replace("constexpr int Bc = 64;", "constexpr int Bc = 32;").encode(), reading, lifts
    )
    lifted_again.clear()
    back = engine.read("k.cu", text.encode(), changed, lifts)
    assert lifted_again == []
    assert back.kernel is not None
    assert reading.kernel is not None
    assert back.kernel.program == reading.kernel.program


def test_every_attention_kernel_of_a_file_is_read_and_the_others_are_passed_over() -> None:
    lifts = Lifts()
    names = ("exp2_approx", "INFINITY", "kThreads", "Br", "Bc", "smem_bytes")
    other = SCALAR.read_text()
    for name in names:
        other = other.replace(name, f"{name}_scalar")
    reading = engine.read("k.cu", (SM80.read_text() + OTHER + other).encode(), None, lifts)
    assert [view.name for view in reading.kernels] == ["flash_fwd_sm80"]
    assert reading.pending == ("flash_fwd_scalar",)  # `fill` has no loop: it is no attention
    reading = engine.read_next(reading, lifts)
    assert [view.name for view in reading.kernels] == ["flash_fwd_sm80", "flash_fwd_scalar"]
    assert reading.pending == ()
    assert reading.kernel is not None
    assert reading.kernel.name == "flash_fwd_sm80"


def test_what_execution_saw_moves_with_the_text() -> None:
    """Findings about barriers and accesses speak of byte ranges, not of spans."""
    text, lifts = SCALAR.read_bytes(), Lifts()
    before = engine.read(str(SCALAR), text, None, lifts)
    after = engine.read(str(SCALAR), b"// a note\n" + text, before, lifts)
    assert before.lifted is not None
    assert after.lifted is not None
    assert after.lifted is not before.lifted

    def places(steps: tuple[Any, ...]) -> list[Any]:
        found = [step.place for step in steps if hasattr(step, "place")]
        inner = [getattr(step, name, ()) for step in steps for name in ("body", "then", "orelse")]
        return found + [place for more in inner for place in places(more)]

    old, new = places(before.lifted.observed.steps), places(after.lifted.observed.steps)
    assert len(old) > 100
    for one, other in zip(old, new, strict=True):
        assert other.site == (one.site[0] + 10, one.site[1] + 10)

"""Hover cards and the outline of the bundled kernels, as they are shown: read them in golden/."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cubridge_engine.ir import nodes
from server import cards, engine, ordering
from server.phases import PHASES, SECTIONS
from server.reuse import Lifts

GOLDEN = Path(__file__).parent / "golden"
KERNELS = ("flash_fwd_sm80", "flash_fwd_scalar")
MAX_LINES = 12


@pytest.fixture(scope="module")
def views() -> dict[str, engine.KernelView]:
    found: dict[str, engine.KernelView] = {}
    for name in KERNELS:
        path = Path("expert_kernels") / name / "kernel.cu"
        view = engine.read(str(path), path.read_bytes(), None, Lifts()).kernel
        assert view is not None
        found[name] = view
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_cards_of_a_kernel(name: str, views: dict[str, engine.KernelView]) -> None:
    """To write them anew after a change that is meant, delete the file and run the test twice."""
    view = views[name]
    context = cards.Context(view.program, lambda line: line + 1)
    assert view.kv_loop is not None
    loop = cards.loop_at(view.program, view.kv_loop[0])
    assert loop is not None
    parts = [cards.loop_card(loop, view.program, view.steps)]
    for step in view.steps:
        card = cards.card(step, context)
        assert card.count("\n") < MAX_LINES, card
        assert step.phase in PHASES
        assert step.section in SECTIONS
        parts.append(f"<!-- {step.section}, {step.phase}, line {step.lines[0] + 1} -->\n{card}")
    text = "\n\n".join(parts) + "\n"
    golden = GOLDEN / f"cards_{name}.md"
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"{golden} was written: read it, then run again")
    assert text == golden.read_text()


def test_every_operation_of_both_kernels_has_words(views: dict[str, engine.KernelView]) -> None:
    for view in views.values():
        silent = {type(op) for step in view.steps for op in step.ops} - set(cards.WORDS)
        assert not silent


def test_without_its_barrier_a_product_is_said_to_have_none(views: dict[str, engine.KernelView]) -> None:
    kernel = views["flash_fwd_sm80"].program

    def without(ops: tuple[nodes.Op, ...], kind: type[nodes.Op]) -> tuple[nodes.Op, ...]:
        kept = (dataclasses.replace(op, body=without(op.body, kind)) if isinstance(op, nodes.For) else op for op in ops)
        return tuple(op for op in kept if not isinstance(op, kind))

    loop = next(op for op in kernel.body if isinstance(op, nodes.For))
    product = next(op for op in loop.body if isinstance(op, nodes.Mma))
    copy = next(op for op in kernel.body if isinstance(op, nodes.Copy))
    barrier = next(op for op in loop.body if isinstance(op, nodes.Barrier)).origin.span
    assert barrier is not None
    assert f"barrier (line {barrier.line + 1})" in ordering.sentence(product, kernel, lambda line: line + 1)
    bare = dataclasses.replace(kernel, body=without(kernel.body, nodes.Barrier))
    assert "**no barrier**" in ordering.sentence(product, bare, lambda line: line + 1)
    unwaited = dataclasses.replace(kernel, body=without(kernel.body, nodes.CpWait))
    assert "**no wait**" in ordering.sentence(copy, unwaited, lambda line: line + 1)

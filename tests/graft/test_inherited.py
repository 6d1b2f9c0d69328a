"""Which findings of a changed kernel are those of its original: the same words at the same lines of text."""

from __future__ import annotations

from cubridge_engine.diagnostics import Span, make
from cubridge_engine.graft.inherited import Known, key_of

BEFORE = b"int a;\n  load(q, rows);\n  load(k, cols);\n"
AFTER = b"int a;\nint b;\n  load(q, rows);\n  load(k, cols);\n"
PATH = "kernel.cu"


def finding(line: int, name: str = "an ldmatrix read"):
    """Any finding with numbers in its words."""
    return make("CB441", Span(PATH, 0, 0, line, 0, line, 0), finding="CB518", what=f"{name} at byte {line * 64}")


def known() -> Known:
    return Known({key_of(finding(1), PATH, BEFORE)}, PATH, AFTER)


def test_a_line_that_moved_is_the_same_line():
    own = known()
    assert own(finding(2))
    assert own(finding(2))
    (note,) = own.notes()
    assert note.code == "CB441"


def test_another_line_or_other_words_are_new():
    own = known()
    assert not own(finding(3))
    assert not own(finding(2, "a store"))
    assert own.notes() == []

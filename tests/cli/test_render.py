"""What people read: aligned columns, failing cases with their element, one next step."""

from __future__ import annotations

from cubridge_engine.cli.render import columns, derived_lines, failing_cases, next_step
from cubridge_engine.results import Adaptation, CaseResult, CounterexampleResult, DerivedResult, FileRef, Verification


def case(passed: bool) -> CaseResult:
    return CaseResult(
        name="decode",
        why="one query",
        level="ir",
        sizes={"B": 1, "Sq": 1},
        dtype="float64",
        layout="bshd",
        schedule="late",
        seed=1,
        worst_o=0.5,
        worst_lse=None,
        tolerance=1e-6,
        passed=passed,
        counterexample=None
        if passed
        else CounterexampleResult(output="o", b=0, h=1, i=2, d=3, j=4, got=1.5, want="nan"),
    )


def test_columns_line_up() -> None:
    lines = columns([("name", "n"), ("a", "10"), ("longer", "9")], right=(1,))
    assert lines == ["  name     n", "  a       10", "  longer   9"]


def test_failing_cases_show_the_element_and_the_key() -> None:
    lines = failing_cases([case(True), case(False)])
    assert len(lines) == 1
    assert "decode" in lines[0]
    assert "O[b=0, h=1, i=2, d=3] is 1.5, want nan" in lines[0]
    assert "4" in lines[0]


def test_the_next_step_depends_on_what_happened() -> None:
    file = FileRef(path="k.cu", name="k.cu", sha256="")

    def verification(level: str, code: int) -> Verification:
        return Verification(
            command="verify", level=level, applicability="sketch", kernel=file, spec=file, exit_code=code
        )

    steps = {next_step(verification("ir", 3), None), next_step(verification("ir", 1), None)}
    steps |= {next_step(verification("compiled", 0), None), next_step(verification("gpu", 0), None)}
    assert len(steps) == 4
    assert "doctor" in next_step(verification("ir", 3), None)


def test_a_tensor_that_the_caller_makes_is_named_with_its_bytes() -> None:
    file = FileRef(path="k.cu", name="k.cu", sha256="")
    shape = ("B", "ceil(Sq / 64)", "2 + ceil(Sk / 64)")
    row = DerivedResult(
        name="kv_tiles", what="", dtype="int32", shape=shape, bytes=33_280, sizes={}, built_by="build_tile_list"
    )
    made = Adaptation(command="adapt", level="ir", applicability="verified", kernel=file, spec=file, derived=(row,))
    assert derived_lines(made.model_copy(update={"drop_in_written": "out_drop_in.py"})) == [
        "  kv_tiles: int32 [B, ceil(Sq / 64), 2 + ceil(Sk / 64)], at most 33 kB at the example's lengths; "
        "built by build_tile_list of out_drop_in.py"
    ]
    assert derived_lines(made.model_copy(update={"derived": ()})) == []

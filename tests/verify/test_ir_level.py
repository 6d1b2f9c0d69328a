"""Level ir: a right program passes, every planted difference is rejected, named, and shown with a number."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

MASK = (
    "    mask S keep j < Sk & (!causal | j <= i + (Sk - Sq)); fill=-inf;"
    " guard=kv0 + 16 > Sk | causal & kv0 + 15 > q0 + (Sk - Sq)"
)


def softcapped(flash: str, *, after_mask: bool = False, cap: str = "2.0") -> str:
    """The flash program made top-left causal with a softcap: natural 2 tanh(s / 2), in the raw unit of S."""
    unit = "(c * 0.6931471805599453)"
    score = f"    score S = {cap} * tanh(s * {unit} / {cap}) / {unit}"
    mask = "    mask S keep j < Sk & j <= i; fill=-inf; guard=none"
    lines = [mask, score] if after_mask else [score, mask]
    assert MASK in flash
    changed = flash.replace(MASK, "\n".join(lines))
    return changed.replace("(q0 + 15 + (Sk - Sq)) // 16 + 1", "(q0 + 15) // 16 + 1")


def test_a_right_program_reaches_ir_and_says_what_was_kept(run, flash: str) -> None:
    report, diagnostics = run(flash, "causal", causal=1)
    assert next(s for s in report.stages if s.name == "ir").state == "passed"
    assert {c.dtype for c in report.cases} == {"float64", "float16", "bfloat16"}
    assert {c.schedule for c in report.cases if c.dtype == "float64"} == {"early", "late"}
    assert report.worst("float64") < 1e-12
    assert 1e-5 < report.worst("float16") < 4e-3
    assert all(p.rejected for p in report.power)
    assert report.empty_rows.kept
    assert any(d.code == "CB709" for d in diagnostics)


def test_without_code_the_simulator_is_skipped_and_no_level_above_is_claimed(run, flash: str) -> None:
    report, _ = run(flash, "causal", causal=1)
    stage = next(s for s in report.stages if s.name == "simulate")
    assert stage.state == "skipped"
    assert stage.why == "a level below was not reached"
    assert report.level == "ir"
    assert report.applicability == "sketch"


def test_exact_empty_rows_reject_the_kept_zero(run, flash: str) -> None:
    report, _ = run(flash, "causal", causal=1, empty_rows="exact")
    assert report.level == "lifted"
    exact = flash.replace("where(l == 0.0, 0.0, 1.0 / l)", "1.0 / l")
    report, _ = run(exact, "causal", causal=1, empty_rows="exact")
    assert next(s for s in report.stages if s.name == "ir").state == "passed"


def test_softcap_before_the_mask_is_right(run, flash: str) -> None:
    report, diagnostics = run(softcapped(flash), "softcap", causal=0)
    assert next(s for s in report.stages if s.name == "ir").state == "passed", [d.message for d in diagnostics]


@dataclass(frozen=True)
class Wrong:
    """An edit of the flash program (texts replaced in order), the spec it breaks, and the code that must explain it."""

    name: str
    spec: str
    edits: tuple[tuple[str, str], ...]
    code: str | None = None
    causal: int = 1


WRONG = (
    Wrong("no-mask", "causal", (), "CB702", causal=0),
    Wrong("top-left", "causal", (("j <= i + (Sk - Sq))", "j <= i)"),), "CB702"),
    Wrong("off-by-one", "causal", (("j <= i + (Sk - Sq))", "j < i + (Sk - Sq))"),), "CB702"),
    Wrong("guard-too-narrow", "causal", (("kv0 + 15 > q0 + (Sk - Sq)", "kv0 + 15 > 16 + q0 + (Sk - Sq)"),)),
    Wrong("range-too-short", "causal", (("// 16 + 1))", "// 16))"),)),
    Wrong("finite-fill", "causal", (("fill=-inf; guard", "fill=-10000.0; guard"),), "CB706"),
    Wrong("l-not-rescaled", "causal", (("init=l * z", "init=l"),)),
    Wrong("o-not-rescaled", "causal", (("O <- O = s * z", "O <- O = s * 1.0"),)),
    Wrong(
        "a-sink-of-zero",
        "causal",
        (("row init m = -inf", "row init m = 0.0"), ("row init l = 0.0", "row init l = where(lane == 0, 1.0, 0.0)")),
        "CB705",
    ),
    Wrong("max-from-zero", "causal", (("row init m = -inf", "row init m = 0.0"),)),
    Wrong("stale-slot", "causal", (("O += S @ Vs; slot=t % 2", "O += S @ Vs; slot=0"),)),
    Wrong("no-wait", "causal", (("    cp_commit\n    cp_wait 1\n", "    cp_commit\n"),)),
    Wrong("no-barrier", "causal", (("rounds_a=true\n    barrier cta", "rounds_a=true"),)),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_wrong_programs_are_rejected_and_explained(run, flash: str, wrong: Wrong) -> None:
    changed = flash
    for old, new in wrong.edits:
        assert old in changed
        changed = changed.replace(old, new)
    _rejected(*run(changed, wrong.spec, causal=wrong.causal), wrong.code)


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda t: softcapped(t, after_mask=True), "CB703"),
        (lambda t: softcapped(t, cap="2.1"), "CB703"),
        (lambda t: softcapped(t).replace("h // (H // Hkv)", "h % Hkv"), "CB704"),
    ],
    ids=["softcap-after-mask", "wrong-cap", "head-modulo"],
)
def test_wrong_softcaps_are_rejected_and_explained(run, flash: str, edit, code: str) -> None:
    _rejected(*run(edit(flash), "softcap", causal=0), code)


def _rejected(report, diagnostics, code: str | None) -> None:
    assert report.level == "lifted"
    assert next(s for s in report.stages if s.name == "ir").state == "failed"
    found = {d.code for d in diagnostics}
    assert found & {"CB701", "CB501", "CB502", "CB503", "CB509"}
    if code is not None:
        assert code in found
        explained = next(d for d in diagnostics if d.code == code)
        assert explained.related, "the spec's line belongs to it"
        assert explained.help


def test_a_counterexample_names_the_first_key_treated_otherwise(run, flash: str) -> None:
    report, _ = run(flash.replace("j <= i + (Sk - Sq))", "j < i + (Sk - Sq))"), "causal", causal=1)
    failing = [c for c in report.cases if not c.passed]
    found = failing[0].counterexample
    assert found is not None
    assert found.j == found.i + failing[0].sizes["Sk"] - failing[0].sizes["Sq"]

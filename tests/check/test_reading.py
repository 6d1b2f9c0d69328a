"""Every rule of reading finds its own example, on the line that the page names, and nothing else; and its fix works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cubridge_engine.check import Checked, Rule, apply_fix, check, verified
from cubridge_engine.check.rules import RULES
from cubridge_engine.compile import Contract, read_contract
from cubridge_engine.diagnostics import CATALOGUE
from cubridge_engine.lift import lift
from cubridge_engine.source import parse

READING = [rule for rule in RULES if rule.run is not None]
# Codes whose example must come with a fix that is offered.
FIXED = {
    "CB845", "CB849", "CB850", "CB851", "CB852", "CB859", "CB860", "CB864", "CB865", "CB867", "CB870",
}  # fmt: skip
# An example that leaves a stride unused says so too.
ALSO = {"CB843": {"CB869"}}

Checks = Callable[[str, str], Checked]


@pytest.fixture(scope="module")
def checked() -> Checks:
    """Texts, checked once."""
    done: dict[str, Checked] = {}

    def run(text: str, code: str) -> Checked:
        if text not in done:
            source = parse("kernel.cu", text.encode())
            done[text] = check(source, lift(source), contract_for(code))
        return done[text]

    return run


def contract_for(code: str) -> Contract:
    example = next(r.example for r in RULES if r.code == code)
    assert example is not None
    contract, problems = read_contract(example.base.parent / "contract.toml")
    assert contract is not None, problems
    return contract


def line_of(rule: Rule) -> int:
    """The 0-based line of the marker."""
    example = rule.example
    assert example is not None
    marker = example.marker
    at = example.text.index(marker) + len(marker) - len(marker.lstrip())
    return example.text.count("\n", 0, at)


@pytest.mark.parametrize("rule", READING, ids=lambda r: r.code)
def test_a_rule_finds_its_example_on_its_line_and_nothing_else(rule: Rule, checked: Checks):
    assert rule.example is not None
    found = checked(rule.example.text, rule.code)
    assert found.notes == ()
    own = [f for f in found.findings if f.code == rule.code]
    assert [f.span.line for f in own if f.span is not None] == [line_of(rule)]
    assert {f.code for f in found.findings} - {rule.code} <= ALSO.get(rule.code, set())
    assert own[0].kind == rule.kind
    assert own[0].diagnostic.help


@pytest.mark.parametrize("rule", READING, ids=lambda r: r.code)
def test_its_clean_twin_has_no_finding(rule: Rule, checked: Checks):
    assert rule.example is not None
    assert checked(rule.example.base.read_text(), rule.code).findings == ()


@pytest.mark.parametrize("code", sorted(FIXED))
def test_a_fix_that_is_offered_takes_the_finding_away(code: str, checked: Checks):
    rule = next(r for r in READING if r.code == code)
    assert rule.example is not None
    found = next(f for f in checked(rule.example.text, code).findings if f.code == code)
    assert found.fix is not None
    source = parse("kernel.cu", rule.example.text.encode())
    assert verified(source, found, contract_for(code))
    mended = parse("kernel.cu", apply_fix(source.data, found.fix))
    left = check(mended, lift(mended), contract_for(code)).findings
    assert code not in {f.code for f in left}


def test_a_fix_that_does_not_help_is_not_offered(checked: Checks):
    """The barrier of one finding is no fix of another."""
    races = next(r for r in READING if r.code == "CB851")
    units = next(r for r in READING if r.code == "CB862")
    assert races.example is not None
    assert units.example is not None
    barrier = next(f for f in checked(races.example.text, "CB851").findings if f.code == "CB851")
    unit = next(f for f in checked(units.example.text, "CB862").findings if f.code == "CB862")
    from dataclasses import replace

    source = parse("kernel.cu", units.example.text.encode())
    assert not verified(source, replace(unit, fix=barrier.fix), contract_for("CB862"))


def test_names_do_not_matter(checked: Checks):
    """Renaming identifiers leaves what is found where it was."""
    rule = next(r for r in READING if r.code == "CB861")
    assert rule.example is not None
    text = rule.example.text
    for old, new in (("correction", "zz1"), ("m_new", "zz2"), ("row_sum", "zz3"), ("scale", "zz4"), ("Ks", "zz5")):
        text = text.replace(old, new)
    found = checked(text, "CB861").findings
    assert [(f.code, f.span.line) for f in found if f.span is not None] == [("CB861", line_of(rule))]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_a_rule_has_a_row_in_the_catalogue(rule: Rule):
    assert rule.code in CATALOGUE
    assert rule.why
    assert rule.repair


def test_a_parameter_that_only_an_untaken_branch_names_is_used():
    text = "__global__ void k(float* used, float* left) {\n#ifdef HEADERS_SAY_SO\n  used[0] = 1; // left\n#endif\n}\n"
    source = parse("kernel.cu", text.encode())
    found = check(source, lift(source), None).findings
    assert [f.diagnostic.data["name"] for f in found if f.code == "CB869"] == ["left"]

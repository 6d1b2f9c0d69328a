"""Specs of real packages against the golden table: nothing accepted wrongly, no regression, no unnoticed improvement.

CI runs the forms marked `fast`; CUBRIDGE_CORPUS=all (``make corpus``) runs every form. A package that cannot be fetched
skips its forms, and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict

import pytest

from .form import Form
from .forms import all_forms
from .outcome import Outcome, task
from .table import COMPARED, read_table

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("CUBRIDGE_CORPUS") == "all"
FORMS = [form for form in all_forms() if WHOLE or form.fast]
TABLE = read_table()
# Reading is most of the work; one in eight is also adapted and executed at level ir, or all of them by `make corpus`.
ADAPTED = {form.name for form in (FORMS if WHOLE else FORMS[::8])}
FAMILIES = (
    "plain",
    "GQA",
    "bias",
    "softcap",
    "sink as a column",
    "sink as a scale",
    "softmax off by one",
    "T5",
    "ALiBi",
    "module, window buffer",
    "shifted window",
    "cosine",
    "decomposed rel-pos",
    "Transformer-XL shift",
    "Shaw q.R",
    "qk-norm",
    "MLA",
    "differential",
    "sigmoid or ReLU weights",
    "decay",
    "memory keys",
    "weights masked after softmax",
    "positional mix",
    "chunked",
    "channel attention",
    "head mixing",
    "top-k",
    "running sum",
    "linear attention",
)


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Callable[[Form], Outcome]]:
    """The outcome of a form, from a process of its own that a package may take down."""
    pools = [ProcessPoolExecutor(1)]

    def judged(form: Form) -> Outcome:
        level = "ir" if form.name in ADAPTED else ""
        try:
            return Outcome(**pools[-1].submit(task, form, level).result())
        except BrokenProcessPool:
            pools.append(ProcessPoolExecutor(1))
            raise

    yield judged
    for pool in pools:
        pool.shutdown()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_outcome_is_that_of_the_table(outcome_of, form: Form) -> None:
    outcome = outcome_of(form)
    if outcome.state == "skipped":
        pytest.skip(outcome.message)
    assert outcome.state != "wrong", f"accepted, but not what the package computes: {outcome.message}\n{outcome.means}"
    recorded = TABLE[form.name]
    mine, golden = ({k: v for k, v in asdict(o).items() if k in COMPARED} for o in (outcome, recorded))
    assert mine == golden, (
        f"{outcome.message} - if this is better: python -m tests.corpus --record --only '{form.name}'"
    )
    if outcome.state == "read":
        assert outcome.compared, outcome.message
    if outcome.level and recorded.level:
        # 'simulated' is recorded where the pipeline was run; here the grid was executed at level ir.
        assert (outcome.level == "ir") == (recorded.level in ("ir", "compiled", "simulated")), outcome.adapt_message


def test_every_form_is_in_the_table() -> None:
    missing = [form.name for form in FORMS if form.name not in TABLE]
    assert not missing, f"python -m tests.corpus --record --only {' '.join(map(repr, missing))}"


def test_nothing_was_accepted_wrongly() -> None:
    assert [name for name, outcome in TABLE.items() if outcome.state not in ("read", "refused")] == []


def test_every_family_of_the_survey_is_there() -> None:
    """Of 147 implementations in packages, these are the families of mathematics that occur."""
    present = {form.family for form in all_forms()}
    assert [family for family in FAMILIES if family not in present] == []
    assert len({form.body for form in all_forms() if form.package != "own"}) >= 100

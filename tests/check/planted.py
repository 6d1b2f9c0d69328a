"""Bundled kernels with one edit, ready to be read and watched."""

from __future__ import annotations

from functools import lru_cache

from cubridge_engine.check.subject import Subject
from cubridge_engine.check.watching import Watchable, watchable
from cubridge_engine.compile import Contract, read_contract
from cubridge_engine.compile.bundled import bundled_contracts
from cubridge_engine.lift import lift
from cubridge_engine.source import parse

SCALAR, SM80 = "flash_fwd_scalar", "flash_fwd_sm80"


@lru_cache(maxsize=4)
def contract_of(name: str) -> Contract:
    """The contract of a bundled kernel."""
    path = next(p for p in bundled_contracts() if p.parent.name == name)
    contract, problems = read_contract(path)
    assert contract is not None, problems
    return contract


def text_of(name: str, *edits: tuple[str, str]) -> str:
    """The kernel's text with edits, each of a text that occurs once."""
    text = contract_of(name).source_path.read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def read(name: str, text: str) -> Subject:
    """The text as it is read, at width 64."""
    source = parse("kernel.cu", text.encode())
    lifted = lift(source, instantiation={"D": 64}, remember=False)
    return Subject(source, lifted, contract_of(name))


def ready(name: str, text: str) -> Watchable:
    """The text compiled, with what reading made of it."""
    subject, problems = watchable("kernel.cu", text.encode(), contract_of(name), head_dim=64)
    assert subject is not None, problems
    return Watchable(
        subject.path, subject.data, subject.contract, subject.instance, subject.ptx, subject.entry, read(name, text)
    )  # fmt: skip

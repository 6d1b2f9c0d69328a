"""What is understood does not depend on names, on layout of the text, or on comments."""

from __future__ import annotations

import re

import pytest

from cubridge_engine.understand.compare import compare
from tests.lift.renamer import renamed
from tests.understand.kernels import ADAPTED, SCALAR, SM80, STYLES, adapted, explained, kernel

TEXTS = {"flash_fwd_scalar": SCALAR, "flash_fwd_sm80": SM80, **STYLES}
SOME = ("flash_fwd_scalar", "flash_fwd_sm80", "block2d", "mma_padded", "warp_per_row", "tma_wgmma")


def mathematics(text: str, names: dict[str, str] | None = None) -> list[str]:
    """The equations, in the names of the first text."""
    back = {new: old for old, new in (names or {}).items()}
    lines = [f"{q.left} = {q.text}" for q in explained(text).equations]
    return [re.sub(r"[A-Za-z_]\w*", lambda m: back.get(m[0], m[0]), line) for line in lines]


@pytest.mark.parametrize("name", SOME)
def test_renaming_changes_no_equation(name: str) -> None:
    text, names = renamed(TEXTS[name])
    # B, H, Hkv, Sq, Sk of an equation are not the kernel's names.
    assert mathematics(TEXTS[name]) == mathematics(text, {o: n for o, n in names.items() if n.startswith("zz")})


def test_renaming_changes_no_equation_of_an_adapted_kernel() -> None:
    before = adapted("adapted_softcap_window")
    text, names = renamed(before)
    assert mathematics(before) == mathematics(text, names)


@pytest.mark.parametrize("name", ["flash_fwd_scalar", "flash_fwd_sm80", "mma_padded"])
def test_reformatting_changes_no_sentence(name: str) -> None:
    """Without comments, and with every indentation gone and lines doubled: only line numbers may differ."""
    text = re.sub(r"//[^\n]*", "", TEXTS[name])
    text = "\n\n".join(line.strip() for line in text.splitlines())
    before, after = explained(TEXTS[name]), explained(text)
    assert after.paragraph == before.paragraph
    assert [q.text for q in after.equations] == [q.text for q in before.equations]
    assert [(f.key, f.value) for f in after.facts] == [(f.key, f.value) for f in before.facts]


@pytest.mark.parametrize("name", ["flash_fwd_sm80", *ADAPTED])
def test_a_renamed_kernel_is_the_same_kernel(name: str) -> None:
    before = adapted(name) if name in ADAPTED else TEXTS[name]
    found = compare(kernel(before), kernel(renamed(before)[0]))
    assert found.same is True, (found.why, [d.sentence for d in found.semantic])
    assert found.orchestration == ()

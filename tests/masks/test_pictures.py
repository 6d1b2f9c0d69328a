"""The pictures in docs/masks are those that the specs give."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from .pictures import DOCS, drawn, masks


def test_the_page_shows_the_twelve() -> None:
    found = masks()
    assert [m.number for m in found] == list(range(1, 13))
    text = (DOCS / "masks.md").read_text()
    assert re.findall(r'src="masks/([^"]+)"', text) == [m.picture.name for m in found]
    for mask in found:
        root = ElementTree.parse(mask.picture).getroot()
        assert root.tag.endswith("svg")
        assert mask.picture.stat().st_size < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("mask", masks(), ids=lambda m: m.name)
def test_a_picture_is_that_of_its_spec(mask) -> None:
    svg, formula = drawn(mask)
    assert mask.picture.read_text() == svg, "run `python -m tests.masks.pictures`"
    assert f"`{formula}`" in (DOCS / "masks.md").read_text()

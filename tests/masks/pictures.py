"""The pictures of docs/masks: the twelve FlashMask masks, as `cubridge spec --tiles` draws them.

``python -m tests.masks.pictures`` writes them; a test says when they are out of date.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from cubridge_engine.ir.text_expr import print_expr
from cubridge_engine.pipeline.spec_page import draw
from cubridge_engine.spec import read_spec
from cubridge_engine.spec.describe import one_line

ROOT = Path(__file__).parents[2]
SPECS, UNMASKED = Path(__file__).parent / "specs", Path(__file__).parent / "unmasked"
DOCS = ROOT / "docs"
TILE = 8  # the examples have 128 tokens

HEAD = """# Masks

The twelve masks of FlashMask, each read from a PyTorch spec and drawn by `cubridge spec SPEC.py --tiles OUT.svg`.
Blue tiles are attended whole, yellow ones in part, white ones not at all: an adapted kernel visits the coloured tiles
only, and tests elements in the yellow ones only. The bars to the right are the keys from the first to the last tile
that a row of tiles visits.

Here i is the query, j the key; the examples have 128 tokens and tiles of 8 x 8. Make your own with other sizes:

```
cubridge spec SPEC.py --tiles mask.svg --sq 8192 --sk 8192 --br 128 --bc 64
```
"""


@dataclass(frozen=True)
class Mask:
    """One of the twelve: its number, the file that spells it, and what it is in words."""

    number: int
    spec: Path
    words: str

    @property
    def name(self) -> str:
        return self.spec.stem

    @property
    def picture(self) -> Path:
        return DOCS / "masks" / f"{self.number:02}-{self.name.replace('_', '-')}.svg"


def masks() -> list[Mask]:
    """The specs whose first line gives a number of FlashMask's list, in its order."""
    found: list[Mask] = []
    for path in (*SPECS.glob("*.py"), *UNMASKED.glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        match = re.match(r"FlashMask (\d+): (.*)", text)
        if match:
            found.append(Mask(int(match[1]), path, match[2].rstrip(".")))
    return sorted(found, key=lambda m: m.number)


def drawn(mask: Mask) -> tuple[str, str]:
    """The picture and the formula of a mask."""
    result = read_spec(str(mask.spec), time_limit=60.0)
    attention, program = result.attention, result.program
    assert attention is not None
    sizes = {"Sq": 128, "Sk": 128, "Br": TILE, "Bc": TILE}
    tiles, problems = draw(attention, program, one_line(attention), sizes)
    assert tiles is not None, problems
    return tiles["svg"], "true" if attention.mask is None else print_expr(attention.mask)


def page(formulas: dict[int, str]) -> str:
    """docs/masks.md."""
    parts = [HEAD]
    for mask in masks():
        title = mask.name.replace("_", " ")
        parts.append(
            f"\n## {mask.number}. {title[0].upper()}{title[1:]}\n\n{mask.words[0].upper()}{mask.words[1:]}: "
            f"`{formulas[mask.number]}`\n\n"
            f'<img src="masks/{mask.picture.name}" alt="tile map of {title}" width="420">\n'
        )
    return "".join(parts)


def main() -> None:
    """Write the pictures and the page."""
    (DOCS / "masks").mkdir(exist_ok=True)
    formulas: dict[int, str] = {}
    for mask in masks():
        svg, formulas[mask.number] = drawn(mask)
        mask.picture.write_text(svg)
    (DOCS / "masks.md").write_text(page(formulas))


if __name__ == "__main__":
    main()

"""Empty, partial and full tiles: against a mask that was evaluated whole, and on cases known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cubridge_engine.ir.evaluate import UnboundName, evaluate
from cubridge_engine.ir.kernel_mask import kernel_mask
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.ir.tile_map import EMPTY, FULL, PARTIAL, TileMap, kept_by, tile_map

FLASH = parse_kernel((Path(__file__).parent / "flash.cuir").read_text())
MASKS = ["j <= i", "j <= i + (Sk - Sq) & i - j < 7", "j < 3 | j >= 30", "(i // 5) == (j // 5)", "seen[j] > 0.5"]


def draw(text: str, Sq: int, Sk: int, Br: int = 8, Bc: int = 4) -> TileMap:
    seen = np.arange(Sk) % 3 / 2
    return tile_map(kept_by(parse_expr(text), {"Sq": Sq, "Sk": Sk}, {"seen": seen}), Sq=Sq, Sk=Sk, Br=Br, Bc=Bc)


@pytest.mark.parametrize("text", MASKS)
@pytest.mark.parametrize(("Sq", "Sk"), [(32, 32), (13, 38), (1, 5)])
def test_tiles_are_those_of_the_whole_mask(text: str, Sq: int, Sk: int) -> None:
    found = draw(text, Sq, Sk)
    env = {"Sq": Sq, "Sk": Sk, "i": np.arange(Sq).reshape(-1, 1), "j": np.arange(Sk).reshape(1, -1)}
    value = evaluate(parse_expr(text), env, {"seen": np.arange(Sk) % 3 / 2})
    whole = np.broadcast_to(value, (Sq, Sk))
    assert found.attended == whole.sum()
    for row in range(found.tiles.shape[0]):
        for column in range(found.tiles.shape[1]):
            tile = whole[8 * row : 8 * row + 8, 4 * column : 4 * column + 4]
            want = FULL if tile.all() else PARTIAL if tile.any() else EMPTY
            assert found.tiles[row, column] == want


def test_cells_join_tiles_and_keep_what_they_all_are() -> None:
    step, cells = draw("j <= i", 64, 64, 4, 4).cells(4)
    assert step == 4
    assert cells == ["PEEE", "FPEE", "FFPE", "FFFP"]


def test_no_mask_is_full_also_where_a_tile_is_cut_off() -> None:
    found = tile_map(kept_by(None, {}), Sq=9, Sk=9, Br=8, Bc=8)
    assert found.counts() == {"empty": 0, "partial": 0, "full": 4}
    assert found.density == 1.0


@pytest.mark.parametrize("sizes", [{"Sq": 0}, {"Br": 0}, {"Sk": -3}, {"Sq": 1 << 20, "Sk": 1 << 20}])
def test_sizes_out_of_range_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="Lengths and tiles"):
        tile_map(kept_by(None, {}), **{"Sq": 8, "Sk": 8, "Br": 8, "Bc": 8, **sizes})


def test_a_mask_over_something_unknown_says_its_name() -> None:
    with pytest.raises(UnboundName, match="window"):
        draw("j < window", 8, 8)


def of_flash(causal: int, Sq: int, Sk: int) -> tuple[list[str], list[tuple[int, int]]]:
    sizes = {"B": 1, "H": 2, "Hkv": 1, "Sq": Sq, "Sk": Sk}
    found = kernel_mask(FLASH, sizes, {"causal": causal, "c": 1.0}, b=0, h=1)
    return found.tiles.cells(99)[1], list(found.ranges)


def test_a_causal_kernel_visits_up_to_its_diagonal() -> None:
    assert of_flash(1, 48, 48) == (["PEE", "FPE", "FFP"], [(0, 16), (0, 32), (0, 48)])
    assert of_flash(1, 16, 48) == (["FFP"], [(0, 48)])


def test_a_switch_that_is_off_masks_nothing_but_the_end() -> None:
    cells, ranges = of_flash(0, 32, 40)
    assert cells == ["FFF", "FFF"]
    assert ranges == [(0, 40), (0, 40)]


def test_keys_that_the_loop_does_not_visit_are_not_attended() -> None:
    text = (Path(__file__).parent / "flash.cuir").read_text().replace("for t in 0 .. n;", "for t in 1 .. n;")
    sizes = {"B": 1, "H": 2, "Hkv": 1, "Sq": 32, "Sk": 48}
    found = kernel_mask(parse_kernel(text), sizes, {"causal": 0, "c": 1.0}, b=0, h=0)
    assert found.tiles.cells(99)[1] == ["EFF", "EFF"]
    assert found.ranges == ((16, 48), (16, 48))

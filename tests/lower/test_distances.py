"""Positions as floats: converted before the element loops, where those are unrolled and the position is a sum."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.anchors import ElementNest
from cubridge_engine.ir.evaluate import evaluate
from cubridge_engine.ir.expr import Call, Expr, free_vars
from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.lower.cuda_expr import Scope, print_cuda
from cubridge_engine.lower.distances import Distances

ROW, COL = "const int row = row0 + 8 * (e / 2);", "const int col = kv0 + nb * 8 + 2 * (lane % 4) + (e & 1);"
LOOPS = tuple(f"#pragma unroll\nfor (int {v} = 0; {v} < 4; ++{v})" for v in ("nb", "e"))
TYPES = {"slope": "float"}


def rewritten(text: str, headers=LOOPS, declarations=(ROW, COL), row="row", col="col"):
    nest = ElementNest(headers, declarations, "s[nb][e]", row, col)
    names = {"s": "s[nb][e]", "i": row, "j": col, "slope": "slope", "Sk": "sk", "Sq": "sq"}
    taken: list[str] = []

    def make(wanted: str) -> str:
        taken.append(wanted)
        return wanted if taken.count(wanted) == 1 else f"{wanted}_{taken.count(wanted)}"

    work = Distances(nest, Scope(names, TYPES), make)
    value = work.rewrite(parse_expr(text))
    return print_cuda(value, Scope({**names, **work.names}, {**TYPES, **work.types})), work.lines


FIRST = "static_cast<float>(kv0 + 2 * (lane % 4) - row0)"
TABLE = [
    ("s + slope * (j - i)", "s[nb][e] + slope * (distance + (nb * 8 + (e & 1) - 8 * (e / 2)))", [FIRST]),
    ("s + slope * float(i)", "s[nb][e] + slope * (query + 8 * (e / 2))", ["static_cast<float>(row0)"]),
    (
        "s + slope * (i - j + (Sk - Sq))",
        "s[nb][e] + slope * (distance + (8 * (e / 2) - nb * 8 - (e & 1)))",
        ["static_cast<float>(row0 + sk - kv0 - 2 * (lane % 4) - sq)"],
    ),
    (
        "s + slope * (2 * j)",
        "s[nb][e] + slope * (key + (2 * (nb * 8) + 2 * (e & 1)))",
        ["static_cast<float>(2 * kv0 + 2 * (2 * (lane % 4)))"],
    ),
    (
        "s * exp2(slope * max(i - j, 0))",
        "s[nb][e] * exp2f(slope * fmaxf(distance + (8 * (e / 2) - nb * 8 - (e & 1)), 0.f))",
        ["static_cast<float>(row0 - kv0 - 2 * (lane % 4))"],
    ),
    (
        "s - slope * (0 - j)",
        "s[nb][e] - slope * (key - (nb * 8 + (e & 1)))",
        ["static_cast<float>(-kv0 - 2 * (lane % 4))"],
    ),
]


@pytest.mark.parametrize(("text", "wanted", "bases"), TABLE)
def test_a_position_is_converted_once(text, wanted, bases):
    got, lines = rewritten(text)
    assert got == wanted
    assert [line.split(" = ", 1)[1].removesuffix(";") for line in lines] == bases


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("s + slope * (j - i)", {"headers": tuple(h.removeprefix("#pragma unroll\n") for h in LOOPS)}),
        ("s + slope * float((i - j) // 4)", {}),  # no sum: the quotient of a sum is not that of its parts
        ("s + slope * (i * j)", {}),
        (
            "s + slope * (j - i)",
            {"declarations": ("const int row = 8 * e;", "const int col = nb;")},
        ),  # nothing to start from
        ("where(j <= i, s, 0.0)", {}),  # compared as integers
        ("s * slope", {}),
    ],
)
def test_what_is_no_sum_of_a_base_and_an_offset_stays(text, given):
    got, lines = rewritten(text, **given)
    nest = ElementNest((), (), "s[nb][e]", "row", "col")
    names = {"s": nest.element, "i": "row", "j": "col", "slope": "slope"}
    assert lines == []
    assert got == print_cuda(parse_expr(text), Scope(names, TYPES))


def test_equal_positions_share_a_name():
    got, lines = rewritten("s + slope * (j - i) + 2.0 * float(j - i)")
    assert len(lines) == 1
    assert got.count("distance") == 2


def moved(expr: Expr, names: dict[str, float]) -> float:
    """Value of an expression whose free names are given."""
    assert free_vars(expr) <= set(names)
    return float(evaluate(expr, names))


def test_the_rewritten_value_is_the_position():
    """Base and offset evaluated as C would, against the position itself, for every element of a tile of one thread."""
    nest = ElementNest(LOOPS, (ROW, COL), "s[nb][e]", "row", "col")
    work = Distances(nest, Scope({"i": "row", "j": "col"}, TYPES), lambda wanted: wanted)
    value = work.rewrite(parse_expr("float(j - i)"))
    assert isinstance(value, Call)
    (offset,) = [n for n in work.names if n not in ("distance",)]
    base = work.lines[0].split("static_cast<float>(", 1)[1].removesuffix(");")
    for row0, kv0, lane in ((0, 0, 0), (77, 256, 13), (130, 128, 31)):
        for nb in range(4):
            for e in range(4):
                scope = {"row0": row0, "kv0": kv0, "lane": lane, "nb": nb, "e": e}
                names = {
                    "distance": eval(base, {}, scope),
                    offset: eval(work.names[offset].replace("/", "//"), {}, scope),
                }
                i, j = row0 + 8 * (e // 2), kv0 + nb * 8 + 2 * (lane % 4) + (e & 1)
                assert moved(value, names) == j - i

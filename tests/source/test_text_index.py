import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.source import TextIndex

TEXT = "\ufeffint a;\r\n// é 𝜎 x\n\tb\n"


@pytest.mark.parametrize(
    ("needle", "utf8", "utf16", "utf32"),
    [("a;", (0, 4), (0, 4), (0, 4)), ("x", (1, 11), (1, 8), (1, 7)), ("b", (2, 1), (2, 1), (2, 1))],
)
def test_columns_in_three_units(needle: str, utf8: object, utf16: object, utf32: object) -> None:
    data = TEXT.encode()
    at = data.index(needle.encode())
    index = TextIndex(data)
    assert index.position(at, "utf-8") == utf8
    assert index.position(at, "utf-16") == utf16
    assert index.position(at, "utf-32") == utf32


def test_crlf_and_bom_do_not_count() -> None:
    index = TextIndex(TEXT.encode())
    assert index.line_count == 4
    assert index.line_text(0) == "int a;"
    assert index.line_bytes(3) == b""
    assert index.offset(0, 99, "utf-16") == TEXT.encode().index(b"\r\n"), "a column behind the line clamps before CRLF"
    assert index.offset(99, 0) == len(TEXT.encode())


def test_a_column_inside_a_character_clamps_to_its_start() -> None:
    data = "x𝜎y".encode()
    assert TextIndex(data).offset(0, 2, "utf-16") == 1
    assert TextIndex(data).offset(0, 3, "utf-8") == 1


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="ab\r\n\té𝜎\ufeff", max_size=40))
def test_round_trip_in_every_unit(text: str) -> None:
    data = text.encode()
    index = TextIndex(data)
    for at in range(len(data) + 1):
        assert index.locate(at)[0] == data[:at].count(b"\n")
        if at < len(data) and data[at] & 0xC0 == 0x80:
            continue
        line, column = index.locate(at)
        assert index.line_start(line) + column == at
        hidden = (0 < at < 3 and data.startswith(b"\xef\xbb\xbf")) or (at == 0 and data.startswith(b"\xef\xbb\xbf"))
        if at <= index.line_end(line) and not hidden:
            for unit in ("utf-8", "utf-16", "utf-32"):
                assert index.offset(*index.position(at, unit), unit) == at


def test_bytes_that_are_no_utf8_count_one_each() -> None:
    index = TextIndex(b"\xff\xfeab")
    assert index.position(3) == (0, 3)
    assert index.offset(0, 3, "utf-16") == 3

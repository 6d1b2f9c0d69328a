"""Where to look: statements that make scores, by the lines that watching found, and the variables that hold them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..watch import Site as Watched_site
from ..watch import Watched
from .model import Fragment, Place
from .text import Text, declared_integers, header_integers

# What a line may hold besides scores: where it holds more, it is no place of its own.
_BESIDE = frozenset({"S", "masked S", "Q", "K", "V"})
_USES = frozenset({"masked S", "m", "tile max", "P", "S"})
_PRODUCTS = ("mma", "wgmma", "wmma", "fma", "mad")
_WORD = re.compile(r"(?<![\w.>:])([A-Za-z_]\w*)(?!\w|\s*(?:\(|<\w|::))")
_KEYWORDS = frozenset(
    {
        "auto",
        "bool",
        "break",
        "const",
        "constexpr",
        "continue",
        "do",
        "else",
        "float",
        "for",
        "if",
        "int",
        "return",
        "sizeof",
        "static",
        "switch",
        "typename",
        "unsigned",
        "void",
        "volatile",
        "while",
    }
)
_MOST_DEEP = 6  # loops around a statement behind which its scores may be complete


def find_places(watched: Watched, texts: Mapping[Path, Text], spread: bool) -> list[Place]:
    """Places behind the statements that make scores, in the order of the text; without `spread` only behind the
    products themselves.
    """
    roles = _roles_by_line(watched)
    found: dict[tuple[Path, int, str], Place] = {}
    for path, line in _lines(watched, roles, texts, spread):
        text = texts[path]
        uses = _uses(watched, path, line, text)
        for place in _at(path, text, line, uses):
            found.setdefault((place.path, place.at, place.fragment.name), place)
    return sorted(found.values(), key=lambda p: (str(p.path), p.at))


def words_of(code: str) -> list[str]:
    """The names in a piece of code that may be those of variables."""
    return [word for word in _WORD.findall(code) if word not in _KEYWORDS]


def _roles_by_line(watched: Watched) -> dict[tuple[Path, int], set[str]]:
    roles: dict[tuple[Path, int], set[str]] = {}
    for site in watched.sites:
        for frame in site.chain:
            roles.setdefault((Path(frame.path), frame.line), set()).add(site.role)
    return roles


def _lines(
    watched: Watched, roles: Mapping[tuple[Path, int], set[str]], texts: Mapping[Path, Text], spread: bool
) -> Iterator[tuple[Path, int]]:
    """For each site of scores the outermost line in a file of the project that holds scores and no later step."""
    for site in watched.sites:
        if site.role != "S" or (not spread and not _is_product(site)):
            continue
        for frame in reversed(site.chain):
            key = Path(frame.path), frame.line
            if key[0] in texts and roles[key] <= _BESIDE:
                yield key
                break


def _is_product(site: Watched_site) -> bool:
    return any(op.split(".")[0] in _PRODUCTS for op in site.opcodes)


def _uses(watched: Watched, path: Path, line: int, text: Text) -> frozenset[str]:
    """Names in the statements of the same file in which scores are used: what is in both holds them."""
    names: set[str] = set()
    for site in watched.sites:
        if site.role not in _USES or (site.role == "S" and _is_product(site)):
            continue
        for frame in site.chain:
            if Path(frame.path) == path and frame.line != line:
                start, end = text.statement(frame.line)
                names |= set(words_of(text.code[start:end]))
    return frozenset(names)


def _at(path: Path, text: Text, line: int, uses: frozenset[str]) -> Iterator[Place]:
    start, end = text.statement(line)
    function = text.function_around(start)
    if function is None:
        return
    names = dict.fromkeys(words_of(text.code[start:end]))
    chosen = [n for n in names if n in uses] or list(names)
    positions = [(start, end), *_loops_around(text, start, function.start)]
    for name in chosen:
        for begin, at in positions:
            fragment = fragment_of(name, text, function.header_start, at)
            if fragment is None:
                break  # declared inside of what ends here
            integers = dict(integers_at(text, at))
            if name in integers:
                break
            constants = frozenset(n for n, fixed in integers.items() if fixed)
            yield Place(
                path, at, text.line_of(start), fragment, tuple(integers), constants,
                text.code[function.header_start : function.end], text.indent(begin),
            )  # fmt: skip


def _loops_around(text: Text, at: int, until: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the loops around an offset, inside the function."""
    for count, block in enumerate(text.blocks_around(at)):
        if block.start <= until or not block.is_control or count >= _MOST_DEEP:
            return
        if re.match(r"\s*(for|while)\b", block.header):
            yield block.header_start, block.end


def integers_at(text: Text, at: int) -> Iterator[tuple[str, bool]]:
    """(name, whether it is a constant) of the integers in scope at an offset, the nearest first."""
    for block in text.blocks_around(at):
        if not (block.is_function or block.is_control):
            return
        yield from reversed(list(declared_integers(text.own_text(block, at))))
        yield from header_integers(block.header)


def fragment_of(name: str, text: Text, start: int, at: int) -> Fragment | None:
    """How the elements of a variable are written, by its declaration between `start` and `at` in scope there; None
    where it is none that can hold scores.
    """
    for block in text.blocks_around(at):
        if block.end <= start:
            break
        own = text.code[block.start + 1 : at]
        found = _declared(name, own, text.own_text(block, at)) or _declared(name, block.header, block.header)
        if found is not None:
            return found
        if block.is_function:
            break
    return None


def _declared(name: str, whole: str, own: str) -> Fragment | None:
    if re.search(rf"__shared__[^;]*\b{name}\b", whole):
        return None
    plain = re.search(rf"\bfloat\s+(?:[^;(){{}}]*,\s*)?&?\s*{name}\b\s*((?:\[\])*)", own)
    if plain is not None:
        if not plain[1]:
            return Fragment(name, name, ())
        dims = re.search(rf"\b{name}\s*((?:\[[^\]]+\]\s*)+)", whole)
        extents = re.findall(r"\[([^\]]+)\]", dims[1]) if dims else []
        element = name + "".join(f"[{{{n}}}]" for n in range(len(extents)))
        return Fragment(name, element, tuple(e.strip() for e in extents)) if extents else None
    if re.search(rf"\bfragment\s*<[^;]*>\s+{name}\b", whole):
        return Fragment(name, f"{name}.x[{{0}}]", (f"{name}.num_elements",))
    declared = re.search(rf"(?<![\w.>])(?:auto|[A-Z]\w*)(?:\s*<[^;()]*>)?\s*&{{0,2}}\s*{name}\b\s*(?=[=;({{,)]|$)", own)
    return Fragment(name, f"{name}({{0}})", (f"size({name})",)) if declared is not None else None


def product_spelled(body: str, name: str, names: Sequence[str]) -> str:
    """Which of `names` the function itself multiplies `name` with; '' where it does not."""
    hits = [c for c in names if re.search(rf"\b{name}\s*\*\s*{c}\b|\b{c}\s*\*\s*{name}\b", body)]
    return hits[0] if len(hits) == 1 else ""

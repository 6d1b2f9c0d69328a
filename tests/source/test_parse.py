import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_sitter import Node

from cubridge_engine.diagnostics import Severity
from cubridge_engine.source import LIMIT, SourceFile, parse

EXPERT = Path(__file__).parents[2] / "expert_kernels"


def shape(node: Node) -> list[tuple[str, int, int]]:
    """The tree as comparable data."""
    own = [(node.type, node.start_byte, node.end_byte)]
    return own + [row for child in node.children for row in shape(child)]


def codes(source: SourceFile) -> list[str]:
    return [diagnostic.code for diagnostic in source.diagnostics]


def newlines(data: bytes) -> list[int]:
    return [at for at, byte in enumerate(data) if byte in b"\r\n"]


def test_what_a_kernel_file_holds(kernel_text: str) -> None:
    source = parse("fwd.cu", kernel_text.encode())
    assert not source.root.has_error
    assert source.diagnostics == ()
    (kernel,) = source.kernels()
    assert kernel.name == "fwd"
    assert kernel.template is not None
    assert kernel.attributes == {"__launch_bounds__": "128, 2"}
    assert source.text(kernel.params) == "(const elem* __restrict__ Q, float* O, int Sk)"
    assert set(source.functions()) == {"up", "fwd", "run"}
    assert source.functions()["up"][0].qualifiers == {"__host__", "__device__", "inline"}
    assert source.defines_seen["Br"] == "64"
    assert source.defines_seen["CEIL"] == "(a, b) (((a) + (b) - 1) / (b))"
    assert [(i.target, i.quoted) for i in source.includes] == [("cuda_fp16.h", False), ("tiles.cuh", True)]


def test_launch_parts(kernel_text: str) -> None:
    source = parse("fwd.cu", kernel_text.encode())
    (launch,) = source.launches()
    parts = [launch.grid, launch.block, launch.shared, launch.stream]
    assert launch.kernel == "fwd"
    assert [source.text(arg) for arg in launch.template_args] == ["Br", "true"]
    assert [part and source.text(part) for part in parts] == ["dim3(CEIL(sq, Br), 2)", "128", "4 * Br", "s"]
    assert [source.text(arg) for arg in launch.args] == ["q", "o", "sk"]
    short = parse("k.cu", b"__global__ void k() {}\nvoid f() { n::k<<<1, 2>>>(); }\n").launches()[0]
    assert (short.kernel, short.shared, short.stream, short.args) == ("k", None, None, ())


def broken(node: Node) -> Iterator[Node]:
    """The nodes that the grammar could not read."""
    if node.is_error or node.is_missing:
        yield node
    elif node.has_error:
        for child in node.children:
            yield from broken(child)


@pytest.mark.parametrize("path", sorted(EXPERT.glob("*/kernel.cu")), ids=lambda path: path.parent.name)
def test_expert_kernels_are_read_whole(path: Path) -> None:
    source = parse(str(path), path.read_bytes())
    assert source.diagnostics == ()
    # Operands of asm that a macro lists are no grammar; `lift/asm_macros` reads them. Nothing else may be unread.
    for node in broken(source.root):
        start = source.data.rindex(b"asm volatile(", 0, node.start_byte + len(b"asm volatile("))
        assert node.end_byte <= source.data.index(b");\n", start) + 1, node.text
    assert source.kernels()
    assert {launch.kernel for launch in source.launches()} <= {kernel.name for kernel in source.kernels()}


def test_loops_keep_their_bodies(kernel_text: str) -> None:
    """`#pragma unroll` between a loop and its body must not detach the body."""
    source = parse("fwd.cu", kernel_text.encode())
    found: list[Node] = []
    todo = [source.root]
    while todo:
        node = todo.pop()
        todo.extend(node.children)
        if node.type == "for_statement":
            found.append(node)
    outer = min(found, key=lambda n: n.start_byte)
    inner = max(found, key=lambda n: n.start_byte)
    assert len(found) == 2
    assert outer.child_by_field_name("body") == inner


@pytest.mark.parametrize(("defines", "seen"), [({}, "__half"), ({"USE_BF16": "1"}, "__nv_bfloat16")])
def test_defines_choose_the_branch(kernel_text: str, defines: dict[str, str], seen: str) -> None:
    source = parse("fwd.cu", kernel_text.encode(), defines=defines)
    assert f"typedef {seen} elem" in source.clean.decode()
    (dead,) = [b for b in source.blanked if b.rule == "untaken branch"]
    assert seen not in kernel_text[dead.span.start : dead.span.end]
    assert dead.value.startswith("#ifdef USE_BF16 is false" if not defines else "#else: an earlier branch")


def test_a_macro_may_hide_the_kernel_qualifier() -> None:
    text = "#define KERNEL __global__ void\n#define LB(n) __launch_bounds__(n)\nKERNEL LB(64) k(int x) {}\n"
    source = parse("k.cu", text.encode())
    (kernel,) = source.kernels()
    assert kernel.name == "k"
    assert kernel.attributes == {"__launch_bounds__": "64"}


@pytest.mark.parametrize(
    ("text", "code", "line", "severity"),
    [
        ("int main() { return 0; }\n", "CB105", 0, Severity.WARNING),
        ("__global__ void k(int *x) {\n  x[0] = = 1;\n}\n", "CB103", 1, Severity.WARNING),
        ("__global__ void k(int *x) {\n  for (;;) {\n  x[0] = 1;\n}\n", "CB106", 0, Severity.ERROR),
        ("__global__ void k(int *x) {\n  x[0] = (1;\n}\n", "CB106", 1, Severity.ERROR),
        ("__global__ void k(int *x) {\n  x[0] = 1);\n}\n", "CB106", 1, Severity.ERROR),
        ("__global__ void k() {}\n#if 1\nint a;\n", "CB107", 1, Severity.ERROR),
        ("__global__ void k() {}\n#endif\n", "CB108", 1, Severity.ERROR),
        ("__global__ void k() {}\n#if __has_include(<x>)\n#endif\n", "CB109", 1, Severity.NOTE),
        ("__global__ void k() {}\n// \0\n", "CB101", 1, Severity.WARNING),
    ],
)
def test_findings(text: str, code: str, line: int, severity: Severity) -> None:
    found = [d for d in parse("k.cu", text.encode()).diagnostics if d.code == code]
    assert len(found) == 1
    assert found[0].span is not None
    assert (found[0].span.line, found[0].severity) == (line, severity)
    assert found[0].help


def test_too_large_is_said() -> None:
    source = parse("k.cu", b"x" * (LIMIT + 1))
    assert codes(source) == ["CB102"]
    assert len(source.clean) == LIMIT + 1


def test_error_share_counts_only_what_is_unread() -> None:
    good = parse("k.cu", b"__global__ void k() { int a = 1; }\n")
    bad = parse("k.cu", b"__global__ void k() { int a = 1; @@@@ ; int b = 2; }\n")
    assert good.error_share(good.root) == 0
    assert 0 < bad.error_share(bad.kernels()[0].body) < 0.5


@pytest.mark.parametrize("change", [lambda t: t.replace("\n", "\r\n"), lambda t: "\ufeff" + t.replace("  ", "\t")])
def test_crlf_tabs_and_bom_read_the_same(kernel_text: str, change: object) -> None:
    plain = parse("k.cu", kernel_text.encode())
    other = parse("k.cu", change(kernel_text).encode())  # pyright: ignore[reportCallIssue]
    assert not other.root.has_error
    assert other.diagnostics == ()
    assert [row[0] for row in shape(other.root)] == [row[0] for row in shape(plain.root)]
    span = other.span(other.kernels()[0].body)
    assert (span.line, span.end_line) == (14, 23)


CUDA_BITS = st.sampled_from(
    [
        *(
            b"__global__ void k(",
            b"){",
            b"}",
            b"<<<",
            b">>>",
            b"for (;;)",
            b"__align__(16)",
            b"typename T::X{",
            b";",
            b"x",
        ),
        *(b"#if X\n", b"#else\n", b"#endif\n", b"#define A B\n", b"CHECK_X(a)\n", b"UNROLL\n", b"\\\n", b"\r\n", b"\n"),
        *(b'R"x(', b'"', b"'", b"/*", b"*/", b"//", b"\xff", b"\0", b" ", b"x"),
    ]
)


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.binary(max_size=200), st.lists(CUDA_BITS, max_size=40).map(b"".join)))
def test_any_bytes_are_read(data: bytes) -> None:
    source = parse("any.cu", data)
    assert len(source.clean) == len(source.code) == len(data)
    assert newlines(source.clean) == newlines(data)
    assert newlines(source.code) == newlines(data)
    for blanked in source.blanked:
        assert 0 <= blanked.span.start <= blanked.span.end <= len(data)
    source.kernels(), source.launches(), source.functions()
    assert 0 <= source.error_share(source.root) <= 1


def test_incremental_equals_full_on_random_edits(kernel_text: str) -> None:
    rng = random.Random(7)
    pieces = [
        "x",
        " ",
        "\n",
        "int z = 3;\n",
        "UNROLL\n",
        "#if 0\n#endif\n",
        "/* c */",
        "é",
        "if (Sk) { O[0] = 1; }\n",
    ]
    text = kernel_text
    source = parse("k.cu", text.encode())
    equal = 0
    for _ in range(60):
        at = rng.randrange(len(text))
        text = text[:at] + (rng.choice(pieces) if rng.random() < 0.6 else "") + text[at + rng.choice([0, 0, 1, 5]) :]
        source = parse("k.cu", text.encode(), previous=source)
        full = parse("k.cu", text.encode())
        assert source.clean == full.clean
        if not full.root.has_error:
            assert shape(source.root) == shape(full.root)
            equal += 1
        elif rng.random() < 0.9:  # mostly go on from a text without errors, where both must agree exactly
            text = kernel_text
            source = parse("k.cu", text.encode(), previous=source)
            assert shape(source.root) == shape(parse("k.cu", text.encode()).root)
    assert equal >= 10

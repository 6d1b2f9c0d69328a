import pytest
import tree_sitter_cuda
from tree_sitter import Language, Parser

from cubridge_engine.source import RULES, Rule, parse


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_is_needed_and_enough(rule: Rule) -> None:
    data = rule.example.encode()
    raw = Parser(Language(tree_sitter_cuda.language())).parse(data)
    source = parse("rule.cu", data)
    assert raw.root_node.has_error, "the grammar reads the example alone: the rule is not needed"
    assert not source.root.has_error
    assert rule.name in {blanked.rule for blanked in source.blanked}
    assert rule.reason in {blanked.why for blanked in source.blanked}


@pytest.mark.parametrize(
    "text",
    [
        "void f(int x) { if (x == FOO_DEVICE && x) { g(); } }\n",
        'const char* s = "CHECK_X(a)"; // UNROLL\nvoid f() { for (;;) {} }\n',
        "void f() { do { g(); } while (0); }\n",
        "void f() {\n  if (a) {\n  } else\n    for (;;) g();\n}\n",
        "int x =\n    A_B\n    + 3;\n",
        "void f() {\n#pragma unroll\n  for (;;) {}\n}\n",
        "enum { MAX_A,\n  MAX_B\n};\n",
        '#define UNROLL_ME _Pragma("unroll")\nint a;\n',
        "void f() { g(1'000'000); h('\\'', \"}\"); }\n",
    ],
)
def test_ordinary_code_is_left_alone(text: str) -> None:
    source = parse("plain.cu", text.encode())
    assert source.clean == text.encode()
    assert source.blanked == ()


@pytest.mark.parametrize(
    ("condition", "defines", "taken"),
    [
        ("#if 0", {}, False),
        ("#if UNKNOWN", {}, False),
        ("#if __CUDA_ARCH__ >= 800", {}, True),
        ("#if __CUDA_ARCH__ >= 800", {"__CUDA_ARCH__": "700"}, False),
        ("#if defined(A) && !defined B", {"A": ""}, True),
        ("#ifndef A", {"A": "0"}, False),
        ("#if A + 2 * 3 == 7 && (1 ? B : 0)", {"A": "1", "B": "C", "C": "0x10"}, True),
        ("#if -1 > 0u || 010 != 8", {}, False),
        ("#if 1 / 0", {}, True),
        ("#if FOO(3) || 1", {}, True),
        ("#if FOO(3) && 0", {}, False),
        ("#if A", {"A": "A"}, False),
        ("#if 1 \\\n  && 0", {}, False),
        ("#if 1 /* two\n lines */", {}, True),
    ],
)
def test_conditions(condition: str, defines: dict[str, str], taken: bool) -> None:
    text = f"{condition}\nint yes;\n#else\nint no;\n#endif\n"
    clean = parse("if.cu", text.encode(), defines=defines).clean
    assert (b"yes" in clean, b"no;" in clean) == (taken, not taken)


def test_nested_branches_and_macros_of_dead_branches() -> None:
    text = "#if 0\n#if 1\n#define A 1\nint a;\n#endif\n#elif 1\n#define B 2\nint b;\n#else\nint c;\n#endif\nint d;\n"
    source = parse("n.cu", text.encode())
    assert source.clean.split() == b"#define B 2 int b; int d;".split()
    assert source.defines_seen == {"B": "2"}


def test_branches_that_split_braces_are_read() -> None:
    text = "__global__ void k(int x) {\n#ifdef A\n  if (x) {\n#else\n  if (!x) {\n#endif\n  g();\n  }\n}\n"
    source = parse("k.cu", text.encode())
    assert not source.root.has_error
    assert source.diagnostics == ()


def test_values_are_recorded() -> None:
    text = "#define LB(n, m) __launch_bounds__(n, m)\n__global__ void LB(128, 2) k() {\n  UNROLL(4)\n  for (;;) {}\n}\n"
    rows = {(b.rule, b.value) for b in parse("k.cu", text.encode()).blanked}
    assert rows == {("qualifier macro", "__launch_bounds__(128, 2)"), ("loop prefix", "UNROLL(4)")}

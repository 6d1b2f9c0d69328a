"""The text form of expressions: print and parse, inverse to each other."""

from __future__ import annotations

import math
import re

from .expr import OPS, Call, Const, Expr, Read, Var

_INFIX = {info.infix: (name, info.precedence) for name, info in OPS.items() if info.infix}
_TOKEN = re.compile(
    r"\s*(?:(?P<num>(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+))"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9.]*)|(?P<op>//|<=|>=|==|!=|[-+*/%<>&|!()\[\],]))"
)


class ExprSyntaxError(ValueError):
    """The text is not an expression; `position` is the byte where reading stopped."""

    def __init__(self, text: str, position: int, why: str) -> None:
        super().__init__(f"{why} at column {position + 1} of {text!r}")
        self.position = position


def print_const(value: float | int | bool) -> str:
    """`true`, `12`, `0.5`, `inf`: a float always shows a point, an exponent or a word, so that types survive the round
    trip.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(float(value))
    if "e" in text and "." not in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}.0e{exponent}"
    return text


def print_expr(expr: Expr) -> str:
    """One line of text; `parse_expr` reads it back to an equal expression."""
    return _print(expr, 0)


def _print(expr: Expr, outer: int) -> str:
    if isinstance(expr, Const):
        return print_const(expr.value)
    if isinstance(expr, Var):
        return expr.name
    if isinstance(expr, Read):
        return f"{expr.tensor}[{', '.join(_print(e, 0) for e in expr.index)}]"
    assert isinstance(expr, Call)
    info = OPS[expr.op]
    if info.infix:
        left = _print(expr.args[0], info.precedence)
        right = _print(expr.args[1], info.precedence + 1)
        text = f"{left} {info.infix} {right}"
        return f"({text})" if outer > info.precedence else text
    if expr.op == "neg":
        return (
            f"-{_print(expr.args[0], 90)}" if not isinstance(expr.args[0], Const) else f"neg({_print(expr.args[0], 0)})"
        )
    if expr.op == "not":
        return f"!{_print(expr.args[0], 90)}"
    return f"{expr.op}({', '.join(_print(a, 0) for a in expr.args)})"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if not match:
                raise ExprSyntaxError(text, position, "unexpected character")
            kind = match.lastgroup or ""
            self.tokens.append((kind, match.group(kind), match.start(kind)))
            position = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise ExprSyntaxError(self.text, len(self.text), f"expected {expected or 'more'}")
        kind, text, position = self.tokens[self.at]
        if expected is not None and text != expected:
            raise ExprSyntaxError(self.text, position, f"expected {expected!r}, found {text!r}")
        self.at += 1
        return kind, text

    def expression(self, minimum: int) -> Expr:
        left = self.unary()
        while self.peek() in _INFIX and _INFIX[self.peek()][1] >= minimum:
            name, precedence = _INFIX[self.take()[1]]
            left = Call(name, (left, self.expression(precedence + 1)))
        return left

    def unary(self) -> Expr:
        if self.peek() == "-":
            self.take()
            # A minus directly before a literal is the literal's sign; anything else is the operator.
            literal = self.at < len(self.tokens) and (self.tokens[self.at][0] == "num" or self.peek() in ("inf", "nan"))
            operand = self.unary()
            if literal and isinstance(operand, Const):
                return Const(-operand.value)
            return Call("neg", (operand,))
        if self.peek() == "!":
            self.take()
            return Call("not", (self.unary(),))
        return self.primary()

    def primary(self) -> Expr:
        kind, text = self.take()
        if text == "(":
            inner = self.expression(0)
            self.take(")")
            return inner
        if kind == "num":
            return Const(int(text)) if text.isdigit() else Const(float(text))
        words = {"true": Const(True), "false": Const(False), "inf": Const(math.inf), "nan": Const(math.nan)}
        if kind != "name":
            raise ExprSyntaxError(self.text, self.tokens[self.at - 1][2], f"unexpected {text!r}")
        if text in words:
            return words[text]
        if self.peek() == "[":
            return Read(text, self.arguments("[", "]"))
        if self.peek() == "(":
            if text not in OPS:
                raise ExprSyntaxError(self.text, self.tokens[self.at - 1][2], f"unknown operator {text!r}")
            return Call(text, self.arguments("(", ")"))
        return Var(text)

    def arguments(self, opening: str, closing: str) -> tuple[Expr, ...]:
        self.take(opening)
        items: list[Expr] = []
        while self.peek() != closing:
            items.append(self.expression(0))
            if self.peek() != closing:
                self.take(",")
        self.take(closing)
        return tuple(items)


def parse_expr(text: str) -> Expr:
    """Read the text form. Raises ExprSyntaxError with the column."""
    parser = _Parser(text)
    result = parser.expression(0)
    if parser.at != len(parser.tokens):
        raise ExprSyntaxError(text, parser.tokens[parser.at][2], "unexpected text")
    return result

"""What the user says of a call: a ``// cubridge:`` comment in the file, or answers to questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..compile.parameters import POINTER_DTYPES, SCRATCH_ROLES, STRUCT, Parameter, is_role
from ..compile.size_text import SIZES, evaluate_size
from ..diagnostics import Diagnostic, Span, make
from ..source import SourceFile
from .signature import Argument, Signature

_COMMENT = re.compile(rb"//[ \t]*cubridge:[ \t]*(?P<text>\w+[ \t]*=[^\n]*)")
_PAIR = re.compile(r"(?P<key>\w+)\s*=\s*(?P<value>(?:[^\s<]|<[^>]*>)+)")
_LAUNCH_WORDS = ("grid", "block", "shared", "instance", "dtype", "layout", "dim")
_SHORT = {"causal": "flag:causal"}  # a comment's word -> role


@dataclass(frozen=True, slots=True)
class Told:
    """Roles by parameter name, and the words of the launch, as they were said; where, and what is wrong in them."""

    roles: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    launch: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    where: str = ""
    span: Span | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def grid(self) -> tuple[str, str, str] | None:
        """The grid, as three size expressions."""
        parts = split(self.launch["grid"]) if "grid" in self.launch else []
        x, y, z = (*parts, "1", "1", "1")[:3]
        return (x, y, z) if parts else None

    @property
    def block(self) -> tuple[int, int, int] | None:
        """The block, as three numbers."""
        parts = split(self.launch["block"]) if "block" in self.launch else []
        x, y, z = (*map(int, parts), 1, 1, 1)[:3]
        return (x, y, z) if parts else None


def split(text: str) -> list[str]:
    """Parts at the commas outside parentheses."""
    parts, depth, current = [""], 0, 0
    for char in text:
        depth += {"(": 1, ")": -1, "<": 1, ">": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
            current += 1
        else:
            parts[current] += char
    return [part.strip() for part in parts if part.strip()]


def told_in_comments(source: SourceFile, kernel: Signature) -> Told:
    """The pairs of every ``// cubridge:`` comment of the file that begins with ``WORD=``. CB630 for a wrong one."""
    roles: dict[str, str] = {}
    launch: dict[str, str] = {}
    problems: list[Diagnostic] = []
    where, span = "", None
    names = {a.name for a in kernel.arguments}
    for match in _COMMENT.finditer(source.data):
        here = source.span_of(match.start(), match.end())
        for pair in _PAIR.finditer(match["text"].decode("utf-8", "replace")):
            key, value = pair["key"], pair["value"]
            if key == "kernel":
                continue
            role = _SHORT.get(key, key)
            reason = _wrong_launch(key, value) if key in _LAUNCH_WORDS else ""
            if key not in _LAUNCH_WORDS:
                reason = "" if is_role(role) else f"{key} is no role"
                reason = reason or ("" if value in names else f"{kernel.name} has no parameter {value}")
            if reason:
                problems.append(make("CB630", here, text=pair[0], reason=reason))
            elif key in _LAUNCH_WORDS:
                launch[key] = value
            else:
                roles[value] = role
            where, span = where or f"comment at line {here.line + 1}", span or here
    return Told(roles, launch, where, span, tuple(problems))


def told_in_answers(answers: Mapping[str, str], kernel: Signature) -> Told:
    """Answers by ``Question.key``: ``{"x": "lse", "grid": "cdiv(Sq, 64),H,B"}``. CB631 for a wrong one."""
    roles: dict[str, str] = {}
    launch: dict[str, str] = {}
    problems: list[Diagnostic] = []
    names = {a.name for a in kernel.arguments}
    for key, value in answers.items():
        role = _SHORT.get(value, value)
        if key == "kernel":
            continue
        if key in _LAUNCH_WORDS and key not in names:
            reason = _wrong_launch(key, value)
            launch |= {} if reason else {key: value}
        elif key not in names:
            reason = f"{kernel.name} has no parameter {key}"
        else:
            reason = "" if is_told_role(role) else f"{value} is no role and no value"
            roles |= {} if reason else {key: role}
        if reason:
            problems.append(make("CB631", kernel.span, text=f"{key}={value}", reason=reason))
    return Told(roles, launch, "answered" if roles or launch else "", None, tuple(problems))


def is_told_role(text: str) -> bool:
    """A role, ``null``, ``scratch:ELEMENTS``, or a number or size expression as a value."""
    head, _, rest = text.partition(":")
    return is_role(text) or text == "null" or (head in SCRATCH_ROLES and _is_size(rest)) or _is_size(text)


def _is_size(text: str) -> bool:
    try:
        evaluate_size(text, dict.fromkeys(SIZES, 2))
    except (ValueError, ZeroDivisionError):
        return re.fullmatch(r"-?\d+\.\d*", text) is not None
    return True


def _wrong_launch(key: str, value: str) -> str:
    if key == "grid":
        wrong = next((part for part in split(value) if not _is_size(part)), "")
        return f"{wrong!r} is no size expression" if wrong else ""
    if key in ("block", "dim"):
        return "" if all(part.isdigit() for part in split(value)) else f"{value!r} is no list of numbers"
    if key == "shared":
        return "" if _is_size(value) else f"{value!r} is no size expression"
    allowed = {"dtype": ("float16", "bfloat16", "float32"), "layout": ("bhsd", "bshd")}.get(key)
    return "" if allowed is None or value in allowed else f"{value!r} is not one of {', '.join(allowed)}"


def parameter_told(argument: Argument, role: str) -> Parameter | None:
    """The parameter that a told role makes of an argument; None where its type does not allow it."""
    pointer = argument.kind in POINTER_DTYPES
    head, _, rest = role.partition(":")
    if role == "null":
        return Parameter(argument.name, f"operand:{argument.name}", argument.kind, optional=True) if pointer else None
    if head in SCRATCH_ROLES and rest:
        return Parameter(argument.name, head, _held(argument), elements=rest) if pointer else None
    if not is_role(role):
        return Parameter(argument.name, "value", argument.kind, value=role) if not pointer else None
    wants = role in ("q", "k", "v", "o", "lse") or role.startswith("operand:")
    if argument.kind == STRUCT or wants != pointer:
        return None
    return Parameter(argument.name, role, argument.kind)


def _held(argument: Argument) -> str:
    return argument.kind if argument.kind != "T*" else "float*"

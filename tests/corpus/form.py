"""One form: a harness around an attention of a package (or of ours), and the spec file made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

HERE = Path(__file__).parent
SIZES = {"B": 2, "H": 4, "Hkv": 4, "Sq": 40, "Sk": 40, "D": 32}

_HEAD = '''\
"""{name} ({package}): {family}."""
import math
import sys

sys.path[:0] = [{site!r}, {here!r}]
import torch
import torch.nn.functional as F
from corpus_support import *
from torch import nn

torch.manual_seed(0)
'''
_TAIL = """

def inputs({sizes}, seed=1):
    draw = Draw(seed)
    randn, positive, keep, additive = draw.randn, draw.positive, draw.keep, draw.additive
    lengths, ids, numbers = draw.lengths, draw.ids, draw.numbers
    q, k, v = randn(B, H, Sq, D), randn(B, Hkv, Sk, D), randn(B, Hkv, Sk, D)
    return ({inputs},)


def example_inputs():
    return inputs()
"""


@dataclass(frozen=True, slots=True)
class Form:
    """A harness. `fused` is our judgement before any reading: can one fused attention kernel compute this exactly
    (projections around it staying outside)? `why` says why not, or why it is hard.

    `body` defines `attention`, `inputs` is the tuple of its arguments in terms of B, H, Hkv, Sq, Sk, D, q, k, v and the
    methods of `Draw`. `fast` forms are the third that CI runs.
    """

    name: str
    family: str
    package: str
    body: str
    inputs: str = "q, k, v"
    fused: bool = True
    why: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    fast: bool = False

    @property
    def first_line(self) -> int:
        """The number of the line before the body's first, in the file."""
        return _HEAD.count("\n")

    def text(self, site: str) -> str:
        """The spec file, with the packages' folder `site` on its path."""
        sizes = ", ".join(f"{n}={v}" for n, v in {**SIZES, **self.sizes}.items())
        head = _HEAD.format(name=self.name, package=self.package, family=self.family, site=site, here=str(HERE))
        return head + dedent(self.body).strip("\n") + "\n" + _TAIL.format(sizes=sizes, inputs=self.inputs)

    def line_of(self, number: int) -> str:
        """The body's line that has this number (from 1) in the file; empty outside the body."""
        rows = dedent(self.body).strip("\n").splitlines()
        at = number - self.first_line - 1
        return rows[at].strip() if 0 <= at < len(rows) else ""

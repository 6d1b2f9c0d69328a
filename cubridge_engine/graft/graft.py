"""Grafting: a kernel that no reading understands, adapted to a spec at the places where it was seen to hold its scores.

The kernel is compiled and watched; probes in a copy of its files show which variable holds each score, and where i and
j come from; the change is put there. What says that it is right is the gate alone: the changed text in the simulator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..compile import Contract
from ..compile.search import Build, project_root
from ..diagnostics import Diagnostic, Severity, Span, make
from ..simulate import load
from ..simulate.calling import prepare_call
from ..source import read_bytes
from ..verify.stages import Stages
from ..watch import Watched, watch
from ..watch.problem import choose_problem
from .build import Builder, Built
from .look import Base, Runs, observe, sites_of, span_of
from .model import Place, Refused, RowSite, Site
from .places import find_places
from .rows import find_rows, row_site
from .text import Text

_LIBRARIES = frozenset({"cutlass", "cute", "third_party", "3rdparty"})  # folders of a project that are not its own
_MASKS = {"full": False, "causal": False, "causal bottom-right": True}


@dataclass(frozen=True, slots=True)
class Understood:
    """A kernel that was watched, and the sites at which it can be changed."""

    builder: Builder
    built: Built
    watched: Watched
    texts: Mapping[Path, Text]
    sites: tuple[Site, ...]
    base: Base
    row: RowSite | None = None  # where a sink joins, if that was asked for

    def note(self) -> Diagnostic:
        """What is observed, in a sentence."""
        problem, function = self.watched.problem, self.watched.function
        assert problem is not None
        assert function is not None
        sizes = ", ".join(f"{n}={v}" for n, v in problem.sizes.items())
        first = self.sites[0].place
        span = span_of(first, self.texts)
        count = f"{sum(s.scores for s in self.sites):,}".replace(",", " ")
        return make("CB435", span, problem=sizes, function=f"it computes {function.name}", count=count)


def understand(
    contract: Contract, path: Path, arch: str, stages: Stages, sink: bool = False, build: Build | None = None
) -> Understood:
    """Compile, watch, and look at the kernel of a contract in the file at `path`; with `sink` also for the place where
    one joins. `build`: settings of its project that are not found beside it. Raises Refused.
    """
    path = Path(os.path.realpath(path))
    builder = Builder(contract, path, arch, build or Build())
    with stages.run("watch") as stage:
        try:
            built, watched = _watched(builder, stages)
            base = _base(contract, watched)
        except Refused as refused:
            stage.fail(refused.diagnostics[0].message)
            raise
    with stages.run("places") as stage:
        try:
            texts = project_texts(watched, path)
            rows = find_rows(watched, texts) if sink else []
            sites, runs = _sites(builder, watched, texts, base, rows)
            row = row_site(runs, rows, contract, base) if sink else None
        except Refused as refused:
            stage.fail(refused.diagnostics[0].message)
            raise
    return Understood(builder, built, watched, texts, sites, base, row)


def _watched(builder: Builder, stages: Stages) -> tuple[Built, Watched]:
    contract, instance = builder.contract, builder.contract.instances[0]
    stages.tick("watch", 0, 10, "compile")
    built = builder.compile({})
    errors = [d for d in built.compiled.diagnostics if d.severity is Severity.ERROR]
    if built.compiled.ptx is None or errors:
        why = errors[0].message if errors else "the compiler gave no PTX"
        raise Refused(make("CB430", None, why=why), *errors)
    module = load(built.compiled.ptx)
    kernel = built.compiled.lowered.get(instance.expression)
    if kernel is None:
        raise Refused(make("CB430", None, why=f"{instance.expression} is not among what was compiled"))
    unknown = module.diagnostics or module.kernel(kernel).unsupported
    problem = choose_problem(contract, instance)
    if unknown or problem is None:
        why = unknown[0].message if unknown else "no small problem is what its contract requires"
        raise Refused(make("CB430", None, why=why))
    tensors = {"q": problem.q, "k": problem.k, "v": problem.v}
    values = {"scale": problem.scale, "causal": int(problem.causal)}
    call = prepare_call(contract, instance, problem.sizes, tensors, values)
    watched = watch(
        module, kernel, call, problem, path=str(builder.path), arch=builder.arch, bc=contract.bc,
        progress=lambda what, part: stages.tick("watch", (1 if what == "simulate" else 5) + 4 * part, 10, what),
    )  # fmt: skip
    if not watched.ran:
        said = [d.message for d in (*watched.diagnostics, *call.diagnostics)]
        raise Refused(make("CB430", None, why=said[0] if said else "it did not run"))
    return built, watched


def _base(contract: Contract, watched: Watched) -> Base:
    function, problem = watched.function, watched.problem
    span = Span(watched.path, 0, 0, 0, 0, 0, 0)
    if function is None or problem is None:
        raise Refused(make("CB431", span, what="none of the functions that are known here"))
    if function.weights != "softmax" or function.mask not in _MASKS or function.scale != problem.scale:
        raise Refused(make("CB431", span, what=function.name))
    flag = any(p.role == "flag:causal" for p in contract.leaves)
    return Base("full" if flag else function.mask, False)


def project_texts(watched: Watched, path: Path) -> dict[Path, Text]:
    """The kernel's file and those files of its project that its instructions come from. Raises Refused."""
    root = project_root(path)
    own = {path} | {Path(frame.path) for site in watched.sites for frame in site.chain}
    texts: dict[Path, Text] = {}
    for file in own:
        real = Path(os.path.realpath(file))
        if root not in real.parents or _LIBRARIES & set(real.relative_to(root).parts) or not real.is_file():
            continue
        texts[real] = Text(read_bytes(str(real)))
    for folder in {p.parent for p in texts}:  # a struct that is passed is declared in a header without code
        for header in sorted((*folder.glob("*.h"), *folder.glob("*.cuh"))):
            texts.setdefault(Path(os.path.realpath(header)), Text(header.read_bytes()))
    if not texts:
        raise Refused(make("CB437", None, why="all of its lines are in headers of a library"))
    return texts


def _sites(
    builder: Builder, watched: Watched, texts: Mapping[Path, Text], base: Base, rows: Sequence[Place]
) -> tuple[tuple[Site, ...], Runs]:
    """Behind the products themselves, else behind any step that holds scores; and what was seen, of `rows` too."""

    def looked(places: Sequence[Place]) -> tuple[tuple[Site, ...], Runs]:
        runs = observe(builder, [*places, *(r for r in rows if r not in places)], texts, base)
        return sites_of(runs, places, builder.contract, texts, base), runs

    first = find_places(watched, texts, spread=False)
    if first:
        try:
            return looked(first)
        except Refused as refused:
            kept = refused
    else:
        kept = Refused(make("CB432", None, why="no line makes scores and nothing else"))
    more: list[Place] = [p for p in find_places(watched, texts, spread=True) if p not in first]
    if not more:
        raise kept
    return looked([*first, *more])

"""A function with an attention inside, as a spec of its own: the core is a `Program`, its rest is run around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ir.expr import Read, rebuild
from .cut import descendants, find_cores
from .cut_graph import CutGraph, Namer
from .elements import Refused
from .interpret import place, run, unplace
from .leaves import elements_in
from .lengths import Axis, FreeLength, Multilinear, Point, fake_arguments, free_lengths, multilinear, points, shapes_at
from .merge import Merges
from .paging import page_axes, paging_of
from .program import Program
from .recognise import Template
from .trace import Graph, Line, trace
from .unify import NotUnified

Values = tuple[int, ...]


@dataclass
class Trace:
    """The function at some lengths: its graph, and a cut for each attention in it."""

    graph: Graph
    cuts: list[CutGraph]


@dataclass
class Whole:
    """The user's function and its traces, by the values of its free lengths."""

    program: Program
    lengths: tuple[FreeLength, ...]
    namer: Namer
    dropped: tuple[Line | None, ...] = ()  # the lines of outputs that are attention weights, and left out
    graphs: dict[object, Graph] = field(default_factory=dict[object, Graph])  # by outputs and shapes of the arguments
    merges: dict[object, Merges] = field(default_factory=dict[object, Merges])  # by outputs
    traces: dict[Values, Trace] = field(default_factory=dict[Values, Trace])
    readings: dict[Values, tuple[Trace, list[Template]]] = field(
        default_factory=dict[Values, "tuple[Trace, list[Template]]"]
    )

    @property
    def base(self) -> Values:
        """The lengths of the example."""
        return tuple(f.base for f in self.lengths)

    @property
    def model(self) -> Values:
        """Lengths none of which is 1, so that every axis shows in the graph: where the cut is chosen."""
        return tuple(f.base if f.base > 1 else 3 for f in self.lengths)

    def near(self, point: Point) -> Values:
        """The model's lengths, those of `point` longer by one."""
        return tuple(v + (n in point) for n, v in enumerate(self.model))

    def graph(self, values: Values) -> Graph:
        """The function traced at these lengths. Raises what the user's code or the tracer raises."""
        program = self.program
        key = (program.outputs, tuple(shapes_at(program, self.lengths, values)))
        if key not in self.graphs:
            graph = trace(
                lambda *t: program.call(t),
                program.path,
                program.tensor_names,
                fake_arguments(program, self.lengths, values),
                module=program.module,
                layers=True,
                flex=program.flex,
                memory=program.memory,
            )
            self.merges.setdefault(program.outputs, Merges()).apply(graph)
            self.graphs[key] = graph
        return self.graphs[key]

    def read(self, values: Values) -> tuple[Trace, list[Template]]:
        """What the cores compute, read at these lengths (none should be 1). Raises Refused too."""
        if values not in self.readings:
            graph = self.graph(values)
            cuts = [CutGraph(graph, core, self.namer) for core in find_cores(graph)]
            chosen = [c.choice for c in self.readings[self.model][0].cuts] if self.readings else [None] * len(cuts)
            if len(chosen) != len(cuts):
                raise NotUnified("another number of attentions at other sizes")
            templates = [cut.recognise(n) for cut, n in zip(cuts, chosen, strict=True)]
            self.readings[values] = Trace(graph, cuts), templates
        return self.readings[values]

    def at(self, values: Values) -> Trace:
        """The cuts at any lengths: the nodes that correspond to those chosen at the model's. Raises NotUnified too."""
        if values not in self.traces:
            graph = self.graph(values)
            model = self.read(self.model)[0]
            extents = {p: self.read(self.near(p))[0].cuts for p in points(len(self.lengths))}
            cuts = [
                cut.moved(graph, lambda name, g, n=n: self._inner(extents, n, name, g, values))
                for n, cut in enumerate(model.cuts)
            ]
            self.traces[values] = Trace(graph, cuts)
        return self.traces[values]

    def _inner(
        self, cuts: Mapping[Point, Sequence[CutGraph]], number: int, name: str, group: int, values: Values
    ) -> int:
        """The extent of a leaf's inner axis at these lengths, from what it is near the model's."""
        at: dict[Point, int] = {}
        for point, found in cuts.items():
            leaf = found[number].leaf(name)
            groups = leaf.groups if leaf is not None else None
            if groups is None or group >= len(groups):
                raise NotUnified("its inputs have another layout at other sizes")
            at[point] = groups[group].inner
        return multilinear(self.model, at).at(values)


@dataclass
class Core:
    """The first attention of a function as a program of its own: q, k, v and the operands are its arguments."""

    whole: Whole
    forms: dict[str, Multilinear]  # core size -> what it is, by the free lengths
    example_sizes: dict[str, int]
    known: dict[tuple[int, ...], Values] = field(default_factory=dict[tuple[int, ...], Values])

    @property
    def template(self) -> Template:
        """What the core computes at the model's lengths."""
        return self.whole.read(self.whole.model)[1][0]

    def sizes_at(self, values: Values) -> dict[str, int]:
        """The core's sizes where the free lengths have these values."""
        sizes = {name: form.at(values) for name, form in self.forms.items()}
        self.known[tuple(sizes[n] for n in sorted(sizes))] = values
        return sizes

    def slope(self, name: str, length: int) -> int:
        """How much a size grows with one more of a free length, at the example's."""
        base = self.whole.base
        return self.forms[name].at((*base[:length], base[length] + 1, *base[length + 1 :])) - self.forms[name].at(base)

    def with_tables(self, values: Sequence[int]) -> Values:
        """The values, those of lengths that are no size of the attention corrected: a table has as many rows as in the
        example, or ``2 * row + constant`` where it is one by distance there.
        """
        base, found = self.whole.base, list(values)
        rows = [n for n in range(len(base)) if self.slope("Sq", n) or self.slope("Sk", n)]
        for n in range(len(base)):
            if any(self.slope(size, n) for size in self.forms):
                continue
            of = next((row for row in rows if abs(base[n] - 2 * base[row]) <= 1), None)
            found[n] = base[n] if of is None else 2 * found[of] + base[n] - 2 * base[of]
        return tuple(found)

    def sizes_of(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The core's sizes, from its arguments."""
        names = self.whole.read(self.whole.model)[0].cuts[0].names
        return sizes_from(self.template, names, [tuple(int(n) for n in t.shape) for t in inputs])

    def lengths_for(self, sizes: Mapping[str, int]) -> Values:
        """Values of the free lengths that give the core these sizes. Raises NotUnified where none do."""
        known = self.known.get(tuple(sizes.get(n, 0) for n in sorted(self.forms)))
        if known is not None:
            return known
        values = list(self.whole.base)
        settled: set[int] = set()
        for name in ("B", "H", "Sq", "Sk"):
            missing = sizes[name] - self.forms[name].at(values)
            free = [n for n in range(len(values)) if self.slope(name, n) and n not in settled]
            if missing and free:
                values[free[0]] += missing // self.slope(name, free[0])
            settled.update(free)
        values = self.with_tables(values)
        have = self.sizes_at(values)
        wrong = [n for n in have if sizes.get(n, 0) != have[n]]
        if wrong or min(values, default=1) < 1:
            said = ", ".join(f"{n} = {have[n]}" for n in wrong)
            raise NotUnified(f"the function around the attention gives {said or 'no such sizes'}")
        return values

    def at(self, sizes: Mapping[str, int]) -> Trace:
        """The function traced where its core has these sizes. Raises NotUnified, and what tracing raises."""
        return self.whole.at(self.lengths_for(sizes))

    def prepare(self, tensors: Sequence[Any]) -> None:
        """Trace at these sizes now, outside of whatever mode the call will run in."""
        self.at(self.sizes_of(tensors))

    def call(self, *tensors: Any) -> Any:
        """The core on these tensors."""
        cut = self.at(self.sizes_of(tensors)).cuts[0]
        outputs = run(cut, cut.outputs, given_values(cut, tensors))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def sizes_from(template: Template, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """B, H, Hkv, Sq, Sk, D, Dv, read from the shapes of the core's arguments."""
    sizes = dict(template.sizes)
    tables = {
        "q": {"b": "B", "h": "H", "i": "Sq", "d": "D"},
        "k": {"b": "B", "hk": "Hkv", "j": "Sk", "d": "D"},
        "v": {"d": "Dv"},
    }
    for role, table in tables.items():
        name = template.roles[role]
        for axis, extent in zip(template.axes[name], shapes[names.index(name)], strict=True):
            if axis in table:
                sizes[table[axis]] = extent
    return sizes


def given_values(cut: CutGraph, tensors: Sequence[Any]) -> dict[Any, Any]:
    """Values of the leaves' nodes, from the core's arguments in the order of ``cut.names``."""
    given: dict[Any, Any] = {}
    placeholders = {cut.whole.input_name(n): n for n in cut.nodes if n.op == "placeholder"}
    for name, tensor in zip(cut.names, tensors, strict=True):
        leaf = cut.leaf(name)
        if leaf is None:
            given[placeholders[name]] = tensor
        else:
            given[leaf.node] = unplace(leaf, tensor)
    return given


def arguments_of(whole: Graph, tensors: Sequence[Any]) -> dict[Any, Any]:
    """Values of the placeholders of the whole graph, from the function's tensors."""
    nodes = [n for n in whole.nodes if n.op == "placeholder" and whole.input_name(n) in whole.names]
    return dict(zip(nodes, tensors, strict=True))


def leaf_values(cut: CutGraph, known: Mapping[Any, Any]) -> list[Any]:
    """The core's arguments, in the order of ``cut.names``, computed from values of other nodes."""
    placeholders = {cut.whole.input_name(n): n for n in cut.nodes if n.op == "placeholder"}
    leaves = [cut.leaf(name) for name in cut.names]
    nodes = [placeholders[name] if x is None else x.node for name, x in zip(cut.names, leaves, strict=True)]
    values = run(cut.whole, nodes, known)
    return [v if x is None else place(x, v) for v, x in zip(values, leaves, strict=True)]


def find_core(program: Program) -> tuple[Core, Program]:
    """The core of a function, and the same as a program. Raises Refused, and what the user's code raises."""
    import torch

    whole = _of_fixed_width(_without_weights(Whole(program, free_lengths(program), Namer(program.source))))
    whole = _of_fixed_pages(whole)
    model, templates = whole.read(whole.model)
    _same_templates(model, templates)
    example = whole.at(whole.base)
    cut = example.cuts[0]
    with torch.no_grad():
        tensors = leaf_values(cut, arguments_of(example.graph, program.example))
    sizes = {p: whole.read(whole.near(p))[1][0].sizes for p in points(len(whole.lengths))}
    forms = {name: multilinear(whole.model, {p: s[name] for p, s in sizes.items()}) for name in templates[0].sizes}
    shapes = [tuple(int(n) for n in t.shape) for t in tensors]
    core = Core(whole, forms, sizes_from(templates[0], cut.names, shapes))
    made = replace(
        program,
        function=core.call,
        names=tuple(cut.names),
        arguments=tuple(tensors),
        module=None,
        prepare=core.prepare,
    )
    return core, made


def _without_weights(whole: Whole) -> Whole:
    """The function without those outputs that are scores or weights, as far as nobody asked for them."""
    program = whole.program
    graph = whole.graph(whole.model)
    cores = find_cores(graph)
    weights: list[int] = []
    for n, node in enumerate(graph.outputs if program.outputs is None else ()):
        for core in cores:
            own = node in core.inside and node not in descendants(core.sum)
            if own and elements_in(node) * 64 > elements_in(core.scores):  # more than one number for each row
                weights.append(n)
    kept = tuple(n for n in range(len(graph.outputs)) if n not in weights)
    if not weights or not kept:
        return whole
    lines = tuple(graph.line(graph.outputs[n]) for n in weights)
    return Whole(replace(program, outputs=kept), whole.lengths, whole.namer, lines, whole.graphs, whole.merges)


def _of_fixed_width(whole: Whole) -> Whole:
    """The function without the free lengths that D or Dv follow. A scale such as 1/sqrt(D) is read as the number it is
    in the example: at another D, it could only be taken for another size that happens to be equal.
    """
    widths = [whole.read(whole.model)[1][0].sizes[name] for name in ("D", "Dv")]
    kept = tuple(
        length
        for n, length in enumerate(whole.lengths)
        if [whole.read(whole.near(frozenset((n,))))[1][0].sizes[name] for name in ("D", "Dv")] == widths
    )
    return whole if len(kept) == len(whole.lengths) else _with_lengths(whole, kept)


def _with_lengths(whole: Whole, kept: tuple[FreeLength, ...]) -> Whole:
    """The same function with fewer free lengths."""
    program = replace(whole.program, outputs=None) if whole.dropped else whole.program
    return _without_weights(Whole(program, kept, whole.namer, graphs=whole.graphs, merges=whole.merges))


def _of_fixed_pages(whole: Whole) -> Whole:
    """The function without the free lengths that are the rows of a page: a kernel is made for one page size."""
    found, templates = whole.read(whole.model)
    paging = paging_of(found.cuts[0], templates[0])
    fixed = set[Axis]() if paging is None else page_axes(found.cuts[0], paging)
    kept = tuple(length for length in whole.lengths if not fixed & set(length.axes))
    return whole if len(kept) == len(whole.lengths) else _with_lengths(whole, kept)


def _same_templates(found: Trace, templates: Sequence[Template]) -> None:
    """Several attentions are one kernel called several times only when they compute the same."""
    first = _anonymous(templates[0], found.cuts[0].names)
    for other, cut in zip(templates[1:], found.cuts[1:], strict=True):
        if _anonymous(other, cut.names) != first:
            raise Refused("CB233", cut.line(cut.core.sum), reason="they differ in their scores or masks")


def _anonymous(t: Template, names: Sequence[str]) -> object:
    """A template without the names of its tensors."""
    order = {name: f"t{n}" for n, name in enumerate(names)}

    def anonymous(e: Any) -> Any:
        if isinstance(e, Read):
            return Read(order[e.tensor], tuple(anonymous(x) for x in e.index))
        return rebuild(e, anonymous)

    parts = (t.head_map, t.score, t.mask, t.fill, t.sink, t.divisor)
    sizes = {n: v for n, v in t.sizes.items() if n not in ("B", "Sq", "Sk")}
    axes = tuple(t.axes[n] for n in names)
    return tuple(None if p is None else anonymous(p) for p in parts), t.normaliser, sizes, axes, t.outputs

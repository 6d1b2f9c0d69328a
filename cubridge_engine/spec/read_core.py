"""Reading a function in which the attention is a part: its core as a spec of its own, and the whole checked with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..diagnostics import Diagnostic, make
from .attention import Attention, Cut, Paging, TensorInput
from .check_whole import check_whole
from .core import Core, find_core
from .core_plans import core_plans
from .cut import ancestors
from .cut_graph import CutGraph, node_line
from .elements import Elements, Refused
from .inputs import make_inputs
from .paging import paging_of
from .program import Program, SpecError, brief
from .read import Reader, outputs_text
from .recognise import Template
from .reference import reference
from .sizes import Plan, numbers_of, reach_of
from .trace import Graph
from .unify import NotUnified

# Modules are full of numbers; a larger one than this is a base of frequencies or the size of a vocabulary.
_LONGEST_BRANCH = 4096


def read_core(program: Program, head_dim: int | None, refusal: SpecError) -> tuple[Attention, Program, Core]:
    """The attention inside `program`, with the core as the program it is checked against.

    `refusal` is why the function as a whole is no attention: it is raised where no core is found either, since it
    speaks of what the user sees. Raises SpecError.
    """
    outer = Reader(program, None)
    try:
        core, inner = find_core(program)
    except Refused as refused:
        # A plain function is told what it does wrong as an attention; a module, why there is none in it.
        if program.module is None or (refused.code == "CB228" and refusal.diagnostic.code != "CB232"):
            raise refusal from None
        raise outer.refuse(refused) from None
    except Exception as error:
        raise refusal from error
    reader = CoreReader(inner, head_dim, core)
    have = core.template.sizes["D"]
    if head_dim is not None and head_dim != have:
        raise SpecError(make("CB239", outer.span(program.line), have=have, want=head_dim))
    attention = reader.read()
    problem = check_whole(core, attention)
    if problem is not None:
        raise SpecError(make("CB242", outer.span(program.line), sizes=problem.sizes, reason=problem.reason))
    return attention, inner, core


class CoreReader(Reader):
    """Reads the core: graphs come from the traces of the whole function."""

    def __init__(self, program: Program, head_dim: int | None, core: Core) -> None:
        super().__init__(program, head_dim)
        self.core = core

    def graph(self, inputs: list[Any]) -> Graph:
        """The core, at the lengths where the cut was chosen."""
        return self.core.whole.read(self.core.whole.model)[0].cuts[0]

    def plans(self, first: Template) -> Iterator[Plan]:
        """Sizes that the function gives its core."""
        module = self.core.whole.program.module
        weights = () if module is None else (*module.parameters(), *module.buffers())
        widths = {int(n) for w in weights for n in w.shape}
        widths |= {int(n) for t in self.core.whole.program.example for n in t.shape[2:]}
        # Without the widths of layers, and without bases of frequencies: no length that anything branches on.
        numbers = [n for n in numbers_of(self.program) if n not in widths and n <= _LONGEST_BRANCH]
        return core_plans(self.core, reach_of(first), numbers)

    def recognise(self, graph: Graph) -> tuple[Elements, Template]:
        """What was read there, with the sizes of the example."""
        assert isinstance(graph, CutGraph)
        return graph.elements, replace(self.core.template, sizes=self.core.example_sizes)

    def reading(self, skeleton: Attention, sizes: Mapping[str, int]) -> Template:
        """What the core computes at these sizes. Raises NotUnified where the function around it never has them."""
        return replace(self.core.whole.read(self.core.lengths_for(sizes))[1][0])

    def skeleton(self, graph: Graph, t: Template, lines: Any) -> Attention:
        """The layouts of the core, and where its inputs are computed."""
        assert isinstance(graph, CutGraph)
        plain = super().skeleton(graph, t, lines)
        inputs = tuple(replace(item, computed=_computed(graph, item)) for item in plain.inputs)
        paging = self.paging(graph, t)
        return replace(plain, inputs=inputs, cut=_cut(self.core, ("k", "v") if paging else ()), paging=paging)

    def paging(self, graph: CutGraph, t: Template) -> Paging | None:
        """Where k and v lie, if in pages. Raises SpecError for a table that only torch understands."""
        found = paging_of(graph, t)
        if found is None:
            return None
        program = self.core.whole.program
        table = program.example[program.tensor_names.index(found.table)]
        if bool((table < 0).any()):
            line = graph.use_line(t.roles["k"])
            raise SpecError(make("CB258", self.span(line or program.line), table=found.table))
        names = self.program.tensor_names
        copied = sum(self.program.example[names.index(t.roles[role])].nbytes for role in "kv")
        return replace(found, dtype=str(table.dtype).removeprefix("torch."), bytes=copied)

    def at_plan(self, skeleton: Attention, plan: Plan, first: Template) -> Attention:
        """As for any reading; an operand's own sizes are those at the lengths of the plan."""
        found = [self.reading(skeleton, sizes) for sizes in plan.read_at]
        inputs = tuple(replace(item, axes=found[0].axes.get(item.name, ())) for item in skeleton.inputs)
        if any(t.axes.get(item.name) != item.axes for t in found for item in inputs):
            raise NotUnified("the size of an operand depends on the lengths in a way of its own")
        attention = super().at_plan(replace(skeleton, inputs=inputs), plan, first)
        for name, end in attention.table_ends:
            if not plan.longest and name not in plan.fixed:
                # Tracing looks up no data; only a run says that the table ends there.
                beyond = {**plan.check_at[0], "Sq": end + 1, "Sk": end + 1}
                try:
                    reference(self.program, make_inputs(attention, beyond))
                except IndexError:
                    raise IndexError(f"what {name} is looked up in has {end} entries") from None
        return attention

    def annotate(self, attention: Attention, plan: Plan, graph: Graph, failure: Exception | None) -> Attention:
        """The notes of any reading, and what is passed to the kernel."""
        noted = super().annotate(attention, plan, graph, failure)
        notes = self.notes(attention)
        if self.core.whole.dropped:
            where = self.span(self.core.whole.dropped[0])
            notes.insert(0, make("CB236", where, kept=outputs_text(self.core.whole.program)))
        if plan.longest and failure is not None:
            notes.insert(0, make("CB246", self.span(self.program.line), longest=plan.longest, reason=brief(failure)))
        return replace(noted, diagnostics=(*noted.diagnostics, *notes))

    def why_fixed(self, plan: Plan, failure: Exception | None) -> str:
        """Head counts are those of the weights; tensors without an axis of heads have one head."""
        if plan.fixed.keys() <= {"H", "Hkv"}:
            one = set(plan.fixed.values()) == {1} and self.core.whole.program.module is None
            if one and "H" not in plan.fixed:
                return "all heads read the same keys"
            if not one and self.core.whole.program.module is None:
                return "the example has this many heads, and no other number was found to work"
            return "q, k and v have no axis of heads" if one else "the weights of the module have this many heads"
        return super().why_fixed(plan, failure)

    def notes(self, attention: Attention) -> list[Diagnostic]:
        """CB235 for what is computed before, CB237 for each operand among it."""
        pages = attention.paging
        computed = [i for i in attention.inputs if i.computed and (pages is None or i.role not in ("k", "v"))]
        notes: list[Diagnostic] = []
        if pages is not None:
            k, v, table, size = pages.k, pages.v, pages.table, pages.size
            notes.append(make("CB257", attention.input("k").span, k=k, v=v, table=table, size=size, bytes=pages.bytes))
        if computed:
            what = ", ".join(f"{item.name} ({item.computed.split(':')[0]})" for item in computed)
            notes.append(make("CB235", computed[0].span, what=what))
        for item, tensor in zip(attention.inputs, self.program.example, strict=True):
            if item.computed and item.role == "operand":
                size = tensor.numel() * tensor.element_size()
                axes = ", ".join(item.axes)
                notes.append(make("CB237", item.span, name=item.name, bytes=size, axes=axes, what=item.computed))
        return notes


def _computed(graph: CutGraph, item: TensorInput) -> str:
    leaf = graph.leaf(item.name)
    return leaf.what if leaf is not None else ""


def _cut(core: Core, in_place: Sequence[str]) -> Cut:
    """What stays around the core; roles `in_place` are not computed at all."""
    found = core.whole.read(core.whole.model)[0]
    before: set[Any] = set()
    after: set[Any] = set()
    for cut in found.cuts:
        before |= ancestors([leaf.node for leaf in cut.leaves.values() if leaf.role not in in_place])
        after |= set(_following(cut))
    return Cut(len(found.cuts), _lines(found.graph, before - after), _lines(found.graph, after))


def _following(cut: CutGraph) -> list[Any]:
    found: list[Any] = []
    todo = list(cut.outputs)
    while todo:
        node = todo.pop()
        for user in node.users:
            if user.op == "call_function" and user not in found:
                found.append(user)
                todo.append(user)
    return found


def _lines(graph: Graph, nodes: Iterable[Any]) -> tuple[int, ...]:
    found = {line[0] - 1 for n in nodes if n.op == "call_function" and (line := node_line(graph, n))}
    return tuple(sorted(found))

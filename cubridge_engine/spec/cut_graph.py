"""A traced graph seen from its core: the leaves are the inputs, the weighted sum is the output."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..ir.expr import Const, Expr, Read, rebuild
from .cut import FUSED, PRODUCTS, Core, check_complete
from .elements import NEVER, Elements, Index, Refused
from .leaves import Leaf, alike, complexity, elements_in, is_formula_of_reads, is_nested, leaves_of
from .merge_make import Places
from .nodes import Cat, walk
from .recognise import Template, recognise
from .rules import RULES
from .trace import Graph, Line
from .unify import NotUnified

# Results that a score does not compute for itself: sums over an axis, products, anything that mixes elements.
_WHOLE = frozenset(PRODUCTS) | frozenset(
    [
        "convolution",
        "sum",
        "mean",
        "amax",
        "any",
        "all",
        "max",
        "min",
        "var",
        "prod",
        "_softmax",
        "_log_softmax",
        "logsumexp",
        "linalg_vector_norm",
    ]
)
# Letters that mean something in scores and masks: `s[i]` beside the score s would be misread.
_TAKEN = frozenset(("q", "k", "v", "s", "l", "b", "h", "hk", "i", "j", "d"))
_LONGEST_CHOICE = 4  # a list of numbers longer than this is a table, not a chain of selections


class CutGraph(Graph):
    """`whole` read from `core`. `leaves` are by node; `names` those of q, k, v first, then operands as they are met."""

    def __init__(self, whole: Graph, core: Core, namer: Namer) -> None:
        self.__dict__.update(whole.__dict__)
        self.whole = whole
        self.core = core
        self.namer = namer
        self._input = dict(whole._input)  # pyright: ignore[reportPrivateUsage]
        self.input_shapes = dict(whole.input_shapes)
        self.types = dict(whole.types)
        self.names = []
        self.leaves: dict[Any, Leaf] = {}
        self._add_products()
        own = {leaf.node: frozenset((leaf.name,)) for leaf in self.leaves.values()}
        self._dependence = {}
        for node in self.nodes:
            inner = frozenset((self._input[node],)) if node in self._input else frozenset[str]()
            found = inner.union(*(self._dependence[n] for n in node.all_input_nodes))
            self._dependence[node] = own.get(node, found)
        self.qkv_like = frozenset(leaf.name for leaf in self.leaves.values())
        self.outputs = []
        self.choice = 0

    def _add_products(self) -> None:
        core = self.core
        fused = self.op_name(core.scores) == FUSED
        of_k = (-2, -1) if fused else (-1, -2)
        of_v = (-1, -2) if core.value_is_left else (-2, -1)
        choices = [
            leaves_of(self, core.q_like, -2, -1, "q"),
            leaves_of(self, core.k_like, of_k[0], of_k[1], "k"),
            leaves_of(self, core.value, of_v[0], of_v[1], "v"),
        ]
        for leaf, views in zip(alike(choices), choices, strict=True):
            role = leaf.role
            if leaf.node in self.leaves:  # keys that are the values too: a view of it is an input of its own
                others = [v for v in views if len(v.perm) == len(leaf.perm) and v.node not in self.leaves]
                if not others:
                    why = "it is the same tensor as another one"
                    raise Refused("CB231", self.line(core.scores), name=role, reason=why)
                leaf = others[-1]
            self.add(leaf)
            if role == "q":
                self.packed = len(leaf.perm) == len("thd") and leaf.perm[-2] < leaf.perm[0]

    def add(self, leaf: Leaf) -> Leaf:
        """Register a leaf under a name of its own; a placeholder that is an argument keeps the argument's name."""
        own = self._input.get(leaf.node)
        argument = own if own in self.whole.names else None
        leaf.name = argument or self.namer.name(self, leaf, taken=set(self.names) | set(self.whole.names))
        leaf.what = "" if argument else self.namer.what(self, leaf)
        self.leaves[leaf.node] = leaf
        self.names.append(leaf.name)
        self.types[leaf.name] = self.kind_of(leaf.node)
        return leaf

    def leaf(self, name: str) -> Leaf | None:
        """The leaf of that name."""
        return next((x for x in self.leaves.values() if x.name == name), None)

    def used(self) -> frozenset[str]:
        """All inputs: a leaf that nothing reads was dropped."""
        return frozenset(self.names)

    def use_line(self, name: str) -> Line | None:
        """Where the leaf is computed."""
        leaf = self.leaf(name)
        return self.whole.use_line(name) if leaf is None else node_line(self, leaf.node)

    def recognise(self, choice: int | None = None) -> Template:
        """Read the core, from the output node that was chosen before or the first that keeps batch and heads apart.

        Raises Refused, of the most telling try.
        """
        outputs = self.core.outputs
        first: Refused | None = None
        merged: int | None = None
        for n in range(len(outputs)) if choice is None else (choice,):
            try:
                check_complete(self.whole, self.core, [outputs[n]])
                template = self._from(outputs[n])
            except Refused as refused:
                refused.line = refused.line or self.line(self.core.sum)
                if first is None or (first.code == "CB230" and refused.code != "CB238"):
                    first = refused
                continue
            self.choice = n
            apart = len(template.axes[template.roles["q"]]) if self.packed else len("bhid")
            if choice is not None or len(template.outputs[0][1]) == apart:
                return template
            merged = n if merged is None else merged
        if merged is not None:
            return self.recognise(merged)
        assert first is not None
        raise first

    def moved(self, whole: Graph, inner: Callable[[str, int], int]) -> CutGraph:
        """The same cut in another trace with the same operators. Raises NotUnified where they are others.

        `inner` gives the extent there of the inner part of a cut axis, by the leaf's name and the axis.
        """
        there = aligned(self.whole, whole)
        made = object.__new__(CutGraph)
        made.__dict__.update(whole.__dict__)
        made.whole, made.core, made.namer, made.choice = whole, self.core.moved(there), self.namer, self.choice
        made.names, made.outputs = list(self.names), [there[n] for n in self.outputs]
        leaves = [replace(leaf, node=there[n], groups=leaf.resized(inner)) for n, leaf in self.leaves.items()]
        made.leaves = {leaf.node: leaf for leaf in leaves}
        return made

    def _from(self, output: Any) -> Template:
        self.outputs = [output]
        for leaf in list(self.leaves.values()):  # another output may have been tried before
            leaf.groups = None
            if leaf.role == "operand":
                del self.leaves[leaf.node]
        self.names = [leaf.name for leaf in self.leaves.values()]
        self.elements = CutElements(self)
        template = recognise(self.elements)
        read = {e.tensor for part in template.expressions for e in walk(part) if isinstance(e, Read)}
        used = set(template.roles.values()) | read
        arguments = [n for n in self.whole.names if n in used and n not in self.names]
        self.names = [n for n in (*self.names, *arguments) if n in used]
        self.leaves = {node: leaf for node, leaf in self.leaves.items() if leaf.name in used}
        template.axes = {name: axes for name, axes in template.axes.items() if name in used}
        return self._renamed(template)

    def _renamed(self, template: Template) -> Template:
        """Operands under the names that dropped leaves no longer take."""
        names: dict[str, str] = {}
        for leaf in self.leaves.values():
            if leaf.role == "operand" and leaf.what:
                taken = {*self.names, *names.values(), *self.whole.names} - {leaf.name}
                names[leaf.name] = self.namer.name(self, leaf, taken)
        for leaf in self.leaves.values():
            leaf.name = names.get(leaf.name, leaf.name)
        self.names = [names.get(n, n) for n in self.names]
        for table in (self.input_shapes, self.types, template.axes):
            moved = {names.get(n, n): v for n, v in table.items()}  # pyright: ignore[reportUnknownVariableType]
            table.clear()
            table.update(moved)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return with_names(template, names)


class CutElements(Elements):
    """Elements of a `CutGraph`: nodes before the core become leaves where they are no formula."""

    graph: CutGraph

    def __init__(self, graph: CutGraph) -> None:
        super().__init__(graph, RULES)
        core = graph.core
        self._views = _between(core, graph.leaves)

    def _compute(self, node: Any, index: Index) -> Expr:
        graph = self.graph
        leaf = graph.leaves.get(node)
        if leaf is not None:
            return self._read(leaf, index)
        if node in graph.core.inside or node in self._views:
            return super()._compute(node, index)
        if node.op == "call_function" and graph.op_name(node) in _WHOLE:
            return self._leaf_at(node, index)
        try:
            found = super()._compute(node, index)
        except Refused as refused:
            if node.op == "call_function" and NEVER.get(graph.op_name(node)) == "CB220":
                raise
            if graph.input_name(node) is not None or refused.code not in ("CB220", "CB224", "CB228"):
                return self._leaf_at(node, index)
            raise
        return found if self._stays(node, index, found) else self._leaf_at(node, index)

    def _stays(self, node: Any, index: Index, found: Expr) -> bool:
        """True for what a kernel can well compute for itself at every score."""
        if graph_lists(found) > _LONGEST_CHOICE:
            return False
        leaves = [x for e in walk(found) if isinstance(e, Read) and (x := self.graph.leaf(e.tensor)) is not None]
        operands = [x for x in leaves if x.role == "operand"]
        if not operands:
            return True
        grown = elements_in(node) > max(elements_in(x.node) for x in operands)
        if is_nested(found):
            return False
        if isinstance(found, Read):  # of several views of one tensor, the one that is easiest to address
            own = Leaf(node, "", tuple(range(len(index)))).read(self.algebra, index)
            mine, its = complexity(own.index), complexity(found.index)
            part = any(x.node.op == "call_function" and elements_in(x.node) > elements_in(node) for x in operands)
            return grown or mine > its or (mine == its and not part)
        return grown or not is_formula_of_reads(found)

    def _leaf_at(self, node: Any, index: Index) -> Expr:
        leaf = Leaf(node, "operand", tuple(range(len(self.shape(node)))))
        return self._read(self.graph.add(leaf), index)

    def _read(self, leaf: Leaf, index: Index) -> Expr:
        element = leaf.read(self.algebra, index)
        self.graph.input_shapes[leaf.name] = leaf.shape
        self.algebra.types[leaf.name] = self.graph.kind_of(leaf.node)
        return element


def with_names(t: Template, names: Mapping[str, str]) -> Template:
    """The template with its operands renamed."""

    def renamed(e: Expr) -> Expr:
        if isinstance(e, Read):
            return Read(names.get(e.tensor, e.tensor), tuple(renamed(x) for x in e.index))
        return rebuild(e, renamed)

    def optional(e: Expr | None) -> Expr | None:
        return None if e is None else renamed(e)

    return replace(t, score=renamed(t.score), mask=optional(t.mask), sink=optional(t.sink), divisor=optional(t.divisor))


def aligned(one: Graph, other: Graph) -> dict[Any, Any]:
    """Nodes of one trace -> those of another of the same code, but for copies. Raises NotUnified when it ran others."""
    left, right = Places(one), Places(other)
    if left.operators != right.operators:
        raise NotUnified("other operators run at other sizes")
    return dict(zip(left.nodes, right.nodes, strict=True))


def graph_lists(expr: Expr) -> int:
    """The longest list of constants that an element is chosen from."""
    return max((len(e.parts) for e in walk(expr) if isinstance(e, Cat) and isinstance(e.parts[0], Const)), default=0)


def _between(core: Core, leaves: dict[Any, Leaf]) -> set[Any]:
    """The views between the leaves of q, k, v and the products."""
    found: set[Any] = set()
    todo = [core.q_like, core.k_like, core.value]
    while todo:
        node = todo.pop()
        if node not in leaves and node not in found:
            found.add(node)
            todo.extend(node.all_input_nodes)
    return found


def node_line(graph: Graph, node: Any) -> Line | None:
    """The user's line behind a node; for a parameter the line of its first use."""
    if node.op == "call_function" and graph.line(node):
        return graph.line(node)
    return next((line for user in node.users if (line := graph.line(user))), None)


class Namer:
    """Names of nodes, as the user calls them: the variable that the line assigns, or the parameter's own name."""

    def __init__(self, source: str) -> None:
        self.lines = source.splitlines()
        self._assigned: dict[int, tuple[int, list[str]]] = {}
        self._pairs: list[tuple[ast.expr, str]] = []  # a, b = x, y: each value and its name
        for statement in ast.walk(ast.parse(source)):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._note(statement, statement.targets[0])
            elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
                self._note(statement, statement.target)

    def _note(self, statement: ast.stmt, target: ast.expr) -> None:
        items = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names = [t.id if isinstance(t, ast.Name) else "" for t in items]
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(value.elts) == len(names):
            self._pairs += [(v, n) for v, n in zip(value.elts, names, strict=True)]
        length = (statement.end_lineno or statement.lineno) - statement.lineno
        for line in range(statement.lineno, statement.lineno + length + 1):
            if line not in self._assigned or length < self._assigned[line][0]:
                self._assigned[line] = (length, names)

    def variable(self, graph: Graph, node: Any) -> str:
        """The variable a node's line assigns; empty where it assigns none, or several and nothing says which."""
        line = node_line(graph, node)
        names = self._assigned.get(line[0], (0, []))[1] if line else []
        if len(names) == 1:
            return names[0]
        for value, name in self._pairs if line is not None and len(line) == 4 else ():
            assert line is not None
            inside = value.lineno == value.end_lineno == line[0] and value.end_col_offset is not None
            if inside and value.col_offset <= line[2] and line[3] <= (value.end_col_offset or 0):
                return name
        which = _which(graph, node)
        return names[which] if which is not None and which < len(names) else ""

    def parameter(self, graph: CutGraph, node: Any) -> str:
        """The path of a parameter or buffer of the user's module; empty for any other node."""
        target = graph.targets.get(graph.whole.input_name(node) or "", "")
        return target.removeprefix("user.") if target.startswith("user.") else ""

    def name(self, graph: CutGraph, leaf: Leaf, taken: set[str]) -> str:
        """A free name for a leaf."""
        wanted = self.parameter(graph, leaf.node).replace(".", "_") or self.variable(graph, leaf.node) or leaf.role
        if not wanted.isidentifier():
            wanted = leaf.role
        others = _TAKEN - {leaf.role}
        if wanted in taken or wanted in others:
            wanted = leaf.role
        free, n = wanted, 1
        while free in taken or free in others:
            n += 1
            free = f"{wanted}_{n}"
        return free

    def what(self, graph: CutGraph, leaf: Leaf) -> str:
        """Where a leaf comes from: the parameter, or the user's line."""
        parameter = self.parameter(graph, leaf.node)
        line = node_line(graph, leaf.node)
        if parameter:
            return f"the parameter {parameter}"
        return f"line {line[0]}: {self.text(line)}" if line else "computed before the attention"

    def text(self, line: Line) -> str:
        """The user's line, without its indentation."""
        return self.lines[line[0] - 1].strip() if 0 < line[0] <= len(self.lines) else ""


def _which(graph: Graph, node: Any) -> int | None:
    """The position of a node among those a split or an unbind gives."""
    for _ in range(4):
        if node.op != "call_function":
            return None
        op = graph.op_name(node)
        if op == "getitem":
            return int(node.args[1])
        if op == "select":
            return int(graph.arguments(node)["index"])
        if op == "slice":
            a = graph.arguments(node)
            return int(a["start"] or 0) if a["end"] == (a["start"] or 0) + 1 else None
        sources = node.all_input_nodes
        if len(sources) != 1:
            return None
        node = sources[0]
    return None

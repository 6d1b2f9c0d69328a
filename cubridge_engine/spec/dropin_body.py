"""The statements of a drop-in: nodes of the graph as lines of Python, in the user's words where they are known."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .attention import Attention, TensorInput
from .core import Core
from .cut import FUSED
from .cut_graph import CutGraph, node_line
from .dropin_ops import INFIX, write
from .dropin_sizes import Point, Variants
from .leaves import Leaf
from .paging import paging_of
from .trace import Graph

_MOST_LITERALS = 64  # a constant of the spec with more elements is no literal
_LONGEST_PART = 100  # a longer expression gets a line of its own


class NoDropIn(Exception):
    """Why the file cannot be written."""


@dataclass
class Body:
    """The statements of the function."""

    core: Core
    attention: Attention
    variants: Variants
    arguments: Sequence[str]
    taken: set[str]
    kernel: str = "kernel("  # how the kernel's call begins
    paged: bool = False  # the kernel takes the caches and their table for k and v
    text_of: dict[Any, str] = field(default_factory=dict[Any, str])  # node -> name, or expression used once
    infix: set[Any] = field(default_factory=set[Any])
    out: list[str] = field(default_factory=list[str])
    said: tuple[int, ...] | None = None
    owners: dict[str, Any] = field(default_factory=dict[str, Any])  # name -> the node it holds now
    users: dict[Any, list[Any]] = field(default_factory=dict[Any, "list[Any]"])
    leaves: set[Any] = field(default_factory=set[Any])
    done: set[Any] = field(default_factory=set[Any])

    @property
    def graph(self) -> Graph:
        return self.variants.graphs[frozenset[int]()]

    def lines(self) -> list[str]:
        """All statements up to the return. Raises NoDropIn, NotUnified."""
        whole = self.core.whole
        cuts = whole.read(whole.model)[0].cuts
        calls = {cut.outputs[0]: cut for cut in cuts}
        self._name_inputs()
        self._lengths()
        live = self._live(cuts, calls)
        self.users |= {n: [u for u in n.users if u in live or u.op == "output"] for n in live}
        for output, cut in calls.items():
            for leaf in self._computed(cut):
                self.leaves.add(leaf.node)
                self.users[leaf.node].append(output)  # what stood between them is not written
        for node in self.graph.nodes:
            if node in calls:
                self._call(node, calls[node])
            elif node in live and node.op == "call_function":
                self._statement(node)
        return self.out if any("device=" in line or "(device" in line for line in self.out) else self.out[1:]

    def _live(self, cuts: Sequence[CutGraph], calls: Mapping[Any, CutGraph]) -> set[Any]:
        found: set[Any] = set()
        todo = [n for n in self.graph.outputs if self.graph.is_node(n)]
        todo += [leaf.node for cut in cuts for leaf in self._computed(cut)]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                if node not in calls:
                    todo.extend(node.all_input_nodes)
        return found

    def _computed(self, cut: CutGraph) -> list[Leaf]:
        """The inputs of a core that are computed for its call: not k and v where the kernel finds them in pages."""
        return [leaf for leaf in cut.leaves.values() if not self.paged or leaf.role not in ("k", "v")]

    def _name_inputs(self) -> None:
        names = dict(zip(self.graph.names, self.arguments, strict=True))
        for node in self.graph.nodes:
            if node.op != "placeholder":
                continue
            own = self.graph.input_name(node) or ""
            self.text_of[node] = names.get(own, "")  # constants are written where they are used

    def _lengths(self) -> None:
        self.out.append(f"device = {self.arguments[0]}.device")
        for name, length in zip(self.variants.names, self.core.whole.lengths, strict=True):
            tensor, axis = length.first
            self.out.append(f"{name} = {self.arguments[tensor]}.shape[{axis}]")

    # statements ------------------------------------------------------------------------------------------------------
    def _statement(self, node: Any) -> None:
        text = self._expression(node)
        self.done.add(node)
        users = self.users[node]
        last = len(users) == 1 and users[0].op == "output" and len(self.graph.outputs) == 1
        once = len(users) == 1 and users[0].op != "output" and self._same_line(node, users[0])
        if once and node not in self.leaves and len(text) < _LONGEST_PART:
            self.text_of[node] = text
            return
        self._comment(node)
        if last and node not in self.leaves:
            self.text_of[node] = text
            return
        name = self._fresh(node)
        self.out.append(f"{name} = {text}")
        self.text_of[node] = name
        self.infix.discard(node)

    def _same_line(self, node: Any, user: Any) -> bool:
        mine, its = node_line(self.graph, node), node_line(self.graph, user)
        return mine is not None and its is not None and mine[0] == its[0]

    def _comment(self, node: Any) -> None:
        line = node_line(self.graph, node)
        if line and line[:1] != self.said:
            file = Path(self.core.whole.program.path).name
            self.out.append(f"# {file}:{line[0]}  {self.core.whole.namer.text(line)}")
            self.said = line[:1]

    def _fresh(self, node: Any, wanted: str = "") -> str:
        """The user's name for a node, if it is free by now; a numbered one otherwise."""
        wanted = self.core.whole.namer.variable(self.graph, node) or wanted
        if not wanted.isidentifier() or keyword.iskeyword(wanted):
            wanted = "t"
        name, n = wanted, 1
        while name in self.taken and not self._over(name):
            n += 1
            name = f"{wanted}_{n}"
        self.taken.add(name)
        self.owners[name] = node
        return name

    def _over(self, name: str) -> bool:
        """True when nothing that is still to be written uses the node of that name."""
        node = self.owners.get(name)
        if node is None or any(u not in self.done for u in self.users.get(node, ())):
            return False
        waiting = [n for n in self.done if any(u not in self.done for u in self.users.get(n, ()))]
        return not any(re.search(rf"\b{name}\b", self.text_of.get(n, "")) for n in waiting)

    def _call(self, output: Any, cut: CutGraph) -> None:
        """The kernel's call, and the way from its [B, H, S, D] to the node's own axes."""
        caches = self._caches(cut) if self.paged else {}
        inputs = [caches.get(i.role) or self._placed(cut, i.name, i.axes) for i in self._inputs(cut)]
        inputs += [caches["table"]] if caches else []
        self.said = None
        self._comment(cut.core.sum)
        self.done |= {leaf.node for leaf in self._computed(cut)}
        self.done.add(output)
        name = self._fresh(output, "o")
        call = f"{self.kernel}{', '.join(inputs)})"
        axes = self.attention.outputs[0].axes
        for n, letter in reversed(list(enumerate("bhid"))):
            if letter not in axes:
                call += f".squeeze({n})"
        left = [a for a in "bhid" if a in axes]
        if left != list(axes):
            call += f".permute({', '.join(str(left.index(a)) for a in axes)})"
        self.out.append(f"{name} = {call}")
        self.text_of[output] = name

    def _caches(self, cut: CutGraph) -> dict[str, str]:
        """The caches for k and v, as [pages, Hkv, rows, D], and the table of their pages. Raises NoDropIn."""
        found, templates = self.core.whole.read(self.core.whole.model)
        paging = paging_of(cut, templates[found.cuts.index(cut)])
        if paging is None:
            raise NoDropIn("one of its attentions has no pages")
        texts = {"table": self.value(self._argument(paging.table))}
        for role, name, order in (("k", paging.k, paging.k_order), ("v", paging.v, paging.v_order)):
            text = self.value(self._argument(name))
            texts[role] = text if list(order) == sorted(order) else f"{text}.permute({', '.join(map(str, order))})"
        return texts

    def _argument(self, name: str) -> Any:
        return next(n for n in self.graph.nodes if self.graph.input_name(n) == name)

    def _inputs(self, cut: CutGraph) -> list[TensorInput]:
        """The attention's inputs under the names that this call has for them."""
        return [replace(i, name=n) for i, n in zip(self.attention.inputs, cut.names, strict=True)]

    def _placed(self, cut: CutGraph, name: str, axes: Sequence[str]) -> str:
        leaf = cut.leaf(name)
        if leaf is None:
            text = self.value(self._argument(name))
        else:
            text = self._place(leaf)
        letters = {"hk": "h", "j": "i"}
        have = [letters.get(a, a) for a in axes]
        if "d" in have:
            order = [letter for letter in "bhid" if letter in have]
            if order != have:  # heads before batches, rows before heads: the kernel is given [B, H, S, D]
                text += f".permute({', '.join(str(have.index(letter)) for letter in order)})"
                have = order
            for n, letter in enumerate("bh"):
                if letter not in have:
                    text += f".unsqueeze({n})"
        return text

    def _place(self, leaf: Leaf) -> str:
        text = self._operand(leaf.node)
        if leaf.perm != tuple(range(len(leaf.perm))):
            text += f".permute({', '.join(map(str, leaf.perm))})"
        if list(leaf.shape) != [leaf.own_shape()[d] for d in leaf.perm]:
            moved = {p: self._moved(leaf, p).shape for p in self.variants.nodes}
            shape = [self.variants.formula({p: s[n] for p, s in moved.items()}) for n in range(len(leaf.shape))]
            text += f".reshape({', '.join(shape)})"
        return text

    def _moved(self, leaf: Leaf, point: Point) -> Leaf:
        return replace(leaf, node=self.variants.nodes[point][leaf.node])

    # expressions -----------------------------------------------------------------------------------------------------
    def value(self, node: Any) -> str:
        """The text of a node, as it stands alone."""
        if self.text_of.get(node):
            return self.text_of[node]
        return self._constant(node)

    def _operand(self, node: Any) -> str:
        """The text of a node as an operand or receiver."""
        text = self.value(node)
        return f"({text})" if node in self.infix else text

    def _constant(self, node: Any) -> str:
        name = self.graph.input_name(node) or ""
        target = self.graph.targets.get(name, "")
        if target.startswith("user.") and self._is_owned(target.removeprefix("user.")):
            return path_text(target.removeprefix("user."))
        data = self.graph.constants[name]
        if data.numel() > _MOST_LITERALS:
            raise NoDropIn(f"the spec makes a constant tensor of {data.numel()} elements that no module owns")
        return f"torch.tensor({data.tolist()}, dtype={data.dtype}, device=device)".replace("inf", 'float("inf")')

    def _is_owned(self, path: str) -> bool:
        """True when the user's module has that tensor: one it keeps in a dict has a name in the trace only."""
        found = self.core.whole.program.module
        for name in path.split(".") if found is not None else ():
            found = getattr(found, name, None)
        return found is not None or self.core.whole.program.module is None

    def _expression(self, node: Any) -> str:
        op = self.graph.op_name(node)
        if op == "getitem":
            return f"{self._operand(node.args[0])}[{node.args[1]}]"
        texts = self._arguments(node)
        layer = self._layer(node, op)
        if layer:
            return layer
        if op == "slice":
            return self._slice(node, texts)
        written = write(op, {**texts, "": op})
        if written is None:
            return self._by_name(node)
        if op in INFIX or written[0] in "-~":
            self.infix.add(node)
        return written

    def _layer(self, node: Any, op: str) -> str:
        """The user's own submodule, where the node is a call of it."""
        import torch

        module = self.core.whole.program.module
        kinds = {"linear": torch.nn.Linear, "layer_norm": torch.nn.LayerNorm, "embedding": torch.nn.Embedding}
        a = self.graph.arguments(node)
        weight = a.get("weight")
        if op not in kinds or module is None or weight is None or weight.op != "placeholder":
            return ""
        target = self.graph.targets.get(self.graph.input_name(weight) or "", "")
        if not target.startswith("user.") or not target.endswith(".weight"):
            return ""
        path = target.removeprefix("user.").removesuffix(".weight")
        owner = module.get_submodule(path)
        bias = a.get("bias")
        own_bias = bias is not None and self.graph.targets.get(self.graph.input_name(bias) or "") == f"user.{path}.bias"
        with_bias = getattr(owner, "bias", None) is not None
        if type(owner) is not kinds[op] or with_bias != (bias is not None) or with_bias != own_bias:
            return ""
        source = a.get("input", a.get("indices"))
        return f"{path_text(path)}({self.value(source)})"

    def _slice(self, node: Any, texts: Mapping[str, Any]) -> str:
        a = self.graph.arguments(node)
        rank = len(a["self"].meta["val"].shape)
        start = texts["start"] if a["start"] else ""
        end = texts["end"] if a["end"] is not None and a["end"] < 2**62 else ""
        step = f":{texts['step']}" if a["step"] not in (None, 1) else ""
        if start == "" and self._whole_axis(node, a):
            end = ""
        return f"{texts['self']}[{':, ' * (a['dim'] % rank)}{start}:{end}{step}]"

    def _whole_axis(self, node: Any, a: Mapping[str, Any]) -> bool:
        return all(x == y for x, y in zip(node.meta["val"].shape, a["self"].meta["val"].shape, strict=True))

    def _arguments(self, node: Any) -> dict[str, Any]:
        """Arguments as text by schema name; numbers as formulas of the lengths. Without those left at their default."""
        numbers = {p: self.variants.graphs[p].arguments(there[node]) for p, there in self._there(node).items()}
        own = self.graph.arguments(node)
        return {name: self._text(value, {p: n[name] for p, n in numbers.items()}) for name, value in own.items()}

    def _there(self, node: Any) -> Mapping[Point, Mapping[Any, Any]]:
        """The corresponding nodes; a copy that other traces lack has no numbers that matter."""
        found = {p: there for p, there in self.variants.nodes.items() if node in there}
        return found if len(found) == len(self.variants.nodes) else {frozenset[int](): {node: node}}

    def _text(self, value: Any, at: Mapping[Point, Any]) -> Any:
        import torch

        if self.graph.is_node(value):
            return self._operand(value)
        if isinstance(value, (list, tuple)):
            return [self._text(v, {p: x[n] for p, x in at.items()}) for n, v in enumerate(value)]
        if type(value) is int and len(at) > 1:
            return self.variants.formula(at)
        if isinstance(value, float):
            return repr(value) if value - value == 0 else f'float("{value}")'
        if isinstance(value, torch.device):
            return "device"
        return None if value is None else str(value) if not isinstance(value, str) else repr(value)

    def _by_name(self, node: Any) -> str:
        """A call of the operator by its full name."""
        texts = self._arguments(node)
        if self.graph.op_name(node) == FUSED:
            texts = {k: v for k, v in texts.items() if v is not None}
            return f"F.{FUSED}({', '.join(f'{k}={v}' for k, v in texts.items())})"
        schema = node.target._schema
        parts: list[str] = []
        for n, argument in enumerate(schema.arguments):
            text = texts[argument.name]
            if isinstance(text, list):
                text = f"[{', '.join(str(x) for x in text)}]"
            if argument.kwarg_only and text is None:
                continue
            if n >= len(node.args) and argument.name not in node.kwargs:
                continue
            parts.append(f"{argument.name}={text}" if argument.kwarg_only else str(text))
        return f"torch.ops.{node.target}({', '.join(parts)})"


def path_text(path: str) -> str:
    """``module.layers[0].wq`` from ``layers.0.wq``."""
    text = "module"
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text

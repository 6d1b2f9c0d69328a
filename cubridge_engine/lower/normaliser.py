"""The online softmax taken out of the text: P is S as it stands, nothing is rescaled, and what only the softmax needed
is deleted rather than left dead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from ..diagnostics import Span, make
from ..ir.anchors import EpilogueSite, SoftmaxSite
from ..ir.expr import Const, free_vars
from ..ir.nodes import Mask
from ..transfer.model import NormaliserEdit, Step
from ..transfer.rows import ROW_SUM
from ..transfer.structure import walk_ops
from .branches import instead_of_vote
from .called import reachable, uses_of_file
from .context import CannotLower, Job
from .cuda_expr import float_literal, print_cuda
from .dead import dead_code
from .deleting import deletions
from .hunks import Hunk, named_in
from .liveness import Uses, Variable, arguments_of, is_inside
from .state import division_called, divisor_text
from .unnamed import unnamed

_FUSED = frozenset({"fmaf", "__fmaf_rn", "fma"})
_FILLED = re.compile(r"\bS = -inf\w*")


def at_normaliser(job: Job, step: Step, edit: NormaliserEdit, others: list[Hunk]) -> list[Hunk]:
    """Hunks of a NormaliserEdit. `others` are the hunks of all other edits: what they use stays."""
    site = job.anchors.softmax
    if site is None:
        raise job.missing("the steps of the online softmax", step)
    body = _node(job, site.body)
    if body is None or body.type != "compound_statement":
        raise job.missing("the body of the kernel", step)
    work = _Work(job, step, edit, uses_of_file(job.source, body))
    work.weights(site)
    for span in site.again:
        work.again(_node(job, span))
    for name in site.corrections:
        work.without_factor(work.variable(name), "the correction")
    work.fills()
    work.epilogue()
    for span in site.lse:
        work.remove(_node(job, span))
    changed = [h for h in (*others, *work.replaced) if h.end > h.start]
    named = named_in([*others, *work.replaced])
    dead = dead_code(work.uses, work.removed, [(h.start, h.end) for h in changed], named)
    gone = deletions(job, dead)
    gone += unnamed(job, [*gone, *((h.start, h.end) for h in changed)], named)
    kept = [h for h in work.replaced if not any(a <= h.start and h.end <= b for a, b in gone)]
    hunks = [*kept, *(job.hunk(start, end, "", step) for start, end in gone)]
    _refuse_shared(job, step, body, [*others, *hunks])
    return hunks


def _refuse_shared(job: Job, step: Step, body: Node, hunks: list[Hunk]) -> None:
    """A function that another kernel calls too must stay what it is for that kernel."""
    kernel = job.scopes.kernel.name
    for other in (k for k in job.source.kernels() if k.body != body):
        for f in reachable(job.source, other):
            if any(f.body.start_byte < h.start and h.end < f.body.end_byte for h in hunks):
                span = job.source.span(f.node)
                raise CannotLower(make("CB412", span, rule=step.rule, function=f.name, other=other.name, kernel=kernel))


def _node(job: Job, span: Span) -> Node | None:
    return job.source.root.descendant_for_byte_range(span.start, span.end)


def _statement(node: Node) -> Node | None:
    """The statement around an expression."""
    found: Node | None = node
    while found is not None and found.type not in ("expression_statement", "declaration"):
        found = found.parent
    return found


@dataclass
class _Work:
    """Replacements and removed statements so far."""

    job: Job
    step: Step
    edit: NormaliserEdit
    uses: Uses
    replaced: list[Hunk] = field(default_factory=list[Hunk])
    removed: list[Node] = field(default_factory=list[Node])

    def replace(self, start: int, end: int, new: str) -> None:
        self.replaced.append(self.job.hunk(start, end, new, self.step))

    def remove(self, node: Node | None) -> None:
        statement = _statement(node) if node is not None else None
        if statement is None:
            raise self.job.missing("a statement of the softmax", self.step)
        self.removed.append(statement)

    def again(self, vote: Node | None) -> None:
        """Nothing is done again, and nothing corrected."""
        if vote is None:
            raise self.job.missing("the statement that does a tile again", self.step)
        self.removed.append(vote)
        self.replaced += instead_of_vote(self.job, self.uses, vote, self.step)

    def text(self, node: Node) -> str:
        return self.job.text(node.start_byte, node.end_byte)

    def variable(self, at: Span) -> Variable:
        """The variable that is assigned at a name."""
        found = self.uses.variable_at(at.start)
        if found is None:
            raise self.job.missing("the correction as a variable of the kernel", self.step)
        return found

    # ---- weights ----

    def weights(self, site: SoftmaxSite) -> None:
        """P = S: the exponential becomes the element, and an element assigned to itself goes."""
        for weight in site.weights:
            node = _node(self.job, weight.exponential)
            parent = node.parent if node is not None else None
            if node is None or parent is None:
                raise self.job.missing("the exponential", self.step)
            left = parent.child_by_field_name("left") if parent.type == "assignment_expression" else None
            if left is not None and self.text(left) == weight.element and _operator(parent) == "=":
                self.remove(parent)
            else:
                self.replace(node.start_byte, node.end_byte, weight.element)
        if self.edit.rows == "abs_sum" and not site.sums:
            raise self.job.missing("the statement that adds P to the row sum", self.step)
        for span in site.sums if self.edit.rows == "abs_sum" else ():
            self.replace(span.start, span.end, f"fabsf({self.job.text(span.start, span.end)})")

    def fills(self) -> None:
        """The kernel's own tests write a weight of 0."""
        zero = float_literal(0.0, self.job.style.float_suffix)
        tested = any(isinstance(op, Mask) for op in walk_ops(self.job.scopes.kernel.body))
        if tested and not self.job.anchors.mask:
            raise self.job.missing("the kernel's own element test", self.step)
        for span in dict.fromkeys(site.fill for site in self.job.anchors.mask):
            self.replace(span.start, span.end, zero)
            self._reword(span.start)

    def _reword(self, offset: int) -> None:
        """``// S = -inf where ...`` above a test speaks of the weight now."""
        data = self.job.source.data
        end = data.rfind(b"\n", 0, offset)
        while end > 0:
            start = data.rfind(b"\n", 0, end) + 1
            line = self.job.text(start, end)
            if not line.strip():
                return
            found = _FILLED.search(line) if line.strip().startswith("//") else None
            if found is not None:
                first = start + len(line[: found.start()].encode())
                hunk = self.job.hunk(first, first + len(found[0].encode()), "P = 0", self.step)
                self.replaced += [hunk] if hunk not in self.replaced else []
                return
            end = start - 1

    # ---- factors ----

    def without_factor(self, variable: Variable, what: str) -> None:
        """Every product with `variable`, or with a parameter that it is passed as, loses that factor."""
        same = self.uses.same_value(variable)
        params = {p for c in self.uses.callees.values() for p in c.params}
        gone = [(n.start_byte, n.end_byte) for n in self.removed]
        for read in self.uses.reads:
            if read.variable not in same or is_inside(read.node, gone):
                continue
            if not read.passed:
                self.drop(read.node, what)
            elif read.owner in params - same and read.variable not in params:
                raise self.job.missing(f"{what} as a factor in a function that is always given it", self.step)

    def drop(self, node: Node, what: str) -> None:
        """Take a factor out of the product it stands in."""
        while node.parent is not None and (
            (node.parent.type == "subscript_expression" and node.parent.child_by_field_name("argument") == node)
            or node.parent.type == "parenthesized_expression"
        ):
            node = node.parent
        parent = node.parent
        if parent is not None and parent.type == "binary_expression" and _operator(parent) == "*":
            self._out_of_product(node, parent)
        elif parent is not None and parent.type == "assignment_expression" and _operator(parent) == "*=":
            self.remove(parent)
        elif parent is not None and parent.type == "argument_list" and self._out_of_fma(node, parent):
            pass
        else:
            raise self.job.missing(f"{what} as a factor of a product", self.step)

    def _out_of_product(self, node: Node, product: Node) -> None:
        left, right = product.child_by_field_name("left"), product.child_by_field_name("right")
        assert left is not None
        assert right is not None
        kept = right if node == left else left
        around = product.parent
        if around is not None and around.type == "assignment_expression" and _operator(around) == "=":
            target = around.child_by_field_name("left")
            if target is not None and self.text(target) == self.text(kept):
                self.remove(around)
                return
        if self._adds_to_itself(product, kept):
            return
        if node == left:
            self.replace(product.start_byte, right.start_byte, "")
        else:
            self.replace(left.end_byte, product.end_byte, "")

    def _adds_to_itself(self, product: Node, kept: Node) -> bool:
        """``l = c * l + x`` becomes ``l += x``."""
        sum_ = product.parent
        outer = sum_.parent if sum_ is not None else None
        if sum_ is None or outer is None or outer.type != "assignment_expression" or _operator(outer) != "=":
            return False
        target, added = outer.child_by_field_name("left"), sum_.child_by_field_name("right")
        if sum_.type != "binary_expression" or _operator(sum_) != "+" or added is None or target is None:
            return False
        if added == product or self.text(target) != self.text(kept):
            return False
        self.replace(target.end_byte, added.start_byte, " += ")
        return True

    def _out_of_fma(self, node: Node, arguments: Node) -> bool:
        """``fmaf(a, c, b)`` becomes ``a + b``."""
        call = arguments.parent
        function = call.child_by_field_name("function") if call is not None else None
        items = arguments.named_children
        if call is None or function is None or self.text(function) not in _FUSED or len(items) != 3 or node == items[2]:
            return False
        other = items[1] if node == items[0] else items[0]
        self.replace(call.start_byte, other.start_byte, "")
        self.replace(other.end_byte, items[2].start_byte, " + ")
        self.replace(items[2].end_byte, call.end_byte, "")
        return True

    # ---- epilogue ----

    def epilogue(self) -> None:
        """O by the spec's divisor instead of the row sum, or O as it is."""
        site = self.job.anchors.epilogue
        if site is None or site.inverse is None:
            raise self.job.missing("the division by the row sum", self.step)
        node = self.job.source.root.descendant_for_byte_range(site.inverse.start, site.inverse.end)
        if node is None:
            raise self.job.missing("the division by the row sum", self.step)
        divisor = None if self.edit.divisor is None else self._divisor(site, node)
        top = self._numerator(node)
        if divisor is not None:
            top = top or float_literal(1.0, self.job.style.float_suffix)
            function = _division_in(self.job, node)
            text = f"{top} / {divisor}" if function is None else f"{function}({top}, {_bare(divisor)})"
            self.replace(site.inverse.start, site.inverse.end, text)
        elif top is not None:
            self.replace(site.inverse.start, site.inverse.end, top)
        else:
            self._without_inverse(node)

    def _numerator(self, node: Node) -> str | None:
        """The text above the fraction bar where that is more than 1: ``o / l``."""
        while node.type in ("conditional_expression", "parenthesized_expression"):
            branches = [node.child_by_field_name(n) for n in ("consequence", "alternative")]
            branches = branches if node.type == "conditional_expression" else [node.named_children[0]]
            chosen = next((b for b in branches if b is not None and divisor_text(self.job, b) is not None), None)
            if chosen is None:
                return None
            node = chosen
        left = node.child_by_field_name("left") if node.type == "binary_expression" else None
        if left is None and division_called(self.job, node) is not None:
            left = arguments_of(node)[0]
        if left is None or re.fullmatch(r"1(\.0*)?f?", self.text(left)):
            return None
        return self.text(left)

    def _divisor(self, site: EpilogueSite, node: Node) -> str:
        """The divisor in the names of the epilogue, in parentheses where it is no single value."""
        assert self.edit.divisor is not None
        extra: dict[str, str] = {}
        total = divisor_text(self.job, node)
        if total is not None:
            extra["l"] = total
        if "row" in site.names.text:
            extra["i"] = site.names.text["row"]
        divisor = self.edit.divisor
        if ROW_SUM.name not in free_vars(divisor) and isinstance(divisor, Const):
            return float_literal(float(divisor.value), self.job.style.float_suffix)
        return print_cuda(divisor, self.job.scopes.at(site.names, extra), 71)

    def _without_inverse(self, node: Node) -> None:
        """1 / l is a variable, or stands in the product itself."""
        parent = node.parent
        target = None
        if parent is not None and parent.type in ("init_declarator", "assignment_expression"):
            target = parent.child_by_field_name("declarator") or parent.child_by_field_name("left")
        if target is None:
            self.drop(node, "the division by the row sum")
            return
        while target.type != "identifier":
            target = target.child_by_field_name("argument") or target.named_children[0]
        found = self.uses.variable_at(target.start_byte)
        if found is None:
            raise self.job.missing("1 / l as a variable of the kernel", self.step)
        self.without_factor(found, "1 / l")


def _division_in(job: Job, node: Node) -> str | None:
    """The function that an expression divides by, where it calls one."""
    found = division_called(job, node)
    return found or next((f for c in node.named_children if (f := _division_in(job, c)) is not None), None)


def _bare(text: str) -> str:
    """A text without the parentheses around all of it."""
    inner = text[1:-1]
    return inner if text.startswith("(") and text.endswith(")") and "(" not in inner else text


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return operator.type if operator is not None else "="

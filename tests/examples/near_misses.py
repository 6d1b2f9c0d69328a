"""Near misses: what a hurried person (or a program) would write instead. Each is an edit of an adapted kernel's text.

An edit finds its place through the anchors of the adapted text or through the hunks that made it, and returns None
where the example has nothing of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cubridge_engine.lower import Hunk, apply_hunks
from cubridge_engine.transfer import HeadEdit, StateEdit


def _replace(text: str, start: int, end: int, new: str) -> str:
    data = text.encode()
    return (data[:start] + new.encode() + data[end:]).decode()


def _conditions(adapted) -> list[tuple[int, int, str]]:
    """The mask conditions of the adapted text, last first, so that edits do not move the others."""
    data = adapted.text.encode()
    sites = adapted.lift(adapted.text).anchors.mask
    spans = sorted({(s.condition.start, s.condition.end) for s in sites}, reverse=True)
    return [(a, b, data[a:b].decode()) for a, b in spans]


def _in_conditions(adapted, pattern: str, new: str | Callable[[re.Match[str]], str]) -> str | None:
    """The first match of `pattern` in the live part of a mask condition replaced."""
    dead = r"\(causal &&[^()]*(?:\([^()]*\)[^()]*)*\)" if adapted.result.bindings.get("causal") == 0 else r"(?!)"
    for start, end, condition in _conditions(adapted):
        held = re.search(dead, condition)
        live = condition.replace(held[0], "@", 1) if held else condition
        changed = re.sub(pattern, new, live, count=1)
        if changed != live:
            return _replace(adapted.text, start, end, changed.replace("@", held[0], 1) if held else changed)
    return None


def _without(adapted, drop: Callable[[Hunk], bool]) -> str | None:
    """The adapted text made without some of its hunks."""
    kept = [h for h in adapted.lowered.hunks if not drop(h)]
    if len(kept) == len(adapted.lowered.hunks):
        return None
    return apply_hunks(adapted.source.data, kept).decode()


def window_off_by_one(adapted) -> str | None:
    """A window (or prefix, or chunk) one key longer."""
    return _in_conditions(adapted, r"(?<![\w.])(\d{2,})(?![\w.])", lambda m: str(int(m[1]) + 1))


def causal_off_by_one(adapted) -> str | None:
    """The diagonal itself masked, or the key after it attended."""
    for pattern, new in (
        (r"col > row\b", "col >= row"),
        (r"row < col\b", "row <= col"),
        (r"col <= row\b", "col < row"),
    ):
        text = _in_conditions(adapted, pattern, new)
        if text is not None:
            return text
    return None


def other_corner(adapted) -> str | None:
    """Top-left for bottom-right, or the reverse: the offset Sk - Sq forgotten or added."""
    if ("Sq", "Sk") in adapted.attention.equal_sizes:
        return None  # the two corners are one
    for pattern, new in (
        (r"row \+ sk - sq", "row"),
        (r"row \+ \(sk - sq\)", "row"),
        (r"col > row\b", "col > row + sk - sq"),
    ):
        text = _in_conditions(adapted, pattern, new)
        if text is not None:
            return text
    return None


def no_mask(adapted) -> str | None:
    """The conditions that the adaptation added, left out; the kernel's own tail stays."""
    return _in_conditions(adapted, r"^(\s*col >= sk)\b(?! \|\| @\s*$).+$", r"\1")


def mask_hunk_dropped(adapted) -> str | None:
    """A mask that the adaptation added as a loop of its own, left out."""
    return _without(adapted, lambda h: "mask" in h.why and h.start == h.end and "if (" in h.new)


def scale_forgotten(adapted) -> str | None:
    """The exponent without its scale."""
    changed = re.sub(r"(exp2_approx\(s\[nb\]\[e\]) \* scale_log2", r"\1", adapted.text, count=1)
    return changed if changed != adapted.text else None


def score_hunks_dropped(adapted) -> str | None:
    """Softcap, bias or ALiBi left out altogether."""
    names = {step.rule for step in adapted.result.steps if "score" in step.rule}
    return _without(adapted, lambda h: bool(names & set(h.why.split(", "))) and "param" not in h.why)


def score_after_mask(adapted) -> str | None:
    """A softcap applied after the mask instead of before it."""
    own = adapted.lifted.anchors
    if not own.mask or not own.score:
        return None
    site = own.score[0].offset
    found = [h for h in adapted.lowered.hunks if h.start == h.end == site]
    # A bias added to -inf stays -inf: only a score that saturates makes a difference there.
    if not found or not re.search(r"tanh|exp", found[0].new):
        return None
    node = adapted.source.root.descendant_for_byte_range(own.mask[0].assignment.start, own.mask[0].assignment.end)
    outer = node
    while (node is not None and node.type not in ("function_definition", "for_statement")) or (
        node is not None and node.start_byte > site and node.type != "function_definition"
    ):
        if node.start_byte >= site:
            outer = node
        node = node.parent
    line_end = adapted.source.data.index(b"\n", outer.end_byte) + 1
    moved = [Hunk(line_end, line_end, "", found[0].new, found[0].why)]
    return apply_hunks(adapted.source.data, [h for h in adapted.lowered.hunks if h is not found[0]] + moved).decode()


def sign_flipped(adapted) -> str | None:
    """A slope or bias subtracted where it should be added."""
    site = adapted.lifted.anchors.score[0].offset if adapted.lifted.anchors.score else None
    floats = [op.param for op in adapted.result.operands if op.dtype not in ("bool", "int32", "int64")]
    for hunk in adapted.lowered.hunks if floats else ():
        new = hunk.new.replace("+=", "-=", 1) if hunk.start == hunk.end == site else hunk.new
        if new != hunk.new:
            others = [h for h in adapted.lowered.hunks if h is not hunk]
            return apply_hunks(adapted.source.data, [*others, Hunk(hunk.start, hunk.end, "", new, hunk.why)]).decode()
    return None


def sink_dropped(adapted) -> str | None:
    """The initial state as it was: no sink."""
    rules = {step.rule for step, edit in adapted.result.edits if isinstance(edit, StateEdit)}
    return _without(
        adapted, lambda h: bool(rules & set(h.why.split(", "))) and "param" not in h.why and h.start != h.end
    )


def sink_on_every_lane(adapted) -> str | None:
    """l = 1 on all four lanes of a quad: the sink counts four times."""
    if adapted.attention.sink is None:
        return None
    states = [s for s in adapted.lift(adapted.text).anchors.state if s.role == "l"]
    return _replace(adapted.text, states[0].value.start, states[0].value.end, "1.f") if states else None


def sink_counted_in_log2(adapted) -> str | None:
    """m starts at the sink in natural units where S is raw."""
    if adapted.attention.sink is None:
        return None
    states = [s for s in adapted.lift(adapted.text).anchors.state if s.role == "m"]
    if not states:
        return None
    old = adapted.text.encode()[states[0].value.start : states[0].value.end].decode()
    return _replace(adapted.text, states[0].value.start, states[0].value.end, f"({old}) * 0.5f")


def heads_by_modulo(adapted) -> str | None:
    """h % Hkv in place of h // (H // Hkv)."""
    site = adapted.lift(adapted.text).anchors.head
    if site is None or any(isinstance(edit, HeadEdit) for _, edit in adapted.result.edits):
        return None
    fixed = adapted.attention.specialised
    alike = "H" in fixed and fixed["H"] == fixed.get("Hkv")  # by the weights of a module: h is its own KV head
    if alike or ("H", "Hkv") in adapted.attention.equal_sizes or fixed.get("Hkv") == 1:
        return None
    return _replace(adapted.text, site.value.start, site.value.end, "h % kv_heads")


def sentinel_turned_into_infinity(adapted) -> str | None:
    """-10000 (or another finite fill) written as -INFINITY."""
    changed = re.sub(
        r"-?(?<![\w.])(10000\.?0?f|1e\+?30f)", lambda m: "-INFINITY" if m[0][0] == "-" else "INFINITY", adapted.text
    )
    return changed if changed != adapted.text else None


def constant_changed(adapted) -> str | None:
    """A cap (or another float of the score) a tenth off."""
    site = adapted.lifted.anchors.score[0].offset if adapted.lifted.anchors.score else None
    for hunk in adapted.lowered.hunks:
        if hunk.start == hunk.end == site:
            new = re.sub(r"(?<![\w.])(?!0\.0*f)(\d+\.\d*)f", lambda m: f"{float(m[1]) * 1.1:.6f}f", hunk.new, count=1)
            if new != hunk.new:
                others = [h for h in adapted.lowered.hunks if h is not hunk]
                return apply_hunks(
                    adapted.source.data, [*others, Hunk(hunk.start, hunk.end, "", new, hunk.why)]
                ).decode()
    return None


def quotient_for_remainder(adapted) -> str | None:
    """The row of a key in an image taken for its column."""
    for hunk in adapted.lowered.hunks:
        new = re.sub(r"(\bcol\b[^;\n%]*?) % (\d+)", r"\1 / \2", hunk.new, count=1)
        if new != hunk.new and not adapted.attention.mask:
            others = [h for h in adapted.lowered.hunks if h is not hunk]
            return apply_hunks(adapted.source.data, [*others, Hunk(hunk.start, hunk.end, "", new, hunk.why)]).decode()
    return None


def range_too_short(adapted) -> str | None:
    """The last KV tile of every Q tile left out."""
    loop = adapted.lift(adapted.text).anchors.kv_loop
    if loop is None:
        return None
    old = adapted.text.encode()[loop.hi.start : loop.hi.end].decode()
    return _replace(adapted.text, loop.hi.start, loop.hi.end, f"({old}) - 1")


def _in_text(adapted, pattern: str, new: str) -> str | None:
    """The first match in the adapted text replaced, for specs whose weights are no softmax."""
    if adapted.attention.normaliser == "softmax":
        return None
    changed = re.sub(pattern, new, adapted.text, count=1)
    return changed if changed != adapted.text else None


def decay_off_by_one(adapted) -> str | None:
    """gamma^(i - j + 1): the newest key decays as well."""
    return _in_text(adapted, r"\((max\()?row - col", r"(\1row - col + 1")


def bias_of_the_weight_dropped(adapted) -> str | None:
    """The sigmoid without its -log(n)."""
    return _in_text(adapted, r"\(log2?_n - ", "(-")


def divisor_dropped(adapted) -> str | None:
    """The sum over the keys as it is, not divided by anything."""
    return _in_text(adapted, r"1\.f / fmaxf\(fabsf\(l(\[r\])?\), 1\.f\)", "1.f")


def divisor_with_sign(adapted) -> str | None:
    """max(l, 1) for max(|l|, 1): right until a row sum is negative."""
    return _in_text(adapted, r"fmaxf\(fabsf\((l(\[r\])?)\), 1\.f\)", r"fmaxf(\1, 1.f)")


def masked_weight_infinite(adapted) -> str | None:
    """-inf written where a weight stands."""
    if adapted.attention.normaliser == "softmax":
        return None
    for site in adapted.lift(adapted.text).anchors.mask:
        return _replace(adapted.text, site.fill.start, site.fill.end, "-INFINITY")
    return None


def relu_forgotten(adapted) -> str | None:
    """Negative scores weigh too."""
    return _in_text(adapted, r"fmaxf\((s\[[^=;]*), 0\.f\)", r"\1")


def _in_all(adapted, pattern: str, new: str) -> str | None:
    """Every match in the adapted text replaced, in a kernel that takes an integer for each batch or pages."""
    taken = {op.name for op in adapted.result.operands if op.dtype in ("int32", "int64") and op.axes[0] == "B"}
    changed = re.sub(pattern, new, adapted.text) if taken else adapted.text
    return changed if changed != adapted.text else None


def length_off_by_one(adapted) -> str | None:
    """The first key that is not filled yet attended too."""
    return _in_all(adapted, r"col >= length\b", "col > length")


def length_of_another_batch(adapted) -> str | None:
    """All sequences as long as the first."""
    return _in_all(adapted, r"= lengths\[b\]", "= lengths[0]")


def _in_pages(adapted, pattern: str, new: str) -> str | None:
    return _in_all(adapted, pattern, new) if any(op.page for op in adapted.result.operands) else None


def pages_of_another_batch(adapted) -> str | None:
    """The first sequence's pages for all."""
    return _in_pages(adapted, r"block_table \+ b \* block_table_stride_b", "block_table")


def smaller_pages(adapted) -> str | None:
    """Pages of 8 rows for pages of 16."""
    return _in_pages(adapted, r"(\w+) / 16\]", r"\1 / 8]")


def row_not_within_its_page(adapted) -> str | None:
    """The row of the sequence for that of the page."""
    return _in_pages(adapted, r" % 16 \*", " *")


def pages_in_order(adapted) -> str | None:
    """No table: page n of a sequence is page n of the cache."""
    return _in_pages(adapted, r"pages\[(\w+ / 16)\]", r"(\1)")


NEAR_MISSES: tuple[Callable[..., str | None], ...] = (
    window_off_by_one,
    causal_off_by_one,
    other_corner,
    no_mask,
    mask_hunk_dropped,
    scale_forgotten,
    score_hunks_dropped,
    score_after_mask,
    sign_flipped,
    sink_dropped,
    sink_on_every_lane,
    sink_counted_in_log2,
    heads_by_modulo,
    sentinel_turned_into_infinity,
    constant_changed,
    quotient_for_remainder,
    range_too_short,
    decay_off_by_one,
    bias_of_the_weight_dropped,
    divisor_dropped,
    divisor_with_sign,
    masked_weight_infinite,
    relu_forgotten,
    length_off_by_one,
    length_of_another_batch,
    pages_of_another_batch,
    smaller_pages,
    row_not_within_its_page,
    pages_in_order,
)

"""Diagnostic codes of reading a spec: CB2xx. One row per condition; the second sentence is the way out."""

from __future__ import annotations

from ..diagnostics import Row, Severity, register

E = Severity.ERROR
W = Severity.WARNING
N = Severity.NOTE

ROWS: dict[str, Row] = {
    # the file and its entry
    "CB201": Row(E, "the spec cannot be read: {reason}", "give the path of a Python file"),
    "CB202": Row(E, "the spec does not parse: {reason}", "correct the syntax on this line"),
    "CB203": Row(
        E,
        "importing the spec raised {reason}",
        "make the file importable on its own: `python {file}` must succeed in this environment",
    ),
    "CB204": Row(
        E,
        "there is no function `{entry}` in the spec; it defines: {defined}",
        "name your function `attention(q, k, v, ...)`, or name the entry of the adapt command",
    ),
    "CB205": Row(
        E,
        "the module `{entry}` cannot be built without arguments: {reason}",
        "give its __init__ defaults, or add `get_init_inputs()` that returns the arguments",
    ),
    "CB206": Row(
        E,
        "there is no `example_inputs()` and inputs cannot be made up: {reason}",
        "add `def example_inputs(): return q, k, v, ...` with tensors of typical shapes",
    ),
    "CB207": Row(E, "`example_inputs()` raised {reason}", "make it return the arguments of one call, as a tuple"),
    "CB208": Row(
        E,
        "`example_inputs()` does not fit `{entry}{signature}`: {reason}",
        "return one value for each parameter, q, k and v being floating-point tensors",
    ),
    "CB209": Row(
        N, "there is no `example_inputs()`; read with {shapes}", "add `example_inputs()` to choose the shapes"
    ),
    "CB210": Row(
        E, "running the spec on its example inputs raised {reason}", "correct this line, or the example inputs"
    ),
    "CB211": Row(
        E,
        "the spec was still running after {seconds:g} s, at this line",
        "look for a loop that does not end; or raise the time limit",
    ),
    "CB212": Row(E, "the spec returns {what}", "return the output tensor, or (output, logsumexp)"),
    "CB213": Row(W, "the argument `{name}` has no effect on the result", "use it, or remove it from the signature"),
    # what cannot be one fused kernel
    "CB220": Row(
        E, "dropout makes the result random, so it cannot be verified", "set the dropout probability to 0 in the spec"
    ),
    "CB221": Row(
        E,
        "the spec returns the attention weights: a fused kernel never forms that Sq x Sk matrix",
        "return only the output (and, if needed, torch.logsumexp of the scores)",
    ),
    "CB222": Row(
        E,
        "`{op}` needs a whole score row before any key is dropped",
        "pass the selected indices or a mask as an input instead",
    ),
    "CB223": Row(
        E,
        "which code runs here depends on the values in a tensor, so there is no single kernel to read",
        "use torch.where instead of the Python branch, or pass the decision as a bool argument",
    ),
    "CB255": Row(
        E,
        "the lengths in `{name}` are taken out of the tensor here, so how often the code runs, and on which rows, "
        "depends on its values: there is no single kernel to read",
        "write one attention over all packed rows, `seq = torch.bucketize(torch.arange({rows}), {name}, right=True)` "
        "and the mask `seq[:, None] == seq[None, :]` (and `t[:, None] >= t[None, :]` for causal); tiles of other "
        "sequences are then not visited",
    ),
    "CB256": Row(
        E,
        "the lengths in `{name}` are taken out of the tensor here, so how often the code runs, and on which keys, "
        "depends on its values: there is no single kernel to read",
        "write one attention over the whole batch with the mask "
        "`torch.arange(Sk)[None, None, None, :] < {name}[:, None, None, None]`; tiles beyond a length are then not "
        "visited",
    ),
    "CB224": Row(
        E,
        "scores of different heads are mixed here; a tile holds one head",
        "drop the mix, or mix the outputs after the attention",
    ),
    "CB225": Row(
        E,
        "the softmax does not run over the keys",
        "normalise over the last axis of the scores (the keys); a softmax over queries couples all rows",
    ),
    "CB226": Row(
        E,
        "`{op}` sums scores along the keys one after another",
        "use the form F_i - F_j with F computed from an input before the attention",
    ),
    "CB227": Row(
        E,
        "the weights are neither a softmax over the keys nor a function of one score each",
        "write f(q k^T) v with an elementwise f (softmax, sigmoid, ReLU, a decay), divided by the sum of these weights "
        "at most",
    ),
    "CB228": Row(
        E,
        "no attention was found: {reason}",
        "compute softmax(q k^T ...) v over tensors [B, H, S, D] or [B, S, H, D] that are arguments of the function",
    ),
    "CB229": Row(
        E,
        "`{op}` is not understood between the two products",
        "write this step with elementwise operations on the scores",
    ),
    "CB230": Row(
        E,
        "the layout of `{name}` is not understood: {reason}",
        "pass and return tensors as [B, H, S, D] or [B, S, H, D], without merging heads and features",
    ),
    "CB231": Row(
        E,
        "`{name}` is transformed before it is used ({reason})",
        "do this step outside: pass the transformed tensor as the argument",
    ),
    "CB232": Row(
        E,
        "this needs a table of {bytes} bytes computed in the spec by `{op}`, which the indices alone do not express",
        "pass the table as an argument, or compute it from arange with elementwise operations",
    ),
    "CB233": Row(
        E,
        "two attentions contribute to the output: {reason}",
        "keep one softmax in the spec; two of them need a second accumulator",
    ),
    "CB234": Row(
        E,
        "the output is multiplied by something after the attention (`{op}`)",
        "apply the gate outside: return the attention's own output",
    ),
    "CB259": Row(
        E,
        "the weights are multiplied by a factor of each key after the softmax (`{op}`): the sum that divides them "
        "counts all keys, the product with the values does not, and the kernel has one set of weights for both",
        "mask the scores before the softmax (masked_fill with -inf; a factor f is `+ log f`): with the weights "
        "normalised again that is the same function",
    ),
    "CB262": Row(
        E,
        "`{name}` is cut into overlapping pieces before it is used ({op}): a window made by chunks",
        "write one attention over all rows with the mask `(i - j).abs() <= window` (or `i // chunk` compared with "
        "`j // chunk`): tiles of keys outside of the window are not visited, so there is nothing to cut",
    ),
    "CB260": Row(
        E,
        "the scores contain {count} products that pair rows with keys, and they are neither added to each other nor is "
        "one of them a table with a row per query",
        "add the products (q1 k1^T + q2 k2^T is one product), or gather the columns of q R^T by a formula of i and j",
    ),
    # an attention inside a larger function
    "CB235": Row(
        N,
        "computed before the attention and passed to the kernel: {what}",
        "these lines and those after the attention stay in PyTorch; the drop-in file holds them",
    ),
    "CB236": Row(
        N,
        "the attention weights that are returned too are left out: a fused kernel never forms that Sq x Sk matrix",
        "{kept} counts; name others with --outputs",
    ),
    "CB237": Row(
        N,
        "`{name}` is an operand of {bytes} bytes at the example's sizes, with axes [{axes}] ({what})",
        "it is computed once for each call, before the kernel",
    ),
    "CB238": Row(
        E,
        "the scores or weights of the attention are used outside of it (`{op}`)",
        "use only the output after the attention (and, if needed, torch.logsumexp of the scores)",
    ),
    "CB239": Row(
        E,
        "the head dimension is {have} by the weights of the module; it cannot be read at {want}",
        "build the module with that head dimension",
    ),
    "CB244": Row(
        E,
        "`{name}` of the attention comes from weights alone, not from an argument",
        "pass what it is computed from as an argument of the function",
    ),
    "CB247": Row(
        W,
        "no drop-in file could be written: {reason}",
        "call the kernel where the function computes its attention; the lines are named above",
    ),
    "CB246": Row(
        N,
        "read for lengths up to {longest}, as in the example: at longer ones the function raises {reason}",
        "make its tables long enough, or compute them from the length",
    ),
    "CB257": Row(
        N,
        "k and v are read in place: row j of a sequence is row j % {size} of page {table}[b, j // {size}] of `{k}` and "
        "`{v}`, so that {bytes} bytes are not copied",
        "the entries of `{table}` must be page numbers from 0, those of unused pages too; the kernel is made for pages "
        "of {size} rows",
    ),
    "CB258": Row(
        E,
        "`{table}` holds negative page numbers in the example; torch counts these pages from the end, and the kernel "
        "would read outside of the cache",
        "fill unused places of the table with 0, or with any page there is",
    ),
    # FlexAttention
    "CB248": Row(
        N,
        "the tensor `{name}` that is captured here is an argument of the kernel: {bytes} bytes, with axes [{axes}]",
        "pass it with q, k and v; what the indices alone express needs no tensor",
    ),
    "CB249": Row(
        N,
        "the BlockMask made for {rows} x {keys} is read through its mask_mod, which holds for all lengths",
        "nothing to do; make it where the lengths are known, with create_block_mask, to say so in the spec",
    ),
    "CB250": Row(
        E,
        "the BlockMask does not say what its mask_mod says: {reason}",
        "make it with create_block_mask(mask_mod, ...), or let mask_mod drop these keys too",
    ),
    "CB251": Row(
        E,
        "`{name}` cannot be used as {kind}: {reason}",
        "a score_mod takes (score, b, h, q_idx, kv_idx), a mask_mod takes (b, h, q_idx, kv_idx)",
    ),
    "CB252": Row(E, "the file defines several {kind}s: {names}", "choose one with {flag} NAME"),
    "CB253": Row(
        E,
        "keys and values are multiplied first, so no query meets a key: this is linear attention, which has no score",
        "keep it in PyTorch: q (k^T v) is cheaper than any kernel that forms Sq x Sk scores; written (q k^T) v it has "
        "scores and can be read",
    ),
    # generality and the check
    "CB240": Row(N, "read for {sizes} only: {reason}", "use the shapes of the arguments instead of fixed numbers"),
    "CB241": Row(
        N, "the spec is only defined for {left} = {right}", "compute the mask from both lengths to lift the limit"
    ),
    "CB242": Row(
        E,
        "what was read does not reproduce the spec at {sizes}: {reason}",
        "this is a limit of the reader: simplify the spec, or report it with this file",
    ),
    "CB245": Row(
        N,
        "the spec is only defined where {less} is at most {more}",
        "nothing to do where the queries are the last of the keys; else index from the start of the keys",
    ),
    "CB254": Row(
        N,
        "a value is rounded to {dtype} here, which has less precision than q ({q}): the rounding is not reproduced",
        "remove the conversion, so that the spec is exactly what the kernel computes",
    ),
    "CB243": Row(E, "the spec cannot be traced: {reason}", "use plain PyTorch tensor operations on this line"),
}

register(ROWS)

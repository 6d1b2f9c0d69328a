"""Codes of findings: CB845..CB874 by reading, CB875..CB889 by watching and by expectation, CB890..CB899 the frame."""

from ..diagnostics import Row, Severity, register

E = Severity.ERROR
W = Severity.WARNING

CODES: dict[str, Row] = {
    # ---- by reading: orchestration
    "CB845": Row(
        W,
        "{what} is written by one lane of a warp and read by another with nothing that orders the two",
        "put a __syncwarp() between the write and the read; lanes of a warp run apart since Volta",
    ),
    "CB850": Row(
        E,
        "{what} is read while its asynchronous copy is still in flight{how}",
        "{way}",
    ),
    "CB851": Row(
        E,
        "{what} is overwritten while other threads may still read it: no barrier lies between",
        "put a __syncthreads() between the last read and this write",
    ),
    "CB852": Row(
        E,
        "{what} is read before a barrier makes what other threads wrote visible",
        "put a __syncthreads() between the write (for an asynchronous copy: its wait) and the read",
    ),
    "CB853": Row(
        E,
        "{what} is read where nothing was written yet",
        "check the pipeline slot that is read, and the tile that is copied before the loop",
    ),
    "CB854": Row(
        E,
        "not all threads of the block come to this barrier: {condition} differs from thread to thread",
        "move the barrier out of the branch, so that every thread passes it",
    ),
    "CB855": Row(
        E,
        "threads leave before a barrier that the others wait at: {condition} differs from thread to thread",
        "keep the threads until the last barrier, and guard their loads and stores instead",
    ),
    "CB856": Row(
        E,
        "the kernel uses {used} bytes of dynamic shared memory, the launch gives {given}",
        "launch with at least {used} bytes{where}",
    ),
    "CB857": Row(
        E,
        "the kernel uses {used} bytes of shared memory, {arch} allows {limit} per block",
        "use smaller tiles, fewer stages or a smaller head dimension",
    ),
    "CB858": Row(
        E,
        "an access of {size} bytes at an address that is no multiple of {size}: {why}",
        "{way}",
    ),
    "CB859": Row(
        W,
        "`{product}` is computed in 32 bits, and passes 2^31 for a tensor of more than 2^31 elements",
        "widen one factor: {wide}",
    ),
    "CB860": Row(
        E,
        "the mask {mask} of this shuffle {problem}",
        "name exactly the lanes that execute the shuffle; 0xffffffff where the whole warp does",
    ),
    # ---- by reading: the online softmax
    "CB861": Row(
        E,
        "{what} is not rescaled when the row maximum moves: what earlier tiles added keeps the old maximum",
        "multiply {what} by the correction exp(m_old - m_new) before the tile is added",
    ),
    "CB862": Row(
        E,
        "{what}",
        "use one unit: exp2 takes scores and maximum times scale * log2(e), exp takes both times scale",
    ),
    "CB863": Row(
        E,
        "the mask is tested on the wrong tiles: {witness}",
        "test the mask on every tile that holds a masked element",
    ),
    "CB864": Row(
        E,
        "the loop over keys leaves out keys that the mask keeps: {witness}",
        "let the loop run to the last key that a row of the tile sees",
    ),
    "CB865": Row(
        E,
        "keys beyond the end are not masked: {witness}",
        "set the scores of keys j >= Sk to -inf in the last tile",
    ),
    "CB866": Row(
        E,
        "this gives NaN for rows that have keys: {witness}",
        "subtract 0 where the maximum is still -inf, so that exp(-inf - m) is 0",
    ),
    "CB867": Row(
        W,
        "a row without a key gets NaN here: {witness}",
        "test for it (l == 0 ? 0 : 1 / l), or say empty_rows = \"nan\" in the contract if that is meant",
    ),
    "CB868": Row(
        W,
        "query head h reads KV head {found}, where h // (H / Hkv) is usual: {witness}",
        "use h / (heads / kv_heads) for grouped-query attention, or suppress this if the order is meant",
    ),
    "CB869": Row(
        W,
        "the parameter {name} is never used",
        "use it where it is meant ({hint}), or take it out of the signature",
    ),
    "CB870": Row(
        W,
        "the row maximum starts at {start}: a row whose scores all lie far below it underflows to 0 / 0",
        "start it at -INFINITY",
    ),
    "CB871": Row(
        E,
        "the lanes of a row do not agree: {what}",
        "combine all lanes that share a row, for a quad __shfl_xor_sync by 1 and by 2",
    ),
    "CB872": Row(
        E,
        "the stored log-sum-exp mixes units: it is {found}, not {want}",
        "with m in the units of the exponent, LSE = m * scale + log(l) (natural) or m * scale_log2 + log2(l)",
    ),
    "CB873": Row(
        E,
        "{what}",
        "compare the row with {size}",
    ),
    "CB874": Row(
        E,
        "the fragments of this matrix product do not belong together: A and B do not contract the same index",
        "check which of the four registers of ldmatrix goes to which product, and whether .trans is needed",
    ),
    "CB846": Row(
        W,
        "{tensor} is addressed with {used}, the stride of {other}, and {unused} is never used",
        "use {unused} for {tensor}",
    ),
    "CB843": Row(
        E,
        "{tensor} is addressed as if it had as many rows as there are {words}",
        "work its strides out from its own length",
    ),
    "CB849": Row(
        E,
        "masked scores become {fill}, not minus infinity: masked keys take part in the softmax",
        "set masked scores to -INFINITY",
    ),
    "CB848": Row(
        E,
        "the mask and the tiles that it is tested on are for different diagonals: they disagree on {witness}",
        "write the mask as the guard and the key range have it (j <= i + Sk - Sq: the last row sees the last key)",
    ),
    "CB847": Row(
        E,
        "O is stored as it was accumulated: the division by the row sum l is missing",
        "store O / l (0 where l is 0)",
    ),
    # ---- by watching and by expectation
    "CB875": Row(
        E,
        "'{word}' is no expectation: {why}",
        "say what the kernel should compute in words with commas between, such as causal,gqa,softcap=30",
    ),
    "CB880": Row(
        E,
        "{step}",
        "correct this line; {shown}",
    ),
    "CB881": Row(
        E,
        "{shown}",
        "no single step could be named: compare loads, fragments and strides with a kernel that is right, or say with "
        "--expect what the kernel is meant to compute",
    ),
    "CB882": Row(
        E,
        "{sentence}",
        "change this line to what is expected, or correct the expectation",
    ),
    "CB883": Row(
        E,
        "{shown}; with one change it is right on all {count} problems: {why}",
        "{change}",
    ),
    # ---- the frame
    "CB890": Row(
        W,
        "this comment ignores {codes} and finds nothing to ignore",
        "take the comment out",
    ),
    "CB891": Row(
        W,
        "this comment does not say why {codes} is ignored, so it is not",
        "write the reason behind the bracket: // cubridge: ignore[{codes}] the reason",
    ),
    "CB892": Row(
        W,
        "{name} is no code of a finding",
        "the codes are in docs/findings",
    ),
    "CB893": Row(
        E,
        "the baseline {path} cannot be read: {why}",
        "write it again with --write-baseline",
    ),
    "CB894": Row(
        E,
        "{key} in {path} is not understood: {why}",
        "see docs/findings/README.md for what may stand there",
    ),
    "CB896": Row(
        E,
        "the baseline {path} cannot be written: {why}",
        "choose a file in a folder that may be written to",
    ),
}  # fmt: skip
register(CODES)

"""What names suggest. A name is a hint to be tried, never a proof: a binding that rests on one is tested by a trial."""

from __future__ import annotations

import re

_PREFIX = re.compile(
    r"^(d_|dev_|device_|h_|host_|p_|ptr_|g_|gm_|m_|in_|num_|n_|d(?=[QKVO]$)|p(?=[QKVO]$)|g(?=[QKVO]$))"
)
_SUFFIX = re.compile(r"(_d|_ptr|_gpu|_dev|_device|_data|_in|_tensor|_mat|_matrix|_|ptr)$")

# Each row: role, pattern of the whole name in lower case after `plain`.
_TENSORS = (
    ("q", r"q|query|queries|qs"),
    ("k", r"k|key|keys|ks|k_cache|key_cache"),
    ("v", r"v|value|values|val|vs|v_cache|value_cache"),
    ("o", r"o|out|output|outputs|dst|result|res|y|attn_out|attn_output|context"),
    ("lse", r"lse|softmax_lse|logsumexp|log_sum_exp|lse_out"),
)
# Tensors whose absence means that the kernel does without.
OPTIONAL = re.compile(r".*(mask|bias|alibi|slopes|sink|dropout|rng|seed|cu_seqlens|seqused|block_table).*")
_SIZES = (
    ("B", r"b|batch|batches|batch_size|bs|bsz|nbatch|num_batch|batchsize"),
    ("H", r"h|nh|heads|num_heads|n_heads|nheads|head|n_head|num_q_heads|q_heads|heads_q|h_q|hq|num_qo_heads|nheads_q"
          r"|qo_heads|query_heads|numheads"),
    ("Hkv", r"hkv|h_kv|h_k|hk|kv_heads|num_kv_heads|n_kv_heads|nheads_k|nheads_kv|heads_kv|kvheads|n_kv"),
    ("Sk", r"sk|s_k|skv|seqlen_k|seq_len_k|seqlen_kv|kv_len|k_len|seq_k|len_k|len_kv|n_k|nk|kv_seqlen|kv_seq_len|lk"
           r"|key_length|kv_length|seqlenk|t_k"),
    ("Sq", r"n|s|t|l|seq_?len(gth)?|seq|sq|s_q|seqlen_q|seq_len_q|q_len|seq_q|len_q|n_q|nq|q_seqlen|sequence_length"
           r"|context_len(gth)?|qo_len|lq|query_length|seqlenq|t_q|tokens|m"),
    ("D", r"d|dim|head_?dim|d_head|dh|hd|headdim|d_k|dk|head_size|hdim|d_model|hidden_dim|emb_dim|head_embd"
          r"|width|head_width"),
    ("Dv", r"dv|d_v|head_dim_v|v_dim|vdim|headdim_v"),
    ("group", r"group|group_size|gqa|n_rep|num_groups|h_h_k_ratio|q_per_kv|kv_group|rep|num_queries_per_kv"),
)  # fmt: skip
_SCALES = (
    ("scale_log2", r".*scale.*log2.*|scale_l2e|.*scale.*l2.*"),
    ("scale", r"scale|sm_scale|softmax_scale|scaling|scale_factor|attn_scale|qk_scale|softmaxscale|scaler|sqrt_d_inv"
              r"|inv_sqrt_d(im)?|scale_softmax|s_scale|norm_factor"),
)  # fmt: skip
CAUSAL = re.compile(r"(is_)?causal|use_causal|causal_mask|iscausal|masked|is_causal_mask|do_causal")
STRIDE = re.compile(r"stride")
BACKWARD = re.compile(r"(^|_)(bwd|backward|d[qkv]{1,2}b?|grad\w*|delta)(_|$)|_d[qkv]{1,2}b?_", re.I)
_OFF = re.compile(r".*(dropout|p_drop|softcap|soft_cap|window|alibi|seed|philox|bias).*")


def plain(name: str) -> str:
    """A name in lower case without the prefixes and suffixes that say where a thing lives."""
    text = name.split("::")[-1].split(".")[-1].split("->")[-1]
    text = re.sub(r"^k(?=[A-Z][a-z])", "", text)
    text = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", text)
    previous = ""
    while text != previous and len(text) > 1:
        previous, stripped = text, _SUFFIX.sub("", _PREFIX.sub("", text))
        text = stripped or text
    return text.lower()


def _first(rows: tuple[tuple[str, str], ...], name: str) -> str:
    forms = (name.lower(), plain(name))
    return next((role for role, pattern in rows for form in forms if re.fullmatch(pattern, form)), "")


def tensor_role(name: str) -> str:
    """q, k, v, o or lse; '' when the name says nothing."""
    return _first(_TENSORS, name)


def size_role(name: str) -> str:
    """B, H, Hkv, Sq, Sk, D, Dv or group; '' when the name says nothing."""
    return _first(_SIZES, name)


def scale_role(name: str) -> str:
    """scale or scale_log2; '' when the name says nothing."""
    return _first(_SCALES, name)


def is_causal(name: str) -> bool:
    """True for a flag that turns causal masking on."""
    return CAUSAL.fullmatch(plain(name)) is not None or CAUSAL.fullmatch(name.lower()) is not None


def is_backward(name: str) -> bool:
    """True for a kernel that computes gradients, as it is called."""
    return BACKWARD.search(name) is not None


def is_off_by_default(name: str) -> bool:
    """True for a number that is zero where attention is plain: dropout, softcap, a window."""
    return _OFF.fullmatch(name.lower()) is not None


def stride_of(name: str) -> tuple[str, str]:
    """(tensor, axis) of a name such as ``q_stride_row``; '' for what it does not say."""
    text = name.lower()
    if not STRIDE.search(text):
        return "", ""
    words = [w for w in re.split(r"[_\W]+|strides?", text) if w]
    # Two letters in one word, as in stride_qm: tensor and axis.
    words = [part for w in words for part in (w if re.fullmatch(r"[qkvo][bzhmnstdk]", w) else (w,))]
    tensors = {"q": "q", "k": "k", "v": "v", "o": "o", "out": "o"}
    tensor = next((tensors[w] for w in words if w in tensors), "")
    axes = {"b": "b", "z": "b", "batch": "b", "h": "h", "head": "h", "heads": "h", "row": "row", "s": "row", "n": "row",
            "m": "row", "seq": "row", "t": "row", "col": "col", "d": "col", "k": "col"}  # fmt: skip
    rest = list(words)
    if tensor:
        rest.remove(next(w for w in words if w in tensors))
    return tensor, next((axes[w] for w in rest if w in axes), "")

"""Parts of ``python -m bench.kernels_h200``: problems, our kernels, the variants adapted from them, peers, timing."""

"""Parts of ``python -m bench.decode_h200``: problems, our kernel, the peers, the grid of shapes."""

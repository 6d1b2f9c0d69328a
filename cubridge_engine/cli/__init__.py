"""The `cubridge` command: one module per command; heavy work runs in a worker process."""

"""Kernels with one planted fault each, and their clean twins: ``python -m tests.faults`` prints what is found."""

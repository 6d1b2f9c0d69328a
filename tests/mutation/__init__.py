"""Mutation testing of kernels in the simulator: ``python -m tests.mutation`` from the repository's root."""

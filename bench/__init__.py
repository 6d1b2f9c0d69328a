"""Benchmarks; their recorded results lie in bench/results."""

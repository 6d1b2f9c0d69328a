"""Damaged sources through everything that reads while somebody types: nothing raises, hangs or grows."""

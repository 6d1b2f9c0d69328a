"""Specs that nobody here wrote, read as they are: harnesses around packages, and the table of what becomes of them.

``python -m tests.corpus --only llama`` runs the forms with that in their name; ``--record`` puts the outcome into
``table.json``, which `test_corpus.py` compares with. A form says beforehand whether one fused kernel can compute it, so
a refusal is right or wrong; what is accepted is compared with the package's own code at sizes the reader never saw.
Packages are fetched by pinned version into a cache outside the repository (`packages.py`).
"""

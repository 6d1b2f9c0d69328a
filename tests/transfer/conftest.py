"""Fixtures of the transfer tests."""

from __future__ import annotations

import pytest

from cubridge_engine.ir.text import parse_kernel
from tests.transfer.builders import FLASH


@pytest.fixture(scope="session")
def flash():
    """The reference program of the ir tests."""
    return parse_kernel(FLASH)

"""Decides what a test does without a program that it needs. Not for Python packages: the lock
brings those.
"""

import os
from typing import NoReturn

import pytest

REQUIRED_VARIABLE = "EBBTIDE_TEST_REQUIRE"


def require_or_skip(name: str, reason: str) -> NoReturn:
    """Skips the test for ``reason``; fails it if ``name`` is among those that must be there.

    ``EBBTIDE_TEST_REQUIRE`` lists the names with commas between them. Continuous integration sets
    it, so that a missing server cannot pass for a tested one.
    """
    required = {part.strip() for part in os.environ.get(REQUIRED_VARIABLE, "").split(",")}
    if name in required:
        pytest.fail(f"{reason} ({REQUIRED_VARIABLE} names {name})", pytrace=False)
    pytest.skip(reason)

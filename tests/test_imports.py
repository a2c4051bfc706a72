"""How libraries are loaded, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = """
import os
from ebbtide.imports import load_arrow_lightly
load_arrow_lightly()
import pyarrow as pa
print(pa.default_memory_pool().backend_name, os.environ.get("ARROW_DEFAULT_MEMORY_POOL"))
"""


@pytest.mark.parametrize(
    ("chosen", "shown"), [(None, "system None"), ("mimalloc", "mimalloc mimalloc")]
)
def test_arrow_takes_the_systems_memory(chosen: str | None, shown: str) -> None:
    """Unless somebody chose another; and processes that are started later choose for themselves."""
    environment = {k: v for k, v in os.environ.items() if k != "ARROW_DEFAULT_MEMORY_POOL"}
    if chosen is not None:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = chosen
    found = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == shown

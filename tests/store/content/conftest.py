"""Storages and entries for the tests of content."""

from __future__ import annotations

import pytest

from ebbtide.ids import new_id
from ebbtide.storage import Storage, open_storage


@pytest.fixture
def storage() -> Storage:
    return open_storage(f"memory:{new_id()}")

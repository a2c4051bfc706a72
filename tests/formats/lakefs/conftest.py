"""What tests of lakeFS repositories share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.formats.lakefs.world import LakefsWorld, open_lakefs_world


@pytest.fixture
def world() -> Iterator[LakefsWorld]:
    with open_lakefs_world() as opened:
        yield opened

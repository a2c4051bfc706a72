"""The gate on the share of files and bytes that a plan would delete."""

from __future__ import annotations

import pytest

from ebbtide.gc.counts import Count
from ebbtide.gc.planning.gates import check_share

LISTED = Count(1000, 1_000_000)


@pytest.mark.parametrize(
    ("candidates", "listed", "refused"),
    [
        pytest.param(Count(500, 500_000), LISTED, None, id="just the share"),
        pytest.param(Count(501, 0), LISTED, "501 of 1,000 files", id="a file more"),
        pytest.param(Count(1, 500_001), LISTED, "500,001 of 1,000,000 bytes", id="a byte more"),
        pytest.param(Count(1, 7), Count(1000, 7, sized=False), None, id="sizes that nobody knows"),
        pytest.param(Count(0, 0), Count(0, 0), None, id="nothing"),
        pytest.param(Count(1, 0), Count(2, 0), None, id="empty files"),
    ],
)
def test_more_than_the_share_is_refused(
    candidates: Count, listed: Count, refused: str | None
) -> None:
    found = check_share(candidates, listed, share_max=0.5)
    if refused is None:
        assert found is None
    else:
        assert found is not None
        assert found.kind == "over_share"
        assert refused in found.message

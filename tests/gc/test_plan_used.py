"""A plan that was swept."""

from __future__ import annotations

import pytest

from ebbtide.errors import Conflict
from tests.support.histories import PlannedWorld
from tests.support.icechunk_lake import candidates


def test_it_is_not_swept_again(planned: PlannedWorld) -> None:
    """A file that came to one of its addresses since stays."""
    report = planned.collector().sweep(planned.run_id)
    assert report.state == "swept"
    address = next(name for name in candidates(report) if name.startswith("data/"))
    (planned.root / address).write_bytes(b"new")
    with pytest.raises(Conflict) as used:
        planned.collector().sweep(planned.run_id)
    assert used.value.kind == "plan_used"
    assert (planned.root / address).read_bytes() == b"new"

"""Tests whose programs are missing."""

import pytest

from tests.support.requirements import require_or_skip


def test_what_is_required_fails_and_the_rest_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_TEST_REQUIRE", "ceph, postgres")
    with pytest.raises(pytest.fail.Exception, match="none here"):
        require_or_skip("postgres", "none here")
    with pytest.raises(pytest.skip.Exception, match="none here"):
        require_or_skip("other", "none here")

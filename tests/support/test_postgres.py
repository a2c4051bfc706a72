"""The test run's own PostgreSQL: it starts, answers, ends, and leaves nothing."""

from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import find_postgres, start_postgres
from tests.support.requirements import require_or_skip


def test_server_starts_answers_and_leaves_nothing(tmp_path: Path) -> None:
    if find_postgres() is None:
        require_or_skip("postgres", "PostgreSQL is not installed")
    server = start_postgres(tmp_path)
    address = server.url.replace("postgresql+psycopg://", "postgresql://")
    try:
        with psycopg.connect(address) as connection:
            assert connection.execute("select current_setting('fsync')").fetchone() == ("off",)
    finally:
        server.stop()
    assert not server.home.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)


def test_what_is_required_fails_and_the_rest_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_TEST_REQUIRE", "ceph, postgres")
    with pytest.raises(pytest.fail.Exception, match="none here"):
        require_or_skip("postgres", "none here")
    with pytest.raises(pytest.skip.Exception, match="none here"):
        require_or_skip("other", "none here")

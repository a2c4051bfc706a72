"""How the metadata database is reached: by each form of URL, and through a pooler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound
from ebbtide.settings import Settings
from ebbtide.store.database.engine import open_engine
from ebbtide.store.embedded import Store
from tests.support.pgbouncer import find_pgbouncer, pooled
from tests.support.requirements import require_or_skip

URL = "EBBTIDE_DATABASE_URL"


@pytest.fixture
def url(empty_database_url: str) -> str:
    """An empty database of PostgreSQL, as its users write it."""
    return make_url(empty_database_url).set(drivername="postgresql").render_as_string(False)


def _init(url: str, directory: Path) -> Store:
    return Store.init(directory, settings=Settings(database_url=url))


def _tables(url: str) -> dict[str, int]:
    query = "SELECT schemaname, count(*) FROM pg_tables WHERE schemaname !~ '^(pg_|inf)' GROUP BY 1"
    with psycopg.connect(url) as connection:
        return dict(connection.execute(query).fetchall())


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_a_search_path_in_the_url_counts(url: str, tmp_path: Path) -> None:
    """Two stores in two schemas of one database. What has no schema is refused."""
    lakes = [f"{url}?options=-csearch_path%3D{name}" for name in ("lake", "lake2", "none")]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA lake")
        connection.execute("CREATE SCHEMA lake2")
    try:
        with _init(lakes[0], tmp_path / "a") as first, _init(lakes[1], tmp_path / "b") as second:
            assert first.store_id != second.store_id
            first.create_repository("data")
            assert second.catalog.list() == []
        assert set(_tables(url)) == {"lake", "lake2"}
        with pytest.raises(Conflict, match=f"in the database that {URL} names already"):
            _init(lakes[0], tmp_path / "c")
        with pytest.raises(NotFound, match=f"no store in the database that {URL} names"):
            Store.open(tmp_path / "a", settings=Settings(database_url=url))
        with pytest.raises(InvalidInput, match="no schema of this connection's search_path"):
            _init(lakes[2], tmp_path / "d")
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA lake, lake2 CASCADE")


FORMS: Final = (
    "postgres://{user}:{password}@{host}:{port}/{name}",
    "postgresql+psycopg://{user}:{password}@{host}:{port}/{name}",
    "postgresql://{user}:{password}@127.0.0.1:1,{host}:{port}/{name}",
    "postgresql://{user}:{password}@127.0.0.1,{host}:{port}/{name}?connect_timeout=2",
    "postgresql://{user}:{password}@{host}:{port},[::1]:1/{name}?target_session_attrs=any",
    "postgresql:///{name}?host={host}&port={port}&user={user}&password={password}",
    "postgresql://{user}:{password}@%31{rest}:{port}/{name}",
    "postgresql:///{name}?service=ebbtide",
)


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_forms_of_urls(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = make_url(url)
    parts = {
        "user": known.username,
        "password": known.password,
        "host": known.host,
        "rest": str(known.host)[1:],
        "port": known.port,
        "name": known.database,
    }
    service = tmp_path / "services"
    lines = "host={host}\nport={port}\nuser={user}\npassword={password}\n".format(**parts)
    service.write_text(f"[ebbtide]\n{lines}")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    for form in FORMS:
        engine = open_engine(form.format(**parts))
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT current_database()").scalar()
        engine.dispose()
        assert found == known.database, form


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@h:port/db",
        "postgresql://u:hunter2@a:5432,b:port/db?unknown=1",
        "postgresql://u:hunter2@h/db?unknown=1",
        "postgresql://u:hunter2@h/db?prepare_threshold=0",
        "postgresql://u:hunter2%zz@a:1,b:2/db",
    ],
)
def test_urls_that_nothing_understands(url: str) -> None:
    with pytest.raises((InvalidInput, Failed)) as caught:
        open_engine(url).connect()
    assert caught.value.kind == "invalid_setting"
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_pgbouncer_in_transaction_mode(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several clients at once, more statements of each kind than the driver runs unprepared. And a
    lock is waited for only so long, although each transaction gets another connection."""
    if find_pgbouncer() is None:
        require_or_skip("pgbouncer", "no pgbouncer on PATH or in /usr/sbin")
    with pooled(url) as behind:
        with _init(behind, tmp_path / "a") as store:
            lake = store.create_repository("lake")

            def write(number: int) -> int:
                for each in range(8):
                    lake.objects.put("main", f"{number}/{each}", b"data")
                return number

            with ThreadPoolExecutor(6) as pool:
                assert list(pool.map(write, range(12))) == list(range(12))
            lake.commits.commit("main", "all")
        monkeypatch.setattr("ebbtide.store.database.engine.LOCK_TIMEOUT_SECONDS", 0.2)
        with Store.open(tmp_path / "a", settings=Settings(database_url=behind)) as again:
            assert again.repository("lake").branches.get("main").name == "main"
            lock = sa.text("LOCK TABLE store_info IN ACCESS EXCLUSIVE MODE")
            with again.metadata.transaction() as tx:
                tx.execute(lock)
                with (
                    pytest.raises(Failed, match="lock timeout"),
                    again.metadata.transaction() as other,
                ):
                    other.execute(lock)
    assert _tables(url)["public"] > 20

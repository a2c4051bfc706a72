"""Reaching the database; migrations make the tables of `schema`; other versions are refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.engine import make_url

from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound, Refused
from ebbtide.model import EPOCH
from ebbtide.settings import Settings
from ebbtide.store.database import schema
from ebbtide.store.database.dialects import open_engine
from ebbtide.store.database.migrate import (
    SCRIPTS,
    check_schema,
    has_schema,
    upgrade_schema,
)
from ebbtide.store.database.schema import repositories
from ebbtide.store.embedded import Store
from tests.support.pgbouncer import find_pgbouncer, pooled
from tests.support.requirements import require_or_skip

NEWEST = max(path.name for path in (SCRIPTS / "versions").glob("v*_*.py"))[1:5]


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(empty_database_url)
    yield engine
    engine.dispose()


def _set_revision(engine: sa.Engine, revision: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :r"), {"r": revision})


@pytest.mark.twins
def test_migrations_make_the_tables_of_the_schema(engine: sa.Engine) -> None:
    assert not has_schema(engine)
    upgrade_schema(engine)
    assert has_schema(engine)
    check_schema(engine)
    upgrade_schema(engine)  # changes nothing
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_paths_and_names_sort_by_bytes_on_postgresql(engine: sa.Engine) -> None:
    """The comparison above leaves collations out. SQLite sorts by bytes unless told otherwise."""
    upgrade_schema(engine)
    expected = {
        (table.name, column.name)
        for table in schema.metadata.tables.values()
        for column in table.columns
        if column.type is schema.PathText
    }
    with engine.connect() as connection:
        found = connection.execute(
            sa.text(
                "SELECT table_name, column_name FROM information_schema.columns "
                "WHERE table_schema = 'public' AND collation_name = 'C'"
            )
        )
        assert {tuple(row) for row in found} == expected
    assert ("staged", "path") in expected


def scripts(directory: Path, *names: str) -> Path:
    (directory / "versions").mkdir(parents=True)
    for name in ("env.py", *(f"versions/{name}" for name in names)):
        (directory / name).write_text((SCRIPTS / name).read_text())
    return directory


@pytest.mark.twins
def test_an_older_database_says_how_to_upgrade(engine: sa.Engine, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        older = scripts(tmp_path / "migrations", "v0001_initial.py")
        patch.setattr("ebbtide.store.database.migrate.SCRIPTS", older)
        upgrade_schema(engine)
    row = {"repository_id": "r", "name": "n", "storage_url": "u", "default_branch": "main"}
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO repositories (repository_id, name, storage_url, default_branch, "
                "created_at) VALUES (:repository_id, :name, :storage_url, :default_branch, 0)"
            ),
            row,
        )
    with pytest.raises(Failed, match="ebbtide init --upgrade") as caught:
        check_schema(engine)
    assert caught.value.kind == "schema_outdated"
    upgrade_schema(engine)
    check_schema(engine)
    with engine.connect() as connection:
        found = connection.execute(sa.select(repositories)).one()._mapping
    assert {**row, "namespace": None}.items() <= dict(found).items()


@pytest.mark.twins
def test_results_of_completed_uploads_get_a_table_of_their_own(
    engine: sa.Engine, tmp_path: Path
) -> None:
    until = "0007"
    names = sorted(path.name for path in (SCRIPTS / "versions").glob("v*_*.py"))
    with pytest.MonkeyPatch.context() as patch:
        older = scripts(tmp_path / "migrations", *(name for name in names if name[1:5] <= until))
        patch.setattr("ebbtide.store.database.migrate.SCRIPTS", older)
        upgrade_schema(engine)
    made = {"repository_id": "r", "name": "n", "storage_url": "u", "default_branch": "main"}
    common = {"repository_id": "r", "branch": "main", "path": "a", "content_type": None}
    times = {"created_at": EPOCH, "expires_at": EPOCH + timedelta(hours=1)}
    result = {"parts": "p", "checksum": "c", "sums": {"crc32": "s"}}
    with engine.begin() as connection:
        connection.execute(sa.insert(repositories).values(**made, created_at=EPOCH))
        for upload_id, found in (("open", {"k": "v"}), ("completed:done", result)):
            row = {"upload_id": upload_id, "metadata": found, **common, **times}
            connection.execute(sa.insert(schema.multipart_uploads).values(**row))
    upgrade_schema(engine)
    with engine.connect() as connection:
        (kept,) = connection.execute(sa.select(schema.multipart_uploads)).mappings()
        (moved,) = connection.execute(sa.select(schema.completed_uploads)).mappings()
    assert dict(kept) == {"upload_id": "open", "metadata": {"k": "v"}, **common, **times}
    del common["content_type"], times["created_at"]
    assert dict(moved) == {"upload_id": "done", **result, **common, **times}


@pytest.mark.twins
def test_a_store_is_refused_or_upgraded_by_its_version(empty_database_url: str) -> None:
    settings = Settings(database_url=empty_database_url)
    with pytest.raises(NotFound) as missing:
        Store.open(None, settings=settings)
    assert missing.value.kind == "store_not_found"
    with Store.init(None, settings=settings) as store:
        store_id = store.store_id
        _set_revision(store.metadata.engine, "9999")
        for operation in (
            lambda: check_schema(store.metadata.engine),
            lambda: upgrade_schema(store.metadata.engine),
            lambda: Store.open(None, settings=settings),
        ):
            with pytest.raises(Refused, match="use a newer ebbtide") as newer:
                operation()
            assert newer.value.kind == "unknown_format_version"
        _set_revision(store.metadata.engine, NEWEST)
    with Store.upgrade(None, settings=settings) as store:
        assert store.store_id == store_id


def test_every_migration_is_in_the_package() -> None:
    names = {path.name for path in (SCRIPTS / "versions").glob("v*.py")}
    assert "v0001_initial.py" in names
    assert (SCRIPTS / "versions" / "__init__.py").exists(), "setuptools ships packages only"


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
    "postgresql://{user}@{host}:{port}/{name}?passfile={passwords}",
    "postgresql://{user}@{host}:{port}/{name}",  # the password is in PGPASSWORD
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
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    passwords.write_text("*:*:*:*:{password}\n".format(**parts))
    for form in FORMS:
        if form == FORMS[-1]:
            monkeypatch.setenv("PGPASSWORD", str(known.password))
        engine = open_engine(form.format(**parts, passwords=passwords))
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
        monkeypatch.setattr("ebbtide.store.database.dialects.LOCK_TIMEOUT_SECONDS", 0.2)
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

"""Migrations make exactly the tables of `schema`, and other versions are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.model import EPOCH
from ebbtide.settings import Settings
from ebbtide.store.database import schema
from ebbtide.store.database.engine import open_engine
from ebbtide.store.database.migrate import (
    SCRIPTS,
    check_schema,
    has_schema,
    upgrade_schema,
)
from ebbtide.store.database.schema import repositories
from ebbtide.store.embedded import Store

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
    """A directory of Alembic with these of the program's scripts."""
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

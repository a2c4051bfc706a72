"""The version of the database's tables: made, checked, upgraded. Alembic's scripts lie beside it.

Not for: the tables themselves (`schema`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from ebbtide.errors import Failed, Refused
from ebbtide.store.metadata.engine import BEGIN_OPTION, translated_errors

SCRIPTS: Final = Path(__file__).parent / "migrations"


def upgrade_schema(engine: sa.Engine) -> None:
    """Bring the tables to this program's version, from none or any older one.

    Raises Refused `unknown_format_version` when they are newer, Failed `database_error`.
    """
    config = _config()
    with translated_errors(), engine.connect() as connection:
        connection = connection.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
        with connection.begin():
            _refuse_newer(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def check_schema(engine: sa.Engine) -> None:
    """Refuse tables of another version than this program's.

    Raises Refused `unknown_format_version` when they are newer, and Failed `schema_outdated`,
    naming the command that upgrades, when they are older.
    """
    with translated_errors(), engine.connect() as connection:
        current = _refuse_newer(connection)
    if current != _scripts().get_current_head():
        raise Failed(
            "schema_outdated",
            "the metadata database was made by an older ebbtide: back it up, stop every other "
            "ebbtide that uses it, then run 'ebbtide init --upgrade' on this store",
        )


def has_schema(engine: sa.Engine) -> bool:
    """Whether the database holds a version of our tables at all."""
    with translated_errors(), engine.connect() as connection:
        return _revision(connection) is not None


def _refuse_newer(connection: sa.Connection) -> str | None:
    current = _revision(connection)
    if current is not None and not _is_known(current):
        raise Refused(
            "unknown_format_version",
            f"the metadata database has version {current[:40]}, which this program does not "
            "know: use a newer ebbtide",
        )
    return current


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_known(revision: str) -> bool:
    try:
        return _scripts().get_revision(revision) is not None
    except CommandError:
        return False


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config

"""The version of the database's tables: creates, checks and upgrades them by Alembic's scripts.

Importing Alembic takes a quarter of a second. It is not imported if the tables have the version of
this program. Not for: the tables themselves (`schema`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from ebbtide.errors import Failed, Refused
from ebbtide.store.database.dialects import BEGIN_OPTION
from ebbtide.store.database.engine import translated_errors

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

SCRIPTS: Final = Path(__file__).parent / "migrations"
"""The directory of Alembic. Its scripts are named `v<version>_<what>.py`, in order of their
versions."""

_VERSION: Final = sa.table("alembic_version", sa.column("version_num", sa.String))


def upgrade_schema(engine: sa.Engine) -> None:
    """Upgrades the tables to this program's version, from any older version or from an empty
    database.

    Raises Refused `unknown_format_version` if the tables are newer, and Failed `database_error`.
    """
    from alembic import command

    config = _config()
    with translated_errors(engine), engine.connect() as connection:
        connection = connection.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
        with connection.begin():
            _refuse_newer(connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def check_schema(engine: sa.Engine) -> None:
    """Checks that the tables have this program's version.

    Raises Refused `unknown_format_version` if they are newer, and Failed `schema_outdated`, which
    names the command that upgrades them, if they are older.
    """
    with translated_errors(engine), engine.connect() as connection:
        current = _refuse_newer(connection)
    if current != _head():
        raise Failed(
            "schema_outdated",
            "the metadata database was made by an older ebbtide: back it up, stop every other "
            "ebbtide that uses it, then run 'ebbtide init --upgrade' on this store",
        )


def has_schema(engine: sa.Engine) -> bool:
    """Whether the database has tables of this program, of any version."""
    with translated_errors(engine), engine.connect() as connection:
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
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    revision: str | None = connection.execute(sa.select(_VERSION.c.version_num)).scalar()
    return revision


def _head() -> str:
    """Returns the version of the newest script."""
    newest = max(path.name for path in (SCRIPTS / "versions").glob("v*_*.py"))
    return newest.removeprefix("v").partition("_")[0]


def _is_known(revision: str) -> bool:
    if revision == _head():
        return True

    from alembic.util import CommandError

    try:
        return _scripts().get_revision(revision) is not None
    except CommandError:
        return False


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config

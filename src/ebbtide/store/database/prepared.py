"""Statements that are compiled once, and run by the driver itself.

SQLAlchemy takes several times as long for a statement of one row as SQLite does. A prepared
statement is made of SQLAlchemy's tables and types, and runs without its layers. Not for: statements
that write, or that run seldom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.store.database.engine import Metadata, translated_errors

Values = Sequence[Any]  # of the columns' types


class Prepared:
    """A query whose parameters are texts. Each run is a transaction by itself."""

    def __init__(self, metadata: Metadata, query: sa.Select[Any]) -> None:
        self._engine: Final = metadata.engine
        dialect = self._engine.dialect
        compiled = query.compile(dialect=dialect)
        self._text: Final = compiled.string
        self._names: Final = getattr(compiled, "positiontup", None)
        kinds = [column.type.dialect_impl(dialect) for column in query.selected_columns]
        self._decoders: Final = [kind.result_processor(dialect, None) for kind in kinds]

    def first(self, values: Mapping[str, str]) -> Values | None:
        """Returns the first row as the driver returns it, or None: see `decoded`.

        Raises Failed `database_error`.
        """
        names = self._names
        parameters = values if names is None else [values[name] for name in names]
        with (
            translated_errors(self._engine),
            closing(self._engine.raw_connection()) as connection,
            closing(connection.cursor()) as cursor,
        ):
            self._engine.dialect.do_execute(cursor, self._text, parameters)
            found: Values | None = cursor.fetchone()
            return found

    def decoded(self, row: Values, columns: slice) -> list[Any]:  # of the columns' types
        """Returns the values of some columns as objects of Python."""
        return [
            value if decode is None else decode(value)
            for value, decode in zip(row[columns], self._decoders[columns], strict=True)
        ]

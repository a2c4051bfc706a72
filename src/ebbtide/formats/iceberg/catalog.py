"""The tables of a catalog, and the metadata file that each points at now.

PyIceberg knows the catalogs and their settings. Of what it reads only the pointers are used: it
drops fields that it does not know, and nothing may be lost here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from sqlalchemy import select

from ebbtide.errors import EbbtideError, Failed, InvalidInput, Refused

Pointers = Mapping[str, str]
"""The location of the current metadata file of each table, by the table's name."""

LOOKS_MAX: Final = 5
"""How often a catalog is read anew while its tables are being renamed, made or dropped."""
MANAGED: Final = {
    "nessie": "Nessie, whose other branches name files that one branch does not show",
    "s3tables": "S3 Tables, which deletes files itself",
    "snowflake": "Snowflake, which deletes files itself",
    "unity": "Unity Catalog, which deletes files itself",
}
"""Catalogs that no run may delete beside, by a part of their addresses."""


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """A catalog, by its name and its properties. Made by `find_catalog`. A picklable value, for
    executors that lack PyIceberg's settings: it is opened where it is used."""

    name: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        """Provides the catalog. Raises Failed `catalog_error` for errors in the block that are not
        of this program: the catalog does not answer."""
        try:
            catalog = load_catalog(self.name, **dict(self.properties))
            try:
                yield catalog
            finally:
                catalog.close()
        except EbbtideError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def warehouse(self) -> str | None:
        """Returns the location of the catalog's warehouse, or None if its settings name none, or
        only a name. Raises Refused `repository_readonly` for a catalog of MANAGED."""
        known = dict(self.properties)
        address = f"{known.get('uri', '')} {known.get('rest.signing-name', '')}".lower()
        for sign, what in MANAGED.items():
            if sign in address:
                raise Refused(
                    "repository_readonly",
                    f"the catalog {self.name} is one of {what}: no run may delete beside it",
                )
        found = known.get("warehouse")
        return found if found and ("/" in found and (":" in found or found[0] == "/")) else None

    def pointers(self) -> Pointers:
        """Returns the tables of the whole catalog at one time.

        A catalog of SQL answers with all of them at once. Those of other catalogs are looked up one
        after the other. A table that is renamed meanwhile could be missed under both names, and its
        files would seem to be needed by nobody. So the names are listed before and after, until
        both are equal. Raises Failed `catalog_error`, and Refused `repository_changed` if they
        never are.
        """
        with self.opened() as catalog:
            if isinstance(catalog, SqlCatalog):
                return _pointers_of(catalog)
            for _ in range(LOOKS_MAX):
                names = set(_names(catalog, ()))
                found = {}
                for name in sorted(names):
                    try:
                        location = catalog.load_table(name).metadata_location
                    except NoSuchIcebergTableError:
                        continue  # a table of another format, in a catalog that has both
                    except NoSuchTableError:
                        break  # dropped or renamed just now
                    found[".".join(name)] = location
                else:
                    if names == set(_names(catalog, ())):
                        return found
        raise Refused(
            "repository_changed",
            f"the tables of catalog {self.name} were changed each time that they were listed: run "
            "this again later",
        )

    def pointer(self, table: str) -> str | None:
        """Returns where a table points now, or None without such a table. Raises Failed
        `catalog_error`."""
        with self.opened() as catalog:
            try:
                return str(catalog.load_table(table).metadata_location)
            except NoSuchTableError:
                return None

    def _failure(self, error: Exception) -> Failed:
        reason = str(error).strip().splitlines() or [""]
        return Failed(
            "catalog_error",
            f"the catalog {self.name} does not answer: {type(error).__name__}: {reason[0]:.300}",
        )


def find_catalog(name: str) -> CatalogTables:
    """Returns the catalog of a name in PyIceberg's settings. Raises InvalidInput `invalid_setting`,
    and Failed `catalog_error` if it does not answer."""
    found = CatalogTables(name, ())
    try:
        catalog = load_catalog(name)
        properties = catalog.properties
        catalog.close()
    except (ValueError, KeyError) as error:
        raise InvalidInput(
            "invalid_setting",
            f"PyIceberg has no catalog {name!r}: {error}. Describe it in .pyiceberg.yaml, or by "
            f"variables PYICEBERG_CATALOG__{name.upper()}__URI and so on",
        ) from error
    except Exception as error:
        raise found._failure(error) from error
    texts = {key: str(value) for key, value in properties.items() if value is not None}
    return CatalogTables(name, tuple(sorted(texts.items())))


def _pointers_of(catalog: SqlCatalog) -> Pointers:
    """Returns all tables of a catalog of SQL, by one statement. PyIceberg's own `load_table` would
    read and parse each metadata file."""
    wanted = select(
        IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location
    ).where(IcebergTables.catalog_name == catalog.name)
    # Catalogs of newer versions have views in the same table, and older ones lack the column.
    if (is_table := catalog._iceberg_type_filter()) is not None:
        wanted = wanted.where(is_table)
    with catalog.engine.connect() as connection:
        rows = connection.execute(wanted).all()
    return {f"{namespace}.{name}": str(location) for namespace, name, location in rows}


def _names(catalog: Catalog, namespace: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the names of all tables in a namespace, and in those within it."""
    try:
        inner = catalog.list_namespaces(namespace)
        if namespace:
            yield from catalog.list_tables(namespace)
    except NoSuchNamespaceError:  # it was dropped just now
        return
    for each in inner:
        # Some catalogs answer with the namespace itself if it has none within.
        if len(each) > len(namespace):
            yield from _names(catalog, tuple(each))

"""Names of Iceberg warehouses: `iceberg:CATALOG`, `iceberg:CATALOG.NAMESPACE`, and
`iceberg:CATALOG.NAMESPACE.TABLE`.

`+OTHER` behind each of them names another catalog that has tables on the same storage. It is a part
of the name, because everything that is done with the warehouse needs it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.errors import InvalidInput, UnknownRepository
from ebbtide.formats.schemes import Scheme, require_not_quiet
from ebbtide.imports import require_extra

if TYPE_CHECKING:
    from ebbtide.clock import Clock
    from ebbtide.formats.iceberg.repository import IcebergRepository
    from ebbtide.settings import Settings

PREFIX: Final = "iceberg:"


class IcebergScheme(Scheme):
    """Opens warehouses by the names of PyIceberg's catalogs. No catalog closes a snapshot, so that
    a file can be needed again before a sweep notices it."""

    asks_for_quarantine = True
    has_expiry = True
    grace_setting = "EBBTIDE_ICEBERG_GRACE"
    rules_of_its_own = "the tables' own rules"

    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[IcebergRepository, timedelta]:
        """Returns the warehouse, and `EBBTIDE_ICEBERG_GRACE`."""
        del run_dir  # a warehouse writes no file but on its own storage
        require_not_quiet(quiet=quiet)
        return open_iceberg(name, settings), settings.iceberg_grace


def open_iceberg(name: str, settings: Settings, *, clock: Clock | None = None) -> IcebergRepository:
    """Returns the warehouse of a name. Raises as `Scheme.open`."""
    require_extra("an Iceberg warehouse", "iceberg", "pyiceberg", "fastavro")

    from ebbtide.formats.iceberg.catalog import find_catalog
    from ebbtide.formats.iceberg.layout import IcebergLayout
    from ebbtide.formats.iceberg.places import Places, parse_aliases
    from ebbtide.formats.iceberg.repository import (
        IcebergRepository,
        check_folders,
        left_alone,
    )
    from ebbtide.formats.iceberg.tables import Warehouse
    from ebbtide.formats.locations import outermost
    from ebbtide.storage import open_storage

    catalog_name, within, others = _parse(name)
    catalog, also = find_catalog(catalog_name), tuple(map(find_catalog, others))
    root = settings.iceberg_root or catalog.warehouse()
    if root is None:
        raise InvalidInput(
            "invalid_setting",
            f"the settings of the catalog {catalog_name} name no place of its files: set "
            "EBBTIDE_ICEBERG_ROOT to the folder or bucket that has all of its tables",
            setting="iceberg_root",
        )
    storage = open_storage(root)
    places = Places(storage.url, parse_aliases(settings.iceberg_aliases))
    warehouse = Warehouse(catalog, storage, IcebergLayout(places, ()), also)
    warehouse.check_named()
    tables = warehouse.read().metadata
    named = {
        each
        for each in tables
        if ":" not in each and (not within or f"{each}.".startswith(f"{within}."))
    }
    if not named:
        raise UnknownRepository("repository_not_found", f"there is no table at {name}")
    left_out = left_alone(tables, named - {within})
    folders = outermost(folder for each in named - left_out for folder in tables[each].folders)
    check_folders(folders, storage.url)
    return IcebergRepository(
        replace(warehouse, layout=IcebergLayout(places, folders), known=tables),
        name=name,
        selected=frozenset(named - left_out),
        left_out=left_out,
        settings=settings,
        clock=clock,
    )


def _parse(name: str) -> tuple[str, str, list[str]]:
    """Returns the catalog of a name, what of it is named, and the other catalogs, each once. Names
    of catalogs may have dots. Raises InvalidInput `invalid_argument` for an empty name."""
    from pyiceberg.catalog import list_catalogs

    own, *others = name.removeprefix(PREFIX).split("+")
    if not all([own, *others]):
        raise InvalidInput(
            "invalid_argument",
            f"a catalog is missing in {name!r}: write iceberg:CATALOG, or iceberg:CATALOG+OTHER",
        )
    fits = (each for each in list_catalogs() if f"{own}.".lower().startswith(f"{each}."))
    catalog = own[: len(max(fits, key=len, default=own.partition(".")[0]))]
    within = own.removeprefix(catalog).removeprefix(".")
    return catalog, within, [each for each in dict.fromkeys(others) if each != catalog]

"""The roots of repositories whose files may be collected: objects in them are not referred to from
outside.

Known are the repositories of the store, those elsewhere that `EBBTIDE_SERVER_REPOSITORIES` names,
and roots that are recognized by their files (`storage.roots`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ebbtide.errors import InvalidInput
from ebbtide.settings import Settings
from ebbtide.storage import contains
from ebbtide.storage.roots import root_at_or_above
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.repositories.repository_rows import list_repositories, lock_all_repositories
from ebbtide.text import shown

_ICECHUNK: Final = "icechunk:"


@dataclass(frozen=True, slots=True)
class KnownRoot:
    """The root of a repository. `name` is the repository's name, and `url` the root's URL."""

    name: str
    url: str


def known_roots(tx: Transaction, settings: Settings) -> list[KnownRoot]:
    """Returns the roots of the repositories of the store, and of those that
    `EBBTIDE_SERVER_REPOSITORIES` names by a place."""
    elsewhere = [
        KnownRoot(name, name.removeprefix(_ICECHUNK))
        for name in settings.server_repositories.split()
        if name.startswith(_ICECHUNK)
    ]
    return [KnownRoot(info.name, info.storage_url) for info in list_repositories(tx)] + elsewhere


def lock_known_roots(tx: Transaction, settings: Settings) -> list[KnownRoot]:
    """Returns the known roots. No repository of the store is made until the transaction ends: its
    root could contain an object that is being referred to."""
    lock_all_repositories(tx, "share")
    return known_roots(tx, settings)


def require_outside(places: Iterable[tuple[str, bool]], roots: Iterable[KnownRoot]) -> None:
    """Raises InvalidInput `invalid_address` if an object may lie in one of the roots.

    Places are normalized URLs of directories or prefixes. If the second value is true, all objects
    below the place are meant; otherwise only objects directly in it.
    """
    looked = sorted(set(places))
    for root in roots:
        for url, is_prefix in looked:
            if contains(root.url, url):
                raise _inside(url, f"repository {root.name!r}")
            if is_prefix and contains(url, root.url):
                raise InvalidInput(
                    "invalid_address",
                    f"the storage root of repository {root.name!r} lies below {shown(url)}, and "
                    "its objects may be collected: import the places beside it",
                )


def require_no_root(
    metadata: Metadata, settings: Settings, places: Iterable[tuple[str, bool]], *, must_know: bool
) -> None:
    """Raises as `require_outside` does, also for a root that only its files show. For use before
    the transaction, because it asks the storages. Raises as `root_at_or_above` does."""
    with metadata.snapshot() as tx:
        roots = known_roots(tx, settings)
    asked = sorted(set(places))
    require_outside(asked, roots)
    looked = [place for place, _ in asked]
    found = root_at_or_above(looked, must_know=must_know)
    if found is not None:
        inside = next(each for each in looked if f"{each}/".startswith(found.rstrip("/") + "/"))
        raise _inside(inside, f"the repository at {shown(found)}")


def _inside(url: str, whose: str) -> InvalidInput:
    return InvalidInput(
        "invalid_address",
        f"{shown(url)} lies in the storage root of {whose}, where its objects may be collected: "
        "copy them, or import from another place",
    )

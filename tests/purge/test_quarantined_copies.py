"""Objects of which a quarantine has a copy: a power cut during a move leaves two names."""

from __future__ import annotations

from ebbtide.gc import quarantine
from ebbtide.gc.quarantine import Quarantine
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.conftest import START
from tests.support.purging import address_of, purge, save
from tests.support.world import DAY

RUN_ID = "1" * 32


def test_the_copy_goes_too(store: Store, repository: Repository) -> None:
    save(repository, "a", "b")
    storage = repository.storage
    quarantine.write(storage, Quarantine(RUN_ID, "held", START + DAY))
    copies = {
        path: quarantine.prefix_of(RUN_ID) + address_of(repository, "main", path) for path in "ab"
    }
    for path, copy in copies.items():
        storage.put(copy, path.encode())

    assert purge(store, "main:a").row.state == "done"

    assert storage.head(copies["a"]) is None
    assert storage.get(copies["b"]) == b"b"

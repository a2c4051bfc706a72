"""Nothing may refer to what was purged, and everything else is left alone."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from ebbtide.errors import Gone
from ebbtide.ids import new_id
from ebbtide.store.database import conditions as batches
from ebbtide.store.database.schema import purged
from ebbtide.store.embedded import Store
from ebbtide.store.purges.queries import SHOWN_MAX, find_purged, require_not_purged
from ebbtide.store.repository import Repository


def purge(repository: Repository, addresses: list[str], purge_id: str) -> None:
    with repository.context.metadata.transaction() as tx:
        values = {"repository_id": repository.info.repository_id, "purge_id": purge_id}
        tx.execute(
            sa.insert(purged),
            [values | {"address": address, "purged_at": tx.now()} for address in addresses],
        )


def test_a_purged_address_is_refused_with_the_purges_that_took_it(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "VALUES_PER_STATEMENT", 3)
    gone = [f"data/s/{number:02}" for number in range(12)]
    purge(repository, gone[:5], "p1")
    purge(repository, gone[5:], "p2")
    repository_id = repository.info.repository_id
    with repository.context.metadata.transaction() as tx:
        tx.lock_repository(repository_id)
        require_not_purged(tx, repository_id, ["data/s/kept", "s3://elsewhere/data/s/00"])
        with pytest.raises(Gone) as caught:
            require_not_purged(tx, repository_id, iter(["data/s/kept", *reversed(gone)]))
        assert find_purged(tx, repository_id, [*gone, "data/s/kept"]) == dict.fromkeys(
            gone[:5], "p1"
        ) | dict.fromkeys(gone[5:], "p2")
    assert caught.value.kind == "purged"
    assert caught.value.details == {
        "purge_ids": ["p1", "p2"],
        "address_count": 12,
        "addresses": gone[:SHOWN_MAX],
    }
    assert "data/s/00 and 11 more" in caught.value.message


def test_what_one_repository_purged_is_no_matter_of_another(
    store: Store, repository: Repository
) -> None:
    other = store.create_repository("other", storage_url=f"memory:{new_id()}")
    purge(repository, ["data/s/1"], "p1")
    with other.context.metadata.transaction() as tx:
        require_not_purged(tx, other.info.repository_id, ["data/s/1"])

"""Staged rows of one branch, which are read in pages on SQLite."""

from __future__ import annotations

import pytest

from ebbtide.arrow import texts
from ebbtide.store.collecting import uncommitted as relation
from ebbtide.store.collecting.uncommitted import uncommitted
from ebbtide.store.repository import Repository


@pytest.mark.twins
def test_every_page_is_read(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = {repository.objects.put("main", path, b"1").address for path in "abcdefg"}
    monkeypatch.setattr(relation, "ROWS_PER_TABLE", 2)
    context = repository.context
    with context.metadata.snapshot(scans=True) as tx:
        tables = list(
            uncommitted(
                tx, context.repository_id, now=tx.now(), trash_time=context.settings.trash_time
            )
        )
    assert {each for table in tables for each in texts(table.column("address"))} == staged

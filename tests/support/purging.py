"""Purges as tests ask for them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from ebbtide.purge.plan import PurgeReport
from ebbtide.purge.purger import Purges
from ebbtide.purge.request import PathTarget, Request
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.lakes import contents as contents
from tests.support.lakes import every_file

SECRET_KEY = base64.urlsafe_b64encode(b"k" * 32).decode()
WHO = {"user": "ada", "host": "test"}


def request(*paths: str, **named: Any) -> Request:
    return Request(
        reason="a subject asked for it",
        who=WHO,
        paths=tuple(map(PathTarget.parse, paths)),
        **named,
    )


def purge(store: Store, *paths: str, dry_run: bool = False, **named: Any) -> PurgeReport:
    purges = Purges(store)
    whole = {"repository": True} if named.pop("whole", False) else {}
    row = purges.begin("lake", request(*paths, **whole, **named))
    return purges.carry_out(row.purge_id, dry_run=dry_run)


def in_the_way(report: PurgeReport) -> set[tuple[str, str, tuple[str, ...]]]:
    assert report.plan is not None
    return {(each.kind, each.id, each.names) for each in report.plan.references}


def data_files(repository: Repository, prefix: str = "data/") -> set[str]:
    return every_file(repository, prefix)


def save(repository: Repository, *paths: str, branch: str = "main") -> str:
    for path in paths:
        repository.objects.put(branch, path, path.encode())
    return repository.commits.commit(branch, " ".join(paths)).commit_id


def address_of(repository: Repository, ref: str, path: str) -> str:
    return repository.objects.stat(ref, path).address


def ids(rows: Iterable[Any]) -> set[str]:
    return {row.id for row in rows}

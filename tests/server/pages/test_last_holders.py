"""Who held last what a plan lets go, against the definition: commit by commit, file by file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from ebbtide.gc.parts import read_part
from ebbtide.gc.planning.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.server.pages import last_holders
from ebbtide.server.pages.charts import Bar
from ebbtide.server.pages.last_holders import (
    NEVER,
    UNKNOWN,
    LastPath,
    find_last_holders,
    find_last_paths,
)
from ebbtide.settings import Settings
from ebbtide.store.content.entries import Entry
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.lake import collector_of, fill_lake, leave_garbage

Planned = tuple[Repository, Plan, RunFolder]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planned]:
    """A lake with a plan that nobody has swept."""
    settings = Settings(reclaim=False, spark_master="none", lease_ttl=timedelta(0))
    directory = tmp_path_factory.mktemp("held") / "store"
    with Store.init(directory, settings=settings) as store:
        lake = fill_lake(store, days=60)
        leave_garbage(lake, count=5)
        _hold_on_two(lake)
        lake.retention.set({"default": {"keep_last": 1}})
        collector = collector_of(store, lake)
        report = collector.plan()
        plan = collector.plan_of(report.run_id)
        yield lake, plan, RunFolder.inside(lake.storage, report.run_id)


def _hold_on_two(lake: Repository) -> None:
    """A file that dev had first and main had last, and a second one the other way round."""
    for first, last in (("dev", "main"), ("main", "dev")):
        path = f"shared/from {first}"
        lake.objects.put(first, path, path.encode() * 1000)
        lake.commits.commit(first, "There")
        lake.commits.merge(first, last)
        for branch in (first, last):
            lake.objects.delete(branch, path)
            lake.commits.commit(branch, "Gone")
    for branch in ("main", "dev"):
        lake.objects.put(branch, "newer", b"")
        lake.commits.commit(branch, "So that the others are not heads")


def defined(lake: Repository, plan: Plan, folder: RunFolder) -> tuple[Counter[str], Counter[str]]:
    """Bytes by branch and by directory, by the definition."""
    sizes = sizes_of(plan, folder)
    by_branch: Counter[str] = Counter()
    by_place: Counter[str] = Counter()
    for commit_id, entry in newest_first(lake, folder):
        size = sizes.pop(entry.address, None)
        if size is not None:
            by_branch[branch_of(lake, commit_id)] += size
            by_place["/".join(entry.path.split("/")[:-1][:2]) + "/"] += size
    by_branch[NEVER] += sum(sizes.values())
    by_place[NEVER] += sum(sizes.values())
    return by_branch, by_place


def sizes_of(plan: Plan, folder: RunFolder) -> dict[str, int]:
    """The size of each object that the plan names, by its address."""
    parts = [part for part in plan.candidates if part.kind == "object"]
    rows = [row for part in parts for row in read_part(folder, part.name).to_pylist()]
    return {row["address"]: row["size_bytes"] for row in rows}


def newest_first(lake: Repository, folder: RunFolder) -> Iterator[tuple[str, Entry]]:
    """The entries of all expired commits, each with its commit; those of the newest come first."""
    rows = read_part(folder, "commits.parquet").to_pylist()
    gone = [row for row in rows if not row["active"]]
    for row in sorted(gone, key=lambda row: row["created_at"], reverse=True):
        for entry in lake.objects.walk(row["commit_id"]):
            yield row["commit_id"], entry


def branch_of(lake: Repository, commit_id: str) -> str:
    """The first branch, the default one before others, on whose main ancestry a commit is."""
    branches = lake.branches.list(include_expired=True)
    for branch in sorted(branches, key=lambda each: (each.name != "main", each.name)):
        history = lake.commits.log(branch.commit_id, first_parent=True, amount=1000)
        if commit_id in {commit.commit_id for commit in history}:
            return branch.name
    return last_holders.NO_BRANCH


def sums(rows: list[Bar]) -> dict[str, int]:
    return {row.label: row.size_bytes for row in rows if row.size_bytes}


def test_against_the_definition(planned: Planned) -> None:
    found = find_last_holders(*planned)
    assert found is not None and found.complete
    by_branch, by_place = defined(*planned)
    assert len(by_branch) > 2 and by_branch[NEVER] > 0
    assert sums(list(found.branches)) == {**by_branch}
    assert sums(list(found.places)) == {**by_place}
    assert sum(row.count for row in found.branches) == len(sizes_of(planned[1], planned[2]))


def test_what_was_not_read_is_said(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = find_last_holders(*planned)
    assert whole is not None
    for limit in ("TREES_MAX", "RANGES_MAX"):
        monkeypatch.setattr(last_holders, limit, 3)
        found = find_last_holders(*planned)
        monkeypatch.undo()
        assert found is not None and not found.complete, limit
        known = sums(list(found.branches))
        assert NEVER not in known and known[UNKNOWN] > sums(list(whole.branches))[NEVER], limit
        assert sum(known.values()) == sum(sums(list(whole.branches)).values()), limit


def test_what_cannot_be_read_or_is_too_much(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(last_holders, "find_commits", lambda *_asked: {})
        found = find_last_holders(*planned)
    assert found is not None and not found.complete
    assert set(sums(list(found.branches))) == {UNKNOWN}
    monkeypatch.setattr(last_holders, "OBJECTS_MAX", 3)
    assert find_last_holders(*planned) is None


def test_paths_against_the_definition(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path in the newest expired commit that has the object; none of files that were never
    committed, and of files that nobody asked about."""
    lake, plan, folder = planned
    asked = list(sizes_of(plan, folder))[::2]
    defined: dict[str, LastPath] = {}
    for commit_id, entry in newest_first(lake, folder):
        if entry.address in asked:
            last = LastPath(entry.path, commit_id, branch_of(lake, commit_id))
            defined.setdefault(entry.address, last)
    found = find_last_paths(lake, plan, folder, asked)
    assert found.complete and found.by_address == defined
    assert 2 < len(defined) < len(asked)
    assert find_last_paths(lake, plan, folder, []).by_address == {}

    monkeypatch.setattr(last_holders, "PATH_RANGES_MAX", 2)
    part = find_last_paths(lake, plan, folder, asked)
    assert not part.complete and part.by_address.items() < defined.items()

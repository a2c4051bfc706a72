"""The files of a plan. Read in parts: pages and searches find what a plain filter finds, and charts
add up to what a plain sum does. Who held each last, commit by commit, against the definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.arrow import table_of
from ebbtide.audit.candidate_names import expired_commits, names_of_candidates
from ebbtide.errors import Failed, Refused
from ebbtide.formats import embedded, file_names
from ebbtide.formats.base import tree_address
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.file_names import FileName, FileNames
from ebbtide.gc.candidates import CANDIDATE_SCHEMA
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.plan import Plan
from ebbtide.gc.runs import RunFolder
from ebbtide.ids import descending_id, new_id
from ebbtide.server.pages import candidates as candidate_pages
from ebbtide.server.pages import last_holders
from ebbtide.server.pages.candidates import (
    AGES,
    CandidateFilter,
    CandidateRow,
    Charts,
    draw,
    find,
)
from ebbtide.server.pages.charts import Bar
from ebbtide.server.pages.last_holders import NEVER, UNKNOWN, LastHolders, find_last_holders
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from ebbtide.store.content.entries import Entry
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support.lake import collector_of, fill_lake, leave_garbage
from tests.support.randomized import examples, randomized

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
KINDS = ("object", "range", "tree")

candidates = st.builds(
    CandidateRow,
    address=st.builds(
        lambda folder, name: f"{folder}{name}",
        st.sampled_from(["data/x/", "data/y/", "_ebbtide/trees/", ""]),
        st.text("abc.%é", min_size=1, max_size=4),
    ),
    size_bytes=st.sampled_from([0, 1, 999, 1000]) | st.integers(0, 2000),
    last_modified=st.builds(lambda hours: NOW - timedelta(hours=hours), st.integers(0, 24 * 500)),
    kind=st.just("object"),
)
groups = st.lists(st.tuples(st.sampled_from(KINDS), st.lists(candidates, min_size=1)), max_size=5)
searches = st.builds(
    CandidateFilter,
    text=st.text("ab.%é", max_size=2),
    kind=st.sampled_from(["", *KINDS]),
    bytes_min=st.sampled_from([0, 1, 1000]),
)


def write(groups: list[tuple[str, list[CandidateRow]]]) -> tuple[RunFolder, list[Part]]:
    folder, answer = RunFolder(open_storage(f"memory:{new_id()}"), "run/"), PartRows()
    for number, (kind, rows) in enumerate(groups):
        table = table_of(
            [(r.address, r.size_bytes, r.last_modified, kind, None, None) for r in rows],
            CANDIDATE_SCHEMA,
        )
        answer.wrote(folder, f"candidates/{number:03d}.parquet", table, kind=kind)
    return folder, sorted(answer.parts(), key=lambda part: part.name)


def pages(
    folder: RunFolder, parts: list[Part], search: CandidateFilter, amount: int
) -> Iterator[CandidateRow]:
    position: int | None = 0
    while position is not None:
        found = find(folder, parts, search, position=position, amount=amount)
        assert len(found.rows) <= amount
        yield from found.rows
        assert found.next_position is None or found.next_position > position
        position = found.next_position


@randomized("pages of candidates")
@examples("pages of candidates")
@given(groups, searches, st.integers(1, 7), st.sampled_from([1, 10, 10**6]))
def test_pages_and_charts_against_a_plain_filter(
    groups: list[tuple[str, list[CandidateRow]]],
    search: CandidateFilter,
    amount: int,
    scanned_max: int,
) -> None:
    folder, parts = write(groups)
    expected = [
        (row.address, row.size_bytes, kind)
        for kind, rows in groups
        for row in rows
        if search.text in row.address
        and search.kind in ("", kind)
        and row.size_bytes >= search.bytes_min
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidate_pages, "SCANNED_MAX", scanned_max)
        found = list(pages(folder, parts, search, amount))
    assert [(row.address, row.size_bytes, row.kind) for row in found] == expected
    check_charts(draw(folder, parts, now=NOW), groups)


def check_charts(charts: Charts, groups: list[tuple[str, list[CandidateRow]]]) -> None:
    """They add up to what a plain sum does."""
    rows = [row for _, rows in groups for row in rows]
    for number, (label, age_max) in enumerate(AGES):
        age_min = AGES[number - 1][1] if number else timedelta(0)
        fits = [row for row in rows if age_min <= NOW - row.last_modified < age_max]
        bar = charts.ages[number]
        sums = (label, len(fits), sum(row.size_bytes for row in fits))
        assert (bar.label, bar.count, bar.size_bytes) == sums
    for bars in (charts.ages, charts.places, charts.kinds):
        assert sum(bar.count for bar in bars) == len(rows)
        assert sum(bar.size_bytes or 0 for bar in bars) == sum(row.size_bytes for row in rows)
    top = sum(row.size_bytes for row in rows if "/" not in row.address)
    assert sum(bar.size_bytes or 0 for bar in charts.places if bar.label == "(top)") == top


def test_many_places_are_gathered() -> None:
    rows = [
        CandidateRow(
            f"data/{descending_id(NOW - timedelta(hours=number))}/f", number, NOW, "object"
        )
        for number in range(1, 41)
    ]
    charts = draw(*write([("object", rows)]), now=NOW)
    assert charts.places[0].label == "data, written from 2029-12-30 20:00"
    assert charts.places[-1].label == "28 others"
    assert charts.places[-1].size_bytes == sum(range(1, 29))


def test_only_what_a_page_needs_is_read() -> None:
    """A part that nobody needs may be damaged; one that is needed may not."""
    row = CandidateRow("data/x/a", 1, NOW, "object")
    folder, parts = write([("object", [row] * 3), ("range", [row]), ("object", [row] * 3)])
    folder.storage.put(folder.address(str(parts[1].name)), b"damaged")
    assert len(find(folder, parts, CandidateFilter(), position=0, amount=2).rows) == 2
    assert len(find(folder, parts, CandidateFilter(kind="object"), position=0, amount=9).rows) == 6
    assert len(find(folder, parts, CandidateFilter(), position=5, amount=9).rows) == 2
    with pytest.raises(Refused):
        find(folder, parts, CandidateFilter(), position=2, amount=9)


Planned = tuple[Repository, Plan, RunFolder]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planned]:
    """A lake with a plan that nobody has swept."""
    settings = Settings(reclaim=False, spark_master="none", lease_ttl=timedelta(0))
    directory = tmp_path_factory.mktemp("held") / "store"
    with Store.init(directory, settings=settings) as store:
        lake = fill_lake(store, days=36)
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


def form_of(lake: Repository, plan: Plan) -> EmbeddedRepository:
    return EmbeddedRepository(lake.context, store_id=plan.identity.store_id)


def held_last(lake: Repository, plan: Plan, folder: RunFolder) -> LastHolders | None:
    return find_last_holders(form_of(lake, plan), plan, folder, default_branch="main")


def test_against_the_definition(planned: Planned) -> None:
    found = held_last(*planned)
    assert found is not None and found.complete
    by_branch, by_place = defined(*planned)
    assert len(by_branch) > 2 and by_branch[NEVER] > 0
    assert sums(list(found.branches)) == {**by_branch}
    assert sums(list(found.places)) == {**by_place}
    assert sum(row.count for row in found.branches) == len(sizes_of(planned[1], planned[2]))


def test_what_was_not_read_is_said(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = held_last(*planned)
    assert whole is not None
    for module, limit in ((file_names, "TREES_MAX"), (last_holders, "RANGES_MAX")):
        monkeypatch.setattr(module, limit, 3)
        found = held_last(*planned)
        monkeypatch.undo()
        assert found is not None and not found.complete, limit
        known = sums(list(found.branches))
        assert NEVER not in known and known[UNKNOWN] > sums(list(whole.branches))[NEVER], limit
        assert sum(known.values()) == sum(sums(list(whole.branches)).values()), limit
    with monkeypatch.context() as patched:
        patched.setattr(embedded, "find_commits", lambda *_asked: {})
        found = held_last(*planned)
    assert found is not None and not found.complete
    assert set(sums(list(found.branches))) == {UNKNOWN}
    monkeypatch.setattr(last_holders, "OBJECTS_MAX", 3)
    assert held_last(*planned) is None


def test_names_against_the_definition(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path in the newest expired commit that has the object; none of files that were never
    committed, and of files that nobody asked about."""
    lake, plan, folder = planned
    form = form_of(lake, plan)
    asked = list(sizes_of(plan, folder))[::2]
    defined: dict[str, FileName] = {}
    for commit_id, entry in newest_first(lake, folder):
        if entry.address in asked:
            defined.setdefault(entry.address, FileName(entry.path, commit_id))
    found = names_of_candidates(form, plan, folder, asked)
    assert found.complete and found.by_address == defined
    assert 2 < len(defined) < len(asked)
    assert names_of_candidates(form, plan, folder, []).by_address == {}

    expired = expired_commits(plan, folder)[0]
    tree = tree_address(form.layout, expired.tree_id)
    message = lake.commits.get(expired.commit_id).message
    named = names_of_candidates(form, plan, folder, [tree]).by_address
    assert message and named == {tree: FileName(message, expired.commit_id)}

    monkeypatch.setattr(file_names, "NODES_MAX", 2)
    part = names_of_candidates(form, plan, folder, asked)
    assert not part.complete and part.by_address.items() < defined.items()


def test_a_catalog_that_does_not_answer_costs_only_the_names(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, plan, folder = planned
    form = form_of(lake, plan)

    def fail(*_asked: object) -> NoReturn:
        raise Failed("database_error", "it is down")

    monkeypatch.setattr(form, "file_names", fail)
    assert names_of_candidates(form, plan, folder, ["data/x"]) == FileNames({}, complete=False)

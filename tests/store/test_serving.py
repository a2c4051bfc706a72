"""What the store does for its server: lists in parts, conditions, picks, exports, and the rest."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pyarrow.parquet as pq
import pytest

from ebbtide.errors import EbbtideError, NotFound
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.store.embedded import Store
from ebbtide.store.gc.exports import EXPORTS_PREFIX
from ebbtide.store.refs.policies import DayRules
from ebbtide.store.repositories.owner import MOVE_EVERY, OWNER_ADDRESS
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import OnlyIf
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import contents, save_files

HOUR = timedelta(hours=1)


@pytest.mark.twins
def test_refs_and_repositories_in_parts(store: Store, repository: Repository) -> None:
    names = ["B", "a", "a-b", "a/b", "b", "main", "z"]
    for name in names:
        if name != "main":
            repository.branches.create(name, "main", hidden=name == "b")
    shown = sorted(name for name in names if name != "b")
    for amount in (1, 3, 100):
        found: list[str] = []
        while page := repository.branches.page(after=found[-1] if found else "", amount=amount):
            found += [branch.name for branch in page]
        assert found == shown
    assert [each.name for each in repository.branches.page(hidden=True)] == sorted(names)
    assert [each.name for each in repository.branches.page(prefix="a")] == ["a", "a-b", "a/b"]
    assert repository.branches.get("b").hidden
    head = save_files(repository, "b", a=b"1")
    seen = EmbeddedRepository(repository.context, store_id=store.store_id)
    with seen.reading() as reading:
        assert head in {ref.commit_id for ref in reading.roots().refs}, "its data is kept"
    repository.branches.delete("a")
    assert "a" not in [each.name for each in repository.branches.page()]
    repository.tags.create("v1", "main")
    repository.tags.create("v2", "main")
    assert [each.name for each in repository.tags.page(after="v1")] == ["v2"]
    for name in ("lake-2", "lake2", "other"):
        store.create_repository(name, storage_url=f"memory:{name}-{id(store)}")
    listed = [each.info.name for each in store.catalog.page(prefix="lake", after="lake")]
    assert listed == ["lake-2", "lake2"]
    found_names = [each.info.name for each in store.catalog.page(search="e-")]
    assert found_names == ["lake-2"]
    assert store.catalog.page(search="%") == []
    with raises("invalid_argument"):
        repository.branches.page(amount=0)


def test_writes_and_deletes_on_a_condition(repository: Repository) -> None:
    objects = repository.objects

    def refused(call: Callable[[], object]) -> None:
        with raises("precondition_failed"):
            call()

    first = objects.put("main", "a", b"1", only_if=OnlyIf())
    for state in ("staged", "committed"):
        refused(lambda: objects.put("main", "a", b"2", only_if=OnlyIf()))
        refused(lambda: objects.put("main", "a", b"2", only_if=OnlyIf("x")))
        refused(lambda: objects.delete_if("main", "a", OnlyIf("x")))
        if state == "staged":
            repository.commits.commit("main", "a")
    refused(lambda: objects.put("main", "b", b"2", only_if=OnlyIf(first.checksum)))
    second = objects.put("main", "a", b"2", only_if=OnlyIf(first.checksum))
    refused(lambda: objects.put("main", "a", b"3", only_if=OnlyIf(first.checksum)))
    refused(lambda: objects.delete_if("main", "a", OnlyIf(first.checksum)))
    assert objects.delete_if("main", "a", OnlyIf(second.checksum))
    assert not objects.delete_if("main", "a", OnlyIf(first.checksum))
    objects.put("main", "b", b"4", only_if=OnlyIf())
    assert objects.delete_if("main", "b", OnlyIf(objects.stat("main", "b").checksum))
    assert contents(repository, "main") == {}
    assert contents(repository, "main@") == {"a": b"1"}
    with raises("branch_not_found"):
        objects.delete_if("no", "a", OnlyIf("x"))


@pytest.mark.twins
def test_of_many_who_write_where_nothing_is_one_does(repository: Repository) -> None:
    def write(number: int) -> bool:
        try:
            repository.objects.put("main", "a", str(number).encode(), only_if=OnlyIf())
        except EbbtideError as error:
            assert error.kind == "precondition_failed"
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1


def test_a_readable_object_stays_what_it_was(repository: Repository) -> None:
    repository.objects.put("main", "a", b"old")
    found = repository.objects.open("main", "a")
    repository.objects.put("main", "a", b"newer")
    assert b"".join(found.stream()) == b"old"
    assert b"".join(found.stream(start=1, end=2)) == b"l"
    assert found.entry.size_bytes == 3


def test_what_a_pick_says_is_replaced_part_by_part(repository: Repository) -> None:
    save_files(repository, a=b"1")
    old = repository.commits.resolve("main")
    repository.objects.put("main", "a", b"2")
    picked = repository.commits.commit("main", "picked", metadata={"k": "v"}).commit_id
    origin = {"cherry-pick-origin": picked, "cherry-pick-committer": ""}
    asked: tuple[tuple[str | None, dict[str, str] | None], ...] = (
        *((None, None), (None, {}), ("own", None), ("own", {"l": "w"})),
    )
    for number, (message, metadata) in enumerate(asked):
        repository.branches.create(f"{number}", old)
        made = repository.commits.cherry_pick(
            f"{number}", picked, message=message, metadata=metadata, committer="me"
        )
        assert (made.message, made.committer) == (message or "picked", "me")
        assert made.metadata == ({"k": "v"} if metadata is None else metadata) | origin


def test_picks(repository: Repository) -> None:
    save_files(repository, a=b"1", b=b"1")
    repository.branches.create("old", "main")
    picked = save_files(repository, a=b"2", b=None, c=b"1")
    save_files(repository, d=b"1")
    repository.commits.cherry_pick("old", picked)
    assert contents(repository, "old") == {"a": b"2", "c": b"1"}
    with raises("nothing_to_commit"):
        repository.commits.cherry_pick("old", picked)
    save_files(repository, "old", a=b"mine")
    repository.commits.revert("main", picked)
    with raises("merge_conflict"):
        repository.commits.cherry_pick("old", "main")
    merged = repository.commits.merge("main", "old", strategy="dest-wins").commit_id
    with raises("invalid_argument"):
        repository.commits.revert("old", merged, parent_number=None)
    for parent_number in (None, 3):
        with raises("invalid_argument"):
            repository.commits.cherry_pick("main", merged, parent_number=parent_number)
    with raises("nothing_to_commit"):
        repository.commits.revert("main", merged, parent_number=2)
    repository.commits.revert("main", merged, parent_number=2, allow_empty=True)
    repository.objects.put("old", "x", b"")
    with raises("branch_dirty"):
        repository.commits.cherry_pick("old", picked)


def test_squashed_and_empty_merges(repository: Repository) -> None:
    save_files(repository, a=b"1")
    repository.branches.create("dev", "main")
    before = repository.commits.resolve("main")
    with raises("nothing_to_merge"):
        repository.commits.merge("dev", "main")
    assert repository.commits.merge("dev", "main", allow_empty=True).parent_ids == (before, before)
    save_files(repository, "dev", b=b"2")
    squashed = repository.commits.merge("dev", "main", squash=True)
    assert len(squashed.parent_ids) == 1
    assert contents(repository, "main") == {"a": b"1", "b": b"2"}
    left, right, base = repository.commits.merge_base("dev", "main")
    assert (left, right, base) == (
        repository.commits.resolve("dev"),
        squashed.commit_id,
        before,
    )


def test_differences_in_parts(repository: Repository) -> None:
    save_files(repository, a=b"1", both=b"1", same=b"1")
    repository.branches.create("dev", "main")
    save_files(repository, "dev", **{"a": b"2", "both": b"d", "p/1": b"", "p/2": b"", "same": b"2"})
    save_files(repository, both=b"m", mine=b"1", same=b"2")
    page = repository.commits.page_of_diff("main", "dev", three_dot=True, delimiter="/")
    kinds = [(each.path, each.kind) for each in page.entries]
    assert kinds == [("a", "changed"), ("both", "conflict")]
    assert page.common_prefixes == ("p/",)
    first = repository.commits.page_of_diff("main", "dev", amount=2)
    assert [each.path for each in first.entries] == ["a", "both"]
    rest = repository.commits.page_of_diff("main", "dev", after=first.next_after or "", amount=9)
    assert [(each.path, each.kind) for each in rest.entries] == [
        ("mine", "removed"),
        ("p/1", "added"),
        ("p/2", "added"),
    ]
    for path in ("q/1", "q/2", "z"):
        repository.objects.put("dev", path, b"")
    staged = repository.commits.page_of_staged("dev", delimiter="/", amount=1)
    assert (staged.entries, staged.common_prefixes, staged.next_after) == ((), ("q/",), "q/")
    last = repository.commits.page_of_staged("dev", delimiter="/", after="q/", amount=1)
    assert [each.path for each in last.entries] == ["z"]


def test_a_log_by_what_was_changed(repository: Repository, clock: ManualClock) -> None:
    ids = []
    for files in ({"a": b"1"}, {"p/x": b"1"}, {"a": b"2"}, {"b": b"1"}):
        clock.advance(HOUR)
        ids.append(save_files(repository, **files))

    def found(**wanted: object) -> list[int]:
        log = repository.commits.log("main", **wanted)  # type: ignore[arg-type]
        return [ids.index(record.commit_id) for record in log if record.commit_id in ids]

    assert found() == [3, 2, 1, 0]
    assert found(paths=["a"]) == [2, 0]
    assert found(prefixes=["p/"]) == [1]
    assert found(paths=["a"], prefixes=["p/"], amount=2) == [2, 1]
    assert found(paths=["a"], prefixes=["p/"], after=ids[1]) == [0]
    assert found(since=clock.now - HOUR) == [3, 2]
    assert found(stop_at=ids[1]) == [3, 2, 1]
    assert found(stop_at=ids[1], paths=["a"]) == [2]
    with raises("invalid_date"):
        found(since=clock.now.replace(tzinfo=None))


def test_a_date_in_whole_seconds(repository: Repository, clock: ManualClock) -> None:
    clock.advance(timedelta(milliseconds=700))
    save_files(repository, a=b"1")
    repository.objects.put("main", "a", b"2")
    second, whole = clock.now.replace(microsecond=0), timedelta(seconds=1)
    with raises("invalid_date"):
        repository.commits.commit("main", "m", date=second)
    with raises("invalid_date"):
        repository.commits.commit("main", "m", date=second - whole, date_precision=whole)
    made = repository.commits.commit("main", "m", date=second, date_precision=whole)
    assert made.created_at == clock.now + timedelta(microseconds=1)


def test_linking_by_address(repository: Repository, clock: ManualClock) -> None:
    addresses = repository.addresses
    given_out = addresses.get("main", "a")
    assert addresses.token_of(given_out.url) == given_out.token
    repository.storage.put(given_out.address, b"data")
    addresses.link("main", "a", addresses.token_of(given_out.url))
    with raises("token_used"):
        addresses.token_of(given_out.url)
    for url in ("s3://other/data", "", given_out.url[:-1], repository.storage.url):
        with pytest.raises(EbbtideError) as caught:
            addresses.token_of(url)
        assert caught.value.kind in ("invalid_address", "token_used")
    late = addresses.get("main", "b")
    clock.advance(2 * HOUR)
    with raises("token_expired"):
        addresses.link("main", "b", addresses.token_of(late.url))


def test_days(repository: Repository) -> None:
    retention = repository.retention
    with raises("policy_not_found"):
        retention.get_days()
    rules = DayRules(7, {"main": 30})
    retention.set_days(rules)
    assert retention.get_days() == rules
    assert retention.get() == rules.to_policy()
    for bad, kind in (
        (DayRules(0, {}), "invalid_policy"),
        (DayRules(7, {"main": -1}), "invalid_policy"),
        (DayRules(10**9, {}), "invalid_duration"),
        (DayRules(7, {"user-*": 1}), "invalid_name"),
    ):
        with raises(kind):
            retention.set_days(bad)
    assert retention.get_days() == rules
    retention.set({"default": {"keep_last": 1}})
    for operation in (
        retention.get_days,
        retention.unset_days,
        lambda: retention.set_days(rules),
    ):
        with raises("policy_not_in_days"):
            operation()
    retention.set({"default": "14d"})
    retention.unset_days()
    assert retention.get() is None


def test_exports(repository: Repository) -> None:
    """How tasks end: `test_retention.py`."""
    head = save_files(repository, a=b"1")
    repository.objects.put("main", "b", b"2")
    export = repository.exports.commits()
    place = f"{EXPORTS_PREFIX}{export.export_id}/"
    lines = repository.storage.get(f"{place}commits.csv").decode().splitlines()
    assert lines[0] == "commit_id,expired,metarange_id"
    assert any(line.startswith(f"{head},false,") for line in lines)
    task = repository.exports.begin()
    assert not repository.exports.state(task).completed
    repository.exports.carry_out(task)
    result = repository.exports.state(task).result
    assert result is not None
    assert result.export_id == task
    with raises("invalid_argument"):
        repository.exports.uncommitted("nonsense")


def test_what_is_uncommitted_comes_in_parts(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.gc.exports.EXPORT_ROWS_MAX", 2)
    expected = {repository.objects.put("main", str(number), b"").address for number in range(5)}
    part = repository.exports.uncommitted()
    parts = [part]
    while part.continuation is not None:
        part = repository.exports.uncommitted(part.continuation)
        parts.append(part)
    assert len(parts) > 2
    assert len({(each.export_id, each.url) for each in parts}) == 1
    found: set[str] = set()
    for batch in repository.storage.list(f"{EXPORTS_PREFIX}{part.export_id}/"):
        for address in batch.column("address").to_pylist():
            table = pq.read_table(io.BytesIO(repository.storage.get(str(address))))
            found |= {str(each) for each in table.column("physical_address").to_pylist()}
    assert found == expected


def test_deleting_a_repository(store: Store, repository: Repository, clock: ManualClock) -> None:
    """It is in the trash with all it holds: to be brought back, and nothing else can be done."""
    repository.objects.put("main", "b", b"2")
    repository.tags.create("v1", "main")
    given = repository.addresses.get("main", "c")
    deleted = store.catalog.delete("lake")
    assert (deleted.state.value, deleted.info.expires_at) == ("trashed", clock.now)
    assert store.catalog.list() == []
    with pytest.raises(NotFound, match=f"repo restore {deleted.info.repository_id}"):
        store.repository("lake")
    with raises("nested_root"):
        store.create_repository("lake", storage_url=repository.info.storage_url)
    # Who still has it in hands changes nothing either.
    for work in (
        lambda: store.catalog.delete("lake"),
        lambda: repository.branches.create("dev", "main"),
        lambda: repository.tags.delete("v1"),
        lambda: repository.commits.commit("main", "late"),
        lambda: repository.retention.set({"default": "7d"}),
    ):
        with raises("repository_not_found"):
            work()
    clock.advance(store.settings.trash_time - timedelta(microseconds=1))
    other = store.create_repository("lake", storage_url=f"memory:again-{id(store)}")
    with raises("repository_exists"):
        store.catalog.restore(deleted.info.repository_id)
    back = store.catalog.restore(deleted.info.repository_id, ensure_unique_name=True)
    assert (back.info.name, back.state.value) == ("lake-2", "persistent")
    assert store.repository("lake").info == other.info
    lake = store.repository("lake-2")
    assert lake.info == back.info
    assert lake.objects.get("main", "b") == b"2"
    assert [tag.name for tag in lake.tags.list()] == ["v1"]
    with raises("token_expired"):
        lake.addresses.link("main", "c", given.token)
    store.catalog.delete("lake-2")
    clock.advance(store.settings.trash_time)
    with raises("repository_not_found"):
        store.catalog.restore(deleted.info.repository_id)
    assert [each.info.repository_id for each in store.catalog.gone()] == [lake.info.repository_id]


def test_a_repository_of_another_database_is_not_changed(
    store: Store, repository: Repository, clock: ManualClock
) -> None:
    """Refused before the change, which would keep more than the storage's owner knows of."""
    deleted = store.create_repository("pond", storage_url=f"memory:pond-{id(store)}")
    store.catalog.delete("pond")
    before = store.catalog.list(include_expired=True)
    for lake in (repository, deleted):
        lake.storage.put(OWNER_ADDRESS, b"{}")
    clock.advance(MOVE_EVERY)
    calls: list[Callable[[], object]] = [
        lambda: store.catalog.restore("pond"),
        lambda: store.catalog.set_expiry("lake", clock.now + timedelta(days=3)),
    ]
    for call in calls:
        with raises("storage_foreign") as refused:
            call()
        assert "the change is made" not in refused.value.message
    assert store.catalog.list(include_expired=True) == before


def test_a_repository_made_in_the_place_of_one_in_the_trash(store: Store) -> None:
    """Its name is free, its place is not: another is found."""
    first = store.create_repository("lake").info
    for number in (2, 3):
        store.catalog.delete("lake")
        made = store.create_repository("lake").info
        assert made.storage_url == f"{first.storage_url}-{number}"
    with raises("ref_ambiguous"):
        store.catalog.restore("lake")
    with raises("repository_exists"):
        store.catalog.restore(first.repository_id)
    with raises("invalid_name"):
        store.create_repository("0" * 32)

"""The file `repo` of version 2: read as Icechunk wrote it, and written so that Icechunk reads it.

What Icechunk's own interface says of a repository is the second opinion throughout.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import icechunk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import Conflict
from ebbtide.formats.icechunk import tables
from ebbtide.formats.icechunk.files import DamagedError, UnknownFieldError
from ebbtide.formats.icechunk.ids import ROOT_ID, id_text
from ebbtide.formats.icechunk.repo import (
    REPO,
    REPO_ADDRESS,
    Edit,
    RepoFile,
    parse_repo,
    write_repo,
)
from ebbtide.formats.icechunk.state import history_of, load_repo
from ebbtide.formats.icechunk.tables import Row, Table, decode, encode
from ebbtide.retention.expiry import ExpiryRequest, plan_expiry
from ebbtide.storage import Storage, open_storage
from tests.formats.icechunk.operations import (
    chain_of,
    collect_copies,
    commit,
    log_of,
    operate,
)
from tests.support.errors import raises
from tests.support.faulty import FaultyStorage, Hook
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    create_repository,
    instant_between,
    open_repository,
)
from tests.support.icechunk_files import files_of, new_file
from tests.support.randomized import examples, randomized

pytestmark = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="writes no version 2")

REPO_TYPE = 6


def storage_of(path: Path) -> Storage:
    return open_storage(str(path))


def write(path: Path, kind: str = "GCRan", **edit: Any) -> RepoFile:
    storage = storage_of(path)
    return write_repo(storage, load_repo(storage), Edit(kind=kind, **edit), datetime.now(UTC))


def filed(row: Row) -> bytes:
    return new_file(encode(row, REPO), REPO_TYPE, 2, compressed=True)


@dataclass(frozen=True)
class Seen:
    """What Icechunk says of a repository; `ancestries` by ref, `logs` newest first."""

    ancestries: dict[str, list[tuple[Any, ...]]]
    settings: tuple[str, ...]
    log: list[tuple[str, datetime]]


def in_order(attributes: Mapping[str, Any]) -> str:
    return json.dumps(attributes, sort_keys=True)


def seen(path: Path) -> Seen:
    repository = open_repository(path)
    names = [("branch", name) for name in sorted(repository.list_branches())]
    names += [("tag", name) for name in sorted(repository.list_tags())]
    ancestries = {
        f"{kind} {name}": [
            (each.id, each.parent_id, each.written_at, each.message, in_order(each.metadata))
            for each in repository.ancestry(**{kind: name})
        ]
        for kind, name in names
    }
    status = repository.get_status()
    said = (
        in_order(repository.get_metadata()),
        str(repository.config),
        str((status.availability, status.set_at, status.limited_availability_reason)),
        str(repository.feature_flags()),
        str(sorted(repository.inspect_repo_info()["deleted_tags"])),
    )
    return Seen(ancestries, said, log_of(path))


def build_rich(path: Path, seed: int) -> None:
    """A random history, and every setting that a repository may have."""
    build_random(path, seed, 2)
    repository = open_repository(path)
    repository.set_metadata({"owner": "somebody", "numbers": [1, 2.5, None], "deep": {"é": True}})
    repository.set_feature_flag("move_node", False)
    repository.set_feature_flag("delete_tag", True)
    repository.create_branch("einzweidrei", commit(repository, author="nobody", n=[1, {"a": 2}]))
    for name in ("zz", "é", "a b"):
        repository.create_tag(name, repository.lookup_branch("main"))
        repository.delete_tag(name)
    repository.create_tag("last", commit(repository))


def rows(kind: Table) -> st.SearchStrategy[Row]:
    """Tables of a kind: numbers are always there, anything else may be absent."""
    required = {n: _values(f) for n, f in kind.fields if isinstance(f, tables.Number)}
    optional = {n: _values(f) for n, f in kind.fields if not isinstance(f, tables.Number)}
    return st.fixed_dictionaries(required, optional=optional)


def _values(field: tables.Field) -> st.SearchStrategy[Any]:
    match field:
        case tables.Number(packed):
            low, bits = (-(1 << 31), 31) if packed.format == "<i" else (0, 8 * packed.size)
            return st.integers(low, (1 << bits) - 1)
        case tables.Fixed(size):
            return st.binary(min_size=size, max_size=size)
        case tables.Text():
            return st.text(max_size=5)
        case tables.Vector(of) if of is tables.UINT8:
            return st.binary(max_size=5)
        case tables.Vector(of):
            return st.lists(_values(of), max_size=3)
        case tables.Table():
            return rows(field)
        case tables.Union(kinds):
            numbered = enumerate(kinds, 1)
            return st.one_of([st.tuples(st.just(n), rows(each)) for n, each in numbered])


class TestTables:
    @randomized("properties of values")
    @examples("properties of values")
    @given(rows(REPO))
    def test_what_is_encoded_is_decoded(self, row: Row) -> None:
        assert decode(encode(row, REPO), REPO) == row

    def test_a_field_or_kind_that_is_not_known_is_refused(self) -> None:
        more = tables.table(**dict(REPO.fields), one=tables.UINT8, more=tables.UINT8)
        zeros = {n: 0 for n, field in REPO.fields if isinstance(field, tables.Number)}
        row = zeros | {"spec_version": 2, "one": 0, "more": 0}
        assert decode(encode(row, more), REPO)
        for name in ("one", "more"):
            with pytest.raises(UnknownFieldError):
                decode(encode(row | {name: 1}, more), REPO)
        fields = dict(REPO.fields)
        update = fields["latest_updates"]
        assert isinstance(update, tables.Vector) and isinstance(update.of, Table)
        kinds = dict(update.of.fields)["update_type"]
        assert isinstance(kinds, tables.Union)
        newer = tables.Union((*kinds.of, tables.table()))
        of = tables.Vector(tables.table(**dict(update.of.fields) | {"update_type": newer}))
        entry = {"update_type": (len(kinds.of) + 1, {}), "updated_at": 1}
        data = {"spec_version": 2, "latest_updates": [entry]}
        with pytest.raises(UnknownFieldError, match="of kind 17"):
            decode(encode(data, tables.table(**fields | {"latest_updates": of})), REPO)


class TestReading:
    @randomized("Icechunk repositories, read")
    def test_refs_snapshots_and_log_are_as_icechunk_says(self, tmp_path: Path, seed: int) -> None:
        path = tmp_path / "repo"
        build_rich(path, seed)
        repository, file = open_repository(path), load_repo(storage_of(path))
        refs = {(ref.kind, ref.name): ref.commit_id for ref in file.refs}
        assert len(refs) == len(file.refs)
        branches = {("branch", n): repository.lookup_branch(n) for n in repository.list_branches()}
        tags = {("tag", n): repository.lookup_tag(n) for n in repository.list_tags()}
        assert refs == branches | tags
        info = repository.inspect_repo_info()
        assert {each.commit_id for each in file.commits} == {i["id"] for i in info["snapshots"]}
        for each in file.commits:
            said = repository.lookup_snapshot(each.commit_id)
            assert (each.first_parent_id, each.created_at) == (said.parent_id, said.written_at)
        log = [(each.updated_at, each.backup_path) for each in repository.ops_log()]
        updates = [(each.at, each.backup) for each in file.updates]
        assert updates == log[: len(updates)]
        assert (file.previous is None) == (len(updates) == len(log))
        # Each copy is written again as it was.
        for data in [*files_of(path, "overwritten").values(), (path / "repo").read_bytes()]:
            row = parse_repo(data, "").row
            assert parse_repo(filed(row), "").row == row
        assert file.writable
        status = icechunk.RepoStatus(
            availability=icechunk.RepoAvailability.read_only, limited_availability_reason="a move"
        )
        repository.set_status(status)
        file = load_repo(storage_of(path))
        assert (file.writable, file.unwritable_reason) == (False, "a move")

    def changed(self, path: Path, changes: Mapping[str, Any]) -> bytes:
        return filed({**load_repo(storage_of(path)).row, **changes})

    @randomized("Icechunk repositories, read")
    def test_what_cannot_be_is_refused(self, tmp_path: Path, seed: int) -> None:
        path = tmp_path / "repo"
        first = commit(create_repository(path, 2))
        commit(open_repository(path))
        row = load_repo(storage_of(path)).row
        infos = row["snapshots"]
        place = [id_text(info["id"]) for info in infos].index(first)
        main = row["branches"][0]
        newest, *older = row["latest_updates"]

        def with_parent(offset: int) -> Row:
            changed = list(infos)
            changed[place] = {**infos[place], "parent_offset": offset}
            return {"snapshots": changed}

        cases: list[tuple[str, Row]] = [
            ("not in its list", with_parent(3)),
            ("not in its list", with_parent(-2)),
            ("each other's", with_parent(place)),
            ("outside its list", {"branches": [{**main, "snapshot_index": 3}]}),
            ("outside its list", {"tags": [{**main, "snapshot_index": 1 << 31}]}),
            ("outside its list", {"branches": [{"snapshot_index": 0}]}),
            ("no branch main", {"branches": [{**main, "name": "other"}]}),
            ("not in order", {"snapshots": infos[::-1]}),
            ("not in order", {"snapshots": [infos[0], *infos]}),
            ("no id", {"snapshots": [{n: each for n, each in infos[0].items() if n != "id"}]}),
            ("without a kind", {"latest_updates": [{"updated_at": newest["updated_at"]}, *older]}),
        ]
        parse_repo(self.changed(path, {}), "")
        for match, changes in cases:
            with pytest.raises(DamagedError, match=match):
                parse_repo(self.changed(path, changes), "")
        for name in ("tags", "branches", "deleted_tags", "snapshots", "status", "latest_updates"):
            less = {key: value for key, value in row.items() if key != name}
            with pytest.raises(DamagedError, match=f"has no {name}"):
                parse_repo(filed(less), "")
        # Parents in a large circle, and in a long line.
        count = 500
        order = random.Random(seed).sample(range(count), count)
        infos = [{**infos[0], "id": number.to_bytes(12, "big")} for number in range(count)]
        for place, following in zip(order, [*order[1:], order[0]], strict=True):
            infos[place]["parent_offset"] = following
        with pytest.raises(DamagedError, match="each other's"):
            parse_repo(self.changed(path, {"snapshots": infos}), "")
        infos[order[-1]]["parent_offset"] = -1
        file = parse_repo(self.changed(path, {"snapshots": infos}), "")
        assert sum(1 for each in file.commits if each.parent_ids) == count - 1


class TestWriting:
    @randomized("Icechunk repositories, read")
    def test_an_edit_of_nothing_is_an_entry_of_the_log(self, tmp_path: Path, seed: int) -> None:
        """The copy is what was there, and sorts before older ones."""
        path = tmp_path / "repo"
        build_rich(path, seed)
        logs = ("latest_updates", "repo_before_updates")
        for kind in ("GCRan", "ExpirationRan", "MetadataChanged"):
            said, row = seen(path), load_repo(storage_of(path)).row
            before, old = (path / "repo").read_bytes(), files_of(path, "overwritten")
            write(path, kind)
            check_entry(path, said, kind)
            assert seen(path).ancestries == said.ancestries
            written = load_repo(storage_of(path)).row
            assert {k: written.get(k) for k in {*written, *row}.difference(logs)} == {
                k: row.get(k) for k in {*written, *row}.difference(logs)
            }
            copies = files_of(path, "overwritten")
            (new,) = copies.keys() - old.keys()
            assert copies[new] == before
            assert new[:19] <= min(old)[:19]
        log = log_of(path)
        commit(open_repository(path))
        assert log_of(path)[1:] == log

    def test_an_entry_is_younger_than_the_one_before_whatever_the_clock_says(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "repo"
        create_repository(path, 2)
        storage = storage_of(path)
        for ago in (0, 3600, 1):
            now = datetime.now(UTC) - timedelta(seconds=ago)
            first, second, *_ = write_repo(
                storage, load_repo(storage), Edit(kind="GCRan"), now
            ).updates
            assert first.at == max(now, second.at + timedelta(microseconds=1))
        commit(open_repository(path))

    @randomized("Icechunk repositories, read")
    def test_new_parents_are_all_that_changes(self, tmp_path: Path, seed: int) -> None:
        path, choices = tmp_path / "repo", random.Random(seed)
        build_rich(path, seed)
        file, before = load_repo(storage_of(path)), seen(path)
        parents = parents_of(file)
        passable = {name: line for name in parents if (line := ancestry(parents, name)[2:])}
        some = [name for name in passable if choices.random() < 0.4] or [*passable][:1]
        new_parents = {name: choices.choice(passable[name]) for name in some}
        assert new_parents
        written = write(path, "ExpirationRan", new_parents=new_parents)
        expected = parents | new_parents
        assert parents_of(written) == expected
        for name in new_parents:
            passed = ancestry(parents, name)[1:]
            passed = passed[: passed.index(new_parents[name])]
            logs = [
                log for each in passed[::-1] for log in (*file.inherited_logs.get(each, ()), each)
            ]
            own = file.inherited_logs.get(name, ())
            assert written.inherited_logs[name] == (*logs, *own)
        check_entry(path, before, "ExpirationRan")
        told = {said[0]: said for each in before.ancestries.values() for said in each}
        for ref, said in seen(path).ancestries.items():
            names = ancestry(expected, before.ancestries[ref][0][0])
            assert said == [(n, expected[n], *told[n][2:]) for n in names]

    @randomized("Icechunk repositories, read")
    def test_dropped_snapshots_leave_their_children_to_the_nearest_kept(
        self, tmp_path: Path, seed: int
    ) -> None:
        path, choices = tmp_path / "repo", random.Random(seed)
        build_rich(path, seed)
        repository = open_repository(path)
        for _ in range(6):
            repository.create_branch("away", repository.lookup_branch("main"))
            for _ in range(choices.randint(1, 4)):
                commit(repository, "away")
            repository.delete_branch("away")
        file, before = load_repo(storage_of(path)), seen(path)
        parents = parents_of(file)
        loose = sorted(parents.keys() - history_of(file).reached() - {ROOT_ID})
        drop = {name for name in loose if choices.random() < 0.5}
        written = write(path, drop=drop)
        check_entry(path, before, "GCRan")
        assert seen(path).ancestries == before.ancestries
        assert set(written.ids) == parents.keys() - drop
        for each in written.commits:
            above = ancestry(parents, each.commit_id)[1:]
            kept = [name for name in above if name not in drop]
            assert each.first_parent_id == (kept[0] if kept else None)
            passed = above[: above.index(kept[0])] if kept else []
            lost = {log for name in passed for log in (name, *file.inherited_logs.get(name, ()))}
            inherited = written.inherited_logs.get(each.commit_id, ())
            assert set(inherited) == lost | set(file.inherited_logs.get(each.commit_id, ()))

    def test_dropped_branches_and_tags(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        for name in ("b", "a", "é"):
            repository.create_branch(name, commit(repository))
            repository.create_tag(name, repository.lookup_branch("main"))
        repository.create_tag("Z", repository.lookup_branch("main"))
        repository.delete_tag("Z")
        before = seen(path)
        write(path, "ExpirationRan", drop_branches={"a", "é"}, drop_tags={"b", "é"})
        after = seen(path)
        gone = {"branch a", "branch é", "tag b", "tag é"}
        assert after.ancestries == {k: v for k, v in before.ancestries.items() if k not in gone}
        assert after.settings[:-1] == before.settings[:-1]
        assert after.settings[-1] == str(sorted(["Z", "b", "é"]))
        repository = open_repository(path)
        head = repository.lookup_branch("main")
        repository.create_branch("a", head)
        repository.create_tag("new", head)
        for name in ("b", "é", "Z"):
            with pytest.raises(icechunk.IcechunkError):
                repository.create_tag(name, head)

    def test_what_would_be_no_repository_is_not_written(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        head = commit(create_repository(path, 2))
        before, copies = (path / "repo").read_bytes(), files_of(path, "overwritten")
        for edit in ({"drop_branches": {"main"}}, {"drop": {head}}, {"new_parents": {head: head}}):
            with pytest.raises((ValueError, KeyError)):
                write(path, **edit)
        assert (path / "repo").read_bytes() == before
        assert files_of(path, "overwritten") == copies


def parents_of(file: RepoFile) -> dict[str, str | None]:
    return {each.commit_id: each.first_parent_id for each in file.commits}


def ancestry(parents: Mapping[str, str | None], start: str) -> list[str]:
    found, place = [start], parents.get(start)
    while place is not None:
        found.append(place)
        place = parents[place]
    return found


def check_entry(path: Path, before: Seen, kind: str) -> None:
    """The log has one entry more, of that kind, and the settings are as they were."""
    after = seen(path)
    assert after.settings == before.settings
    assert after.log[1:] == before.log
    assert kind in after.log[0][0]


class TestOperationsLog:
    @randomized("Icechunk logs over time")
    def test_it_stays_complete_while_copies_are_collected(self, tmp_path: Path, seed: int) -> None:
        """A copy within the grace may go on in an older one that the file itself does not."""
        path, choices = tmp_path / "repo", random.Random(seed)
        updates_per_file = choices.choice((1, 2, 3, 7))
        create_repository(path, 2, updates_per_file=updates_per_file)
        moments, deleted, was_cut = [instant_between(path)], 0, False
        backs = choices.choice(((1,), (1, 1, 4, 9)))
        # The last grace is short, so that something is deleted.
        for number, back in enumerate([*choices.choices(backs, k=11), 1]):
            for _ in range(choices.choice((1, 2, 4, 8))):
                log = log_of(path)
                kind = operate(path, choices)
                moments.append(datetime.now(UTC))
                assert log_of(path)[1:] == log and kind in log_of(path)[0][0]
            moments[-1] = instant_between(path)
            before = log_of(path)
            was_cut = was_cut or load_repo(storage_of(path)).previous is not None
            deleted += collect_copies(path, moments[-back:][0])
            after = log_of(path)
            assert after[-len(before) :] == before, f"round {number}"
        assert deleted or updates_per_file == 1
        # Entries whose copies are gone stay in the file, however many they are.
        assert was_cut or updates_per_file == 7
        assert was_cut <= (load_repo(storage_of(path)).previous is not None)

    @pytest.mark.parametrize("updates_per_file", [1, 2, 3])
    def test_it_stays_complete_beside_a_commit(self, tmp_path: Path, updates_per_file: int) -> None:
        """The commit lets the log go on in a copy that was not protected when that was read."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2, updates_per_file=updates_per_file)
        for _ in range(8):
            commit(repository)
        cutoff = instant_between(path)
        before = log_of(path)
        deleted = collect_copies(path, cutoff, between=partial(commit, repository))
        assert deleted or updates_per_file == 1
        after = log_of(path)
        assert after[-len(before) :] == before
        assert "NewCommit" in after[-len(before) - 1][0]

    def test_edits_alone_overflow_as_icechunks_do(self, tmp_path: Path) -> None:
        """Without a limit of its own a file holds a thousand."""
        for limit, chain in ((1, 9), (3, 3)):
            path = tmp_path / f"{limit}"
            create_repository(path, 2, updates_per_file=limit)
            log = log_of(path)
            for number in range(9):
                written = write(path)
                assert len(written.row["latest_updates"]) == min(number + 2, limit)
                assert log_of(path)[1:] == log
                log = log_of(path)
            assert len(chain_of(storage_of(path), load_repo(storage_of(path)))) == chain
        path = tmp_path / "none"
        create_repository(path, 2)
        row = load_repo(storage_of(path)).row
        entry = row["latest_updates"][0]
        older = [{**entry, "updated_at": 2000 - n, "backup_path": f"b{n}"} for n in range(998)]
        (path / "repo").write_bytes(filed({**row, "latest_updates": [entry, *older]}))
        for previous in (None, "b997"):
            full = write(path)
            assert (len(full.row["latest_updates"]), full.previous) == (1000, previous)


def at_the_write(act: Callable[[], object], *, fails: bool = False) -> Hook:
    """Acts when the file `repo` is replaced, and has the answer lost if it `fails`."""

    def hook(method: str, address: str) -> None:
        if (method, address) == ("replace", REPO_ADDRESS):
            act()
            if fails:
                raise Conflict("object_changed", "the client met another write than its own")

    return hook


class TestConditionalWriting:
    def test_a_change_in_between_is_a_conflict_and_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        storage = storage_of(path)
        file = load_repo(storage)
        commit(repository)
        before, copies = (path / "repo").read_bytes(), files_of(path, "overwritten")
        with raises("object_changed", of=Conflict):
            write_repo(storage, file, Edit(kind="GCRan"), datetime.now(UTC))
        assert (path / "repo").read_bytes() == before
        # A copy may have come, which no log names; a collection deletes it once it is old.
        found = files_of(path, "overwritten")
        assert copies.items() <= found.items()
        named = {update.backup for update in load_repo(storage).updates}
        assert not named & (found.keys() - copies.keys())
        # Behind the copy, right before the file itself is replaced.
        log = log_of(path)
        late = FaultyStorage(storage, before=at_the_write(lambda: commit(repository)))
        with pytest.raises(Conflict):
            write_repo(late, load_repo(late), Edit(kind="GCRan"), datetime.now(UTC))
        assert log_of(path)[1:] == log
        assert "NewCommit" in log_of(path)[0][0]

    def test_an_answer_that_is_lost_is_no_conflict(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2, updates_per_file=1)
        log = log_of(path)
        storage = FaultyStorage(storage_of(path), after=at_the_write(lambda: None, fails=True))
        before = (path / "repo").read_bytes()
        written = write_repo(storage, load_repo(storage), Edit(kind="GCRan"), datetime.now(UTC))
        assert written.data == (path / "repo").read_bytes()
        assert written.version == storage_of(path).get_versioned(REPO_ADDRESS)[1]
        assert list(files_of(path, "overwritten").values()) == [before]
        assert log_of(path)[1:] == log
        commit(repository)
        assert log_of(path)[2:] == log

    @pytest.mark.parametrize("updates_per_file", [1, 3])
    def test_the_log_stays_complete_if_an_answer_is_lost_and_somebody_commits(
        self, tmp_path: Path, updates_per_file: int
    ) -> None:
        """The write was done, and the commit after it names the copy that it made."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2, updates_per_file=updates_per_file)
        before = log_of(path)
        lose = at_the_write(lambda: commit(repository), fails=True)
        storage = FaultyStorage(storage_of(path), after=lose)
        with suppress(Conflict):
            write_repo(storage, load_repo(storage), Edit(kind="GCRan"), datetime.now(UTC))
        after = log_of(path)
        assert "NewCommit" in after[0][0] and "GCRan" in after[1][0]
        assert after[2:] == before


def same(ours: RepoFile, theirs: RepoFile) -> bool:
    mine, its = (
        (each.ids, list(each.commits), each.refs, each.inherited_logs) for each in (ours, theirs)
    )
    return mine == its


class TestInheritedLogs:
    """Beside a copy that Icechunk itself expires or collects."""

    def expire(self, path: Path, older_than: datetime) -> None:
        """Expire a copy with Icechunk and the repository by ours; both must come to be the same."""
        theirs = path.with_name("theirs")
        shutil.copytree(path, theirs)
        released = open_repository(theirs).expire_snapshots(older_than)
        file = load_repo(storage_of(path))
        request = ExpiryRequest(older_than=older_than, younger=older_than)
        commits = {each.commit_id: each for each in file.commits}
        expiry = plan_expiry(commits, file.refs, request, now=datetime.now(UTC))
        assert expiry.new_parents
        assert expiry.released == released
        ours = write(path, "ExpirationRan", new_parents=expiry.new_parents, drop=released)
        assert same(ours, load_repo(storage_of(theirs)))
        shutil.rmtree(theirs)

    def test_of_a_line(self, tmp_path: Path) -> None:
        """What a snapshot already has comes last."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        for cut in (4, 2, 5):
            ids = [commit(repository) for _ in range(6)]
            self.expire(path, repository.lookup_snapshot(ids[cut]).written_at)
            repository = open_repository(path)
        file = load_repo(storage_of(path))
        assert len(file.inherited_logs[ids[5]]) == 17
        assert repository.diff(from_snapshot_id=ROOT_ID, to_snapshot_id=ids[5]) is not None
        create_repository(path := tmp_path / "other", 2)
        ids = [commit(open_repository(path)) for _ in range(5)]
        for parent in (ids[1], ROOT_ID):
            file = write(path, "ExpirationRan", new_parents={ids[4]: parent})
        assert file.inherited_logs == {ids[4]: tuple(ids[:4])}

    def test_of_what_a_collection_drops(self, tmp_path: Path) -> None:
        """Young snapshots outlive the old ones below them."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        ids = [commit(repository) for _ in range(9)]
        repository.expire_snapshots(repository.lookup_snapshot(ids[3]).written_at)
        repository.reset_branch("main", ids[3])
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        for old in ids[3:7]:
            times = (hour_ago.timestamp() - 60, hour_ago.timestamp() - 60)
            os.utime(path / "snapshots" / old, times)
        before = load_repo(storage_of(path))
        theirs = path.with_name("theirs")
        shutil.copytree(path, theirs)
        open_repository(theirs).garbage_collect(hour_ago)
        after = load_repo(storage_of(theirs))
        dropped = set(before.ids) - set(after.ids)
        assert dropped == set(ids[4:7])
        assert same(write(path, drop=dropped), after)
        assert after.inherited_logs[ids[7]] == tuple(ids[4:7])

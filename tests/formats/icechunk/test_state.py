"""One reading of a repository: what refs reach, and what stays though nothing reaches it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from icechunk import Repository

from ebbtide.errors import NotFound, Refused
from ebbtide.formats.icechunk.edits import apply_v1, apply_v2
from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.repo import backup_time
from ebbtide.formats.icechunk.state import (
    NEWLY_SEEN,
    RECENT,
    YOUNG,
    State,
    load_repo,
    may_be_since,
    read_state,
    spec_version,
)
from ebbtide.model import RefKind
from ebbtide.retention.expiry import ExpiryRequest, plan_expiry
from ebbtide.storage import open_storage
from tests.formats.icechunk.operations import History, chain_of, check_history, commit
from tests.support.errors import raises
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    create_repository,
    design_example,
    instant_between,
    open_repository,
)
from tests.support.icechunk_files import files_of
from tests.support.randomized import randomized

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
"""Files have dates around it, whatever the clock says."""
TAGS: tuple[RefKind, ...] = ("tag",)
MICROSECOND = timedelta(microseconds=1)
needs_v2 = pytest.mark.skipif(2 not in SPEC_VERSIONS, reason="writes no version 2")
each_version = pytest.mark.parametrize("version", SPEC_VERSIONS)


def read(
    path: Path,
    cutoff: datetime = NOW,
    *,
    quiet: bool = False,
    first_seen: Mapping[str, datetime] | None = None,
) -> State:
    return read_state(
        open_storage(str(path)), cutoff=cutoff, quiet=quiet, first_seen=first_seen or {}
    )


def date(path: Path, at: datetime, *names: str) -> None:
    for file in (path / "snapshots").iterdir():
        if not names or file.name in names:
            nanoseconds = (at - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND * 1000
            os.utime(file, ns=(nanoseconds, nanoseconds))


def refuses(path: Path, kind: str, cutoff: datetime = NOW) -> None:
    with raises(kind, of=Refused):
        read(path, cutoff)


def loose(path: Path, version: int) -> tuple[Repository, list[str]]:
    """A repository whose last two snapshots nothing reaches; all of them, the oldest first."""
    repository = create_repository(path, version)
    ids = [ROOT_ID, *(commit(repository) for _ in range(4))]
    repository.reset_branch("main", ids[2])
    return repository, ids


def test_the_version_is_told_by_the_files(tmp_path: Path) -> None:
    for version in SPEC_VERSIONS:
        create_repository(tmp_path / f"{version}", version)
        assert spec_version(open_storage(str(tmp_path / f"{version}"))) == version
    with raises("repository_not_found", of=NotFound):
        spec_version(open_storage(str(tmp_path)))


class TestHistory:
    @each_version
    @randomized("Icechunk repositories, read")
    def test_refs_reach_what_icechunk_says(self, tmp_path: Path, version: int, seed: int) -> None:
        path = tmp_path / "repo"
        build_random(path, seed, version)
        found, repository = read(path), open_repository(path)
        reached = set()
        for ref in found.history.refs:
            said = list(repository.ancestry(**{ref.kind: ref.name}))
            place: str | None = ref.commit_id
            for info in said:
                assert place == info.id
                known = found.history.commits[info.id]
                assert known.created_at == info.written_at
                place = known.first_parent_id
            assert place is None
            reached |= {info.id for info in said}
        assert found.history.reached() == reached
        files = set(files_of(path, "snapshots"))
        assert set(found.unreachable) == files - reached
        assert set(found.held) == set(found.unreachable)

    @each_version
    def test_of_an_expiry_is_as_if_it_had_been_carried_out(
        self, tmp_path: Path, version: int
    ) -> None:
        path = tmp_path / "repo"
        example = design_example(path, version)
        date(path, NOW - timedelta(days=1))
        storage = open_storage(str(path))
        for delete_refs in ((), TAGS):
            before = read(path, quiet=True)
            request = ExpiryRequest(
                older_than=example.threshold, younger=example.threshold, delete_refs=delete_refs
            )
            expiry = plan_expiry(before.history.commits, before.history.refs, request, now=NOW)
            assert not expiry.is_empty
            imagined = read_state(storage, cutoff=NOW, quiet=True, first_seen={}, expiry=expiry)
            if version == 1:
                parents = {c.commit_id: c.first_parent_id for c in before.history.commits.values()}
                apply_v1(storage, expiry, parents)
            else:
                apply_v2(storage, load_repo(storage), expiry, datetime.now(UTC))
            date(path, NOW - timedelta(days=1))
            after = read(path, quiet=True)
            assert set(imagined.history.refs) == set(after.history.refs)
            assert imagined.history.commits == after.history.commits
            assert imagined.history.logs == after.history.logs
            assert imagined.unreachable == after.unreachable
            assert set(before.history.reached()) - after.history.reached() == expiry.released
            repository = open_repository(path)
            for branch in ("main", "qa"):
                assert [each.id for each in repository.ancestry(branch=branch)][-1] == ROOT_ID


class TestYoung:
    @each_version
    def test_a_file_stays_for_its_age(self, tmp_path: Path, version: int) -> None:
        """A date in whole seconds may be any instant of that second."""
        path = tmp_path / "repo"
        _, ids = loose(path, version)
        date(path, NOW - MICROSECOND)
        assert read(path, quiet=True).held == {}
        date(path, NOW + MICROSECOND, ids[3])
        assert read(path, quiet=True).held == {ids[3]: YOUNG}
        date(path, NOW, ids[4])
        found = read(path, quiet=True)
        assert found.held == {ids[3]: YOUNG, ids[4]: YOUNG}
        assert found.unreachable == {ids[3]: NOW + MICROSECOND, ids[4]: NOW}
        date(path, NOW)
        last = NOW + timedelta(seconds=1)
        for cutoff, stay in ((NOW, True), (last - MICROSECOND, True), (last, False)):
            assert bool(read(path, cutoff, quiet=True).held) == stay, cutoff

    def test_may_be_since(self) -> None:
        for fraction, latest in ((0, 999_999), (1, 1), (999_999, 999_999)):
            day = NOW.replace(microsecond=fraction)
            assert may_be_since(day, NOW + timedelta(microseconds=latest))
            assert not may_be_since(day, NOW + timedelta(microseconds=latest + 1))

    @each_version
    def test_files_that_are_in_no_list(self, tmp_path: Path, version: int) -> None:
        """A snapshot is unreachable; other files beside snapshots are none."""
        path = tmp_path / "repo"
        loose(path, version)
        for name in ("1CECHNKREP0F1RSTCMT1", "1cechnkrep0f1rstcmt0", "x", f"{ROOT_ID}#12"):
            (path / "snapshots" / name).write_bytes(b"x")
        (path / "snapshots" / "deep").mkdir()
        (path / "snapshots" / "deep" / ROOT_ID).write_bytes(b"x")
        assert len(read(path).unreachable) == 2
        stranger = commit(create_repository(tmp_path / "other", version))
        shutil.copy(tmp_path / "other" / "snapshots" / stranger, path / "snapshots")
        date(path, NOW - timedelta(days=1))
        found = read(path, quiet=True)
        assert stranger in found.unreachable
        assert found.held == {}


class TestNewlySeen:
    """Version 1 does not know what was reachable when."""

    def test_what_no_run_saw_unreachable_before_the_cutoff_stays(self, tmp_path: Path) -> None:
        """With nobody there only age counts."""
        path = tmp_path / "repo"
        _, ids = loose(path, 1)
        date(path, NOW - timedelta(days=9))
        assert read(path).held == {ids[3]: NEWLY_SEEN, ids[4]: NEWLY_SEEN}
        assert read(path, first_seen={ids[1]: NOW - MICROSECOND}).held.keys() == set(ids[3:])
        for since, stays in ((NOW - MICROSECOND, False), (NOW, True), (NOW + MICROSECOND, True)):
            held = read(path, first_seen={ids[3]: since, ids[4]: NOW - timedelta(days=1)}).held
            assert held == ({ids[3]: NEWLY_SEEN} if stays else {})
        assert read(path, quiet=True).held == {}
        date(path, NOW, ids[4])
        assert read(path, quiet=True).held == {ids[4]: YOUNG}
        assert read(path).held == {ids[3]: NEWLY_SEEN, ids[4]: YOUNG}

    def test_damage_is_refused_of_what_a_ref_reaches_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository, ids = loose(path, 1)
        snapshots, another = path / "snapshots", (path / "snapshots" / ids[1]).read_bytes()
        whole, head = (snapshots / ids[3]).read_bytes(), (snapshots / ids[4]).read_bytes()
        for data in (b"", b"damage", another):
            (snapshots / ids[4]).write_bytes(data)
            found = read(path)
            assert set(found.unreachable) == {ids[3], ids[4]}
            assert ids[4] not in found.history.commits
        (snapshots / ids[4]).write_bytes(head)
        repository.create_tag("needs it", ids[4])
        for data in (b"", b"damage", whole[:-1], another):
            (snapshots / ids[3]).write_bytes(data)
            refuses(path, "corrupt_tree")
        (snapshots / ids[3]).write_bytes(whole[:36] + b"\7" + whole[37:])
        refuses(path, "unknown_format_version")
        (snapshots / ids[3]).unlink()
        refuses(path, "missing_tree")


@needs_v2
class TestRecent:
    def hold(self, path: Path, cutoff: datetime) -> dict[str, str]:
        date(path, cutoff - timedelta(days=9))
        assert read(path, cutoff, quiet=True).held == {}
        return dict(read(path, cutoff).held)

    def test_what_it_inherited_then_is_known(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        ids = [commit(repository) for _ in range(5)]
        repository.expire_snapshots(repository.lookup_snapshot(ids[2]).written_at)
        repository = open_repository(path)
        before = datetime.now(UTC)
        repository.expire_snapshots(repository.lookup_snapshot(ids[4]).written_at)
        logs = read(path, before).history.logs
        assert logs == {ids[2]: (ids[0], ids[1]), ids[4]: (ids[0], ids[1], ids[2], ids[3])}

    @pytest.mark.parametrize("updates_per_file", [2, None])
    def test_without_the_copy_of_that_time_it_is_refused(
        self, tmp_path: Path, updates_per_file: int | None
    ) -> None:
        path = tmp_path / "repo"
        repository = create_repository(path, 2, updates_per_file=updates_per_file)
        cutoffs: list[datetime] = []
        copies: list[str] = []
        for _ in range(6):
            commit(repository)
            cutoffs.append(instant_between(path))
            before = files_of(path, "overwritten").keys()
            repository.create_tag(f"{cutoffs[-1]}", ROOT_ID)
            # The copy of the file as it was at the cutoff.
            copies += files_of(path, "overwritten").keys() - before
        date(path, cutoffs[0] - timedelta(days=9))
        for cutoff, name in zip(cutoffs, copies, strict=True):
            assert read(path, cutoff).held == {}
            away = (path / "overwritten" / name).rename(tmp_path / "away")
            refuses(path, "missing_backup", cutoff)
            read(path, datetime.now(UTC))
            assert read(path, cutoff, quiet=True).held == {}
            away.rename(path / "overwritten" / name)
        file = load_repo(open_storage(str(path)))
        assert len(file.row["latest_updates"]) == (updates_per_file or 13)
        for each in (path / "overwritten").iterdir():
            each.unlink()
        refuses(path, "missing_backup", cutoffs[-1])

    @randomized("Icechunk refs over time")
    def test_whatever_was_reachable_since_the_cutoff_stays(self, tmp_path: Path, seed: int) -> None:
        path = tmp_path / "repo"
        history = History(path, seed, revives=seed % 2 == 0)
        for _ in range(20):
            history.step()
        check_history(path, history)

    @pytest.mark.parametrize("how", ["deleted", "expired", "cut off"])
    def test_what_a_ref_brought_back_for_a_while_stays(self, tmp_path: Path, how: str) -> None:
        """Nothing reached it at the cutoff, nothing reaches it now, and a ref did in between."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2)
        lost, head = commit(repository), commit(repository)
        repository.reset_branch("main", ROOT_ID)
        cutoff = instant_between(path)
        if how == "cut off":
            repository.create_branch("back", head)
            repository.expire_snapshots(repository.lookup_snapshot(head).written_at)
        else:
            repository.create_tag("back", lost)
            if how == "deleted":
                repository.delete_tag("back")
            else:
                repository.expire_snapshots(cutoff, delete_expired_tags=True)
        assert self.hold(path, cutoff) == {lost: RECENT}


@needs_v2
class TestLists:
    def test_listed_snapshots_whose_file_is_gone(self, tmp_path: Path) -> None:
        path = tmp_path / "repo"
        repository, ids = loose(path, 2)
        for name in ids[3:]:
            (path / "snapshots" / name).unlink()
        date(path, datetime.now(UTC) - timedelta(days=9))
        dates = [repository.lookup_snapshot(name).written_at for name in ids]
        assert read(path, dates[3], quiet=True).unreachable == {}
        between = read(path, dates[4], quiet=True)
        assert between.unreachable == {ids[3]: dates[3]}
        after = read(path, dates[4] + MICROSECOND, quiet=True)
        assert after.unreachable == {ids[3]: dates[3], ids[4]: dates[4]}
        assert after.held == {}

    @pytest.mark.parametrize("updates_per_file", [1, 3])
    def test_the_copies_that_the_log_goes_on_in(
        self, tmp_path: Path, updates_per_file: int
    ) -> None:
        """A log that somebody cut ends there."""
        path = tmp_path / "repo"
        repository = create_repository(path, 2, updates_per_file=updates_per_file)
        storage, later = open_storage(str(path)), datetime.now(UTC) + timedelta(days=1)
        for _ in range(8):
            commit(repository)
            chain = chain_of(storage, load_repo(storage))
            backups = read(path, later, quiet=True).backups
            assert chain <= backups <= files_of(path, "overwritten").keys()
        previous = load_repo(storage).previous
        assert previous is not None
        (path / "overwritten" / previous).unlink()
        assert read(path, later, quiet=True).backups == {previous}

    def test_a_copy_made_within_the_millisecond_of_the_cutoff_stays(self, tmp_path: Path) -> None:
        """Its name has whole milliseconds: it may have been made later than that says."""
        path = tmp_path / "repo"
        commit(create_repository(path, 2))
        (name,) = files_of(path, "overwritten")
        os.utime(path / "overwritten" / name, (0, 0))
        made_at = backup_time(name)
        assert made_at is not None
        for micros, stays in ((0, True), (999, True), (1001, False)):
            found = read(path, made_at + timedelta(microseconds=micros), quiet=True)
            assert found.backups == ({name} if stays else set())

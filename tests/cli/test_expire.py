"""`expire`, and `gc` on Icechunk repositories: answers, exit codes, and what is left alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
import zarr

from tests.cli.conftest import Ebbtide
from tests.support.icechunk import SPEC_VERSIONS, create_repository, listing, open_repository

COMMITS = 6
SHORT = ("--grace", "0s", "--unsafe", "--quiet-repository")
AT_ONCE = (*SHORT, "--yes", "--quarantine", "none")
EVERY_KIND = {"backup", "chunk", "manifest", "snapshot", "transaction_log"}


@dataclass(frozen=True)
class Lake:
    """A repository with one commit after the other on main, ids from the first snapshot on; a
    branch at the third and a tag at the second."""

    path: Path
    ids: tuple[str, ...]
    dates: tuple[datetime, ...]

    @property
    def name(self) -> str:
        return f"icechunk:{self.path}"

    @property
    def middle(self) -> str:
        """The date of the fifth snapshot: it and the younger ones stay."""
        return self.dates[4].isoformat()

    def copied(self, path: Path) -> Lake:
        shutil.copytree(self.path, path)
        return replace(self, path=path)

    def ancestry(self, **ref: str) -> list[str]:
        return [each.id for each in open_repository(self.path).ancestry(**ref)]

    def files(self) -> dict[str, bytes]:
        found = (each for each in self.path.rglob("*") if each.is_file())
        return {each.relative_to(self.path).as_posix(): each.read_bytes() for each in found}


def make_lake(path: Path, spec_version: int) -> Lake:
    repository = create_repository(path, spec_version)
    for number in range(COMMITS):
        session = repository.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        array = root.require_array("a", shape=(8,), chunks=(4,), dtype="float64", compressors=None)
        array[...] = number + 1
        made = session.commit(f"commit {number}")
        if number == 1:
            repository.create_tag("old", made)
        if number == 2:
            repository.create_branch("side", made)
    history: list[icechunk.SnapshotInfo] = list(repository.ancestry(branch="main"))[::-1]
    return Lake(
        path, tuple(each.id for each in history), tuple(each.written_at for each in history)
    )


@pytest.fixture(params=SPEC_VERSIONS)
def spec_version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Lake]:
    directory = tmp_path_factory.mktemp("lakes")
    return {each: make_lake(directory / f"{each}", each) for each in SPEC_VERSIONS}


@pytest.fixture
def lake(templates: dict[int, Lake], tmp_path: Path, spec_version: int) -> Lake:
    return templates[spec_version].copied(tmp_path / "lake")


@pytest.fixture
def any_lake(templates: dict[int, Lake], tmp_path: Path) -> Lake:
    return templates[SPEC_VERSIONS[-1]].copied(tmp_path / "lake")


@pytest.fixture
def no_share_gate(ebbtide: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    del ebbtide  # which drops all settings, and so has to come first
    monkeypatch.setenv("EBBTIDE_SHARE_MAX", "1")


@pytest.fixture
def program_free(ebbtide: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> Ebbtide:
    monkeypatch.delenv("EBBTIDE_STORE")
    return ebbtide


@pytest.fixture
def unchanged(any_lake: Lake) -> Iterator[Lake]:
    before = any_lake.files()
    yield any_lake
    assert any_lake.files() == before


class TestDryRun:
    @pytest.mark.usefixtures("no_share_gate")
    def test_everything_is_in_the_document_and_nothing_is_changed(
        self, program_free: Ebbtide, lake: Lake, spec_version: int
    ) -> None:
        """Who is edited, who is released, which refs go, and what nobody needs then."""
        before = lake.files()
        found = program_free(
            *("expire", lake.name, "--older-than", lake.middle, "--unsafe", "--dry-run"),
            *("--delete-expired-branches", "--delete-expired-tags", "--files", "--json"),
        ).document
        assert lake.files() == before

        assert (found["repository"], found["done"]) == (lake.name, False)
        assert found["edited"] == [
            {
                "snapshot_id": lake.ids[4],
                "parent_id": lake.ids[3],
                "new_parent_id": lake.ids[0],
            }
        ]
        released = {each["snapshot_id"]: each["written_at"] for each in found["released"]}
        assert released.keys() == set(lake.ids[1:4])
        for snapshot_id, date in zip(lake.ids, lake.dates, strict=True):
            if snapshot_id in released:
                assert datetime.fromisoformat(released[snapshot_id]) == date
        assert found["deleted_refs"] == [
            {"kind": "branch", "name": "side", "snapshot_id": lake.ids[3]},
            {"kind": "tag", "name": "old", "snapshot_id": lake.ids[2]},
        ]

        kinds = {kind: each["objects"] for kind, each in found["collectable"]["kinds"].items()}
        # In version 2, what is edited inherits the transaction logs of what is cut off.
        logs = {"transaction_log": 3} if spec_version == 1 else {}
        assert kinds == {"chunk": 6, "manifest": 3, "snapshot": 3, **logs}
        sizes = {each["address"]: each["size_bytes"] for each in found["files"]}
        assert len(sizes) == found["collectable"]["count"] == sum(kinds.values())
        assert sum(sizes.values()) == found["collectable"]["bytes"]
        assert sizes.items() <= listing(lake.path).items()
        assert {f"snapshots/{each}" for each in released} <= sizes.keys()

    def test_names_come_before_addresses(self, program_free: Ebbtide, unchanged: Lake) -> None:
        """With the date from which on each file can go: one grace after the expiry."""
        cut = ("expire", unchanged.name, "--keep-last", "1", "--unsafe", "--dry-run")
        shown = program_free(*cut, "--files").out
        names = re.findall(r"^[0-9A-Z]{20}  .{16}  (.+)$", shown, re.MULTILINE)
        assert names == ["commit 0", "commit 3", "commit 4"]
        assert re.search(r"^chunk .*  a/c/1$", shown, re.MULTILINE)
        assert re.search(r"^snapshot .*  commit 3$", shown, re.MULTILINE)
        assert "UTC on (EBBTIDE_ICECHUNK_GRACE, 7d)" in shown
        assert "chunks/" not in shown
        assert re.search(r"  chunks/\w{20}  +a/c/1$", program_free(*cut, "--addresses").out, re.M)
        asked_at = datetime.now(UTC)
        for file in program_free.json(*cut, "--files")["files"]:
            left = datetime.fromisoformat(file["deletable_at"]) - asked_at
            assert timedelta(days=6.9) < left < timedelta(days=7.1), file
        young = program_free("expire", unchanged.name, "--keep-last", "1", "--dry-run").out
        assert "UTC, one grace ago (EBBTIDE_ICECHUNK_GRACE, 7d)" in young

    def test_policies_are_compared(
        self, program_free: Ebbtide, unchanged: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EBBTIDE_ICECHUNK_GRACE", "0s")
        policies = ("keep_last:1", "30d")
        asked = [word for policy in policies for word in ("--policy", policy)]
        compared = program_free.json("what-if", unchanged.name, *asked)["policies"]
        assert [each["released_count"] for each in compared] == [3, 0]
        for policy, each in zip(policies, compared, strict=True):
            cut = program_free.json("expire", unchanged.name, "--policy", policy, "--dry-run")
            figures = (each["candidate_count"], each["candidate_bytes"])
            assert figures == (cut["collectable"]["count"], cut["collectable"]["bytes"])
            assert each["released_count"] == len(cut["released"])
        shown = program_free("what-if", unchanged.name, *asked).out
        assert re.search(r"^keep_last:1 +3 ", shown, re.MULTILINE)
        assert "30d: 30d; tags: keep; " in shown
        assert "nothing was changed" in shown

    @pytest.mark.usefixtures("no_share_gate")
    def test_what_people_see(self, program_free: Ebbtide, unchanged: Lake) -> None:
        shown = program_free(
            *("expire", unchanged.name, "--older-than", unchanged.middle, "--unsafe"),
            *("--dry-run", "--delete-expired-tags", "--files", "--limit", "2"),
        ).out
        assert f"tag old deleted (it points at {unchanged.ids[2]})" in shown
        assert "0 snapshots released" in shown  # the branch still reaches them
        assert shown.endswith("nothing was changed\n")

        none = program_free("expire", unchanged.name, "--older-than", "30d", "--dry-run").out
        says = f"there is nothing to expire: none of {len(unchanged.ids)} snapshots is older than 2"
        assert none.startswith(says)


class TestExpire:
    def test_history_is_cut_and_no_object_goes(self, program_free: Ebbtide, lake: Lake) -> None:
        """Icechunk reads what is left; doing it again does nothing; the record says what was."""
        before = listing(lake.path)
        arguments = ("expire", lake.name, "--older-than", lake.middle, "--unsafe", "--yes")
        done = program_free.json(*arguments)
        assert done["done"]
        assert "collectable" not in done
        assert lake.ancestry(branch="main") == [*lake.ids[:3:-1], lake.ids[0]]
        assert lake.ancestry(branch="side") == [*lake.ids[3::-1]]
        assert lake.ancestry(tag="old") == [*lake.ids[2::-1]]
        assert before.keys() <= listing(lake.path).keys()
        (record,) = (lake.path / "_ebbtide" / "expire").iterdir()
        assert json.loads(record.read_text())["edited"] == done["edited"]

        after = lake.files()
        again = program_free.json(*arguments)
        assert (again["done"], again["edited"], again["released"]) == (False, [], [])
        kept = "there is nothing to expire: 4 snapshots are old enough, but kept by refs or rules"
        assert program_free(*arguments).out.startswith(kept)
        assert lake.files() == after

    def test_expired_refs_are_deleted(self, program_free: Ebbtide, lake: Lake) -> None:
        beyond = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        out = program_free(
            *("expire", lake.name, "--older-than", beyond, "--unsafe", "--yes"),
            *("--delete-expired-branches", "--delete-expired-tags"),
        ).out
        assert f"branch side deleted (it points at {lake.ids[3]})" in out
        assert f"tag old deleted (it points at {lake.ids[2]})" in out
        assert f"ebbtide gc run {lake.name}" in out
        repository = open_repository(lake.path)
        assert (repository.list_branches(), repository.list_tags()) == ({"main"}, set())
        assert lake.ancestry(branch="main")[0] == lake.ids[-1]

    def test_counting(self, program_free: Ebbtide, lake: Lake, tmp_path: Path) -> None:
        """What a rule keeps of main; a ref's own snapshot stays, and so does the first of all."""
        rules = {"branches": {"ma*": {"keep_last": 1}, "side": {"keep_last": 2}}}
        (tmp_path / "policy.json").write_text(json.dumps(rules))
        for options, kept in (
            ("--keep-last 2", (6, 5, 0)),
            ("--keep-last 3 --keep-monthly 1", (6, 5, 4, 1, 0)),
            ("--keep-yearly 1", (6, 0)),
            (f"--policy {tmp_path / 'policy.json'}", (6, 0)),
        ):
            own = lake.copied(tmp_path / f"copy {len(options)}")
            # The tag and the branch are on snapshots of main, and the branch has the same rule.
            expected = sorted({*kept, 2, 3}, reverse=True)
            program_free("expire", own.name, *options.split(), "--unsafe", "--yes")
            assert own.ancestry(branch="main") == [lake.ids[number] for number in expected]

    def test_it_asks(
        self, program_free: Ebbtide, unchanged: Lake, typing: Callable[[str], None]
    ) -> None:
        """A counting rule does not reach into the grace."""
        young = program_free.json("expire", unchanged.name, "--keep-last", "1", "--yes")
        assert (young["done"], young["released"]) == (False, [])
        typing("n\n")
        answer = program_free("expire", unchanged.name, "--keep-last", "1", "--unsafe")
        assert "rewrite the history like this?" in answer.err
        assert "nothing was changed" in answer.err


class TestRefusals:
    def test_options(self, program_free: Ebbtide, unchanged: Lake, tmp_path: Path) -> None:
        policy, text, unknown = (tmp_path / name for name in ("policy", "text", "unknown"))
        policy.write_text('{"default": "30d"}')
        text.write_text("keep all")
        unknown.write_text('{"defualt": "30d"}')
        for options, kind in (
            ("", "invalid_argument"),
            ("--older-than 30", "invalid_date"),
            ("--older-than 9999-12-31T23:59:59-12:00", "invalid_date"),
            ("--older-than 6d", "unsafe_grace"),
            ("--keep-last 0", "invalid_argument"),
            ("--keep-last 2 --limit 0", "invalid_argument"),
            (f"--keep-last 2 --policy {policy}", "invalid_argument"),
            (f"--policy {tmp_path / 'missing'}", "invalid_argument"),
            (f"--policy {text}", "invalid_duration"),
            (f"--policy {unknown}", "invalid_policy"),
            ("--delete-expired-tags", "invalid_argument"),
            # An expiry of Icechunk has no undo.
            ("--undo latest", "invalid_argument"),
            ("--undo latest --keep-last 2", "invalid_argument"),
        ):
            for last in ("--yes", "--dry-run"):
                words = ("expire", unchanged.name, *options.split(), last)
                program_free.refuses(kind, *words, code=2)
        words = ("expire", unchanged.name, "--keep-last", "1")
        assert "--yes" in program_free.refuses("invalid_argument", *words, code=2).err
        for command in ("plan", "run"):
            words = ("gc", command, unchanged.name, "--grace", "6d", "--yes")
            program_free.refuses("unsafe_grace", *words, code=2)

    def test_no_repository(self, program_free: Ebbtide, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("x")
        for place in ("empty", "file", "nowhere"):
            for command in ("expire --keep-last=1 --yes", "gc plan", "gc runs"):
                words = (*command.split(), f"icechunk:{tmp_path / place}")
                program_free.refuses("repository_not_found", *words, code=2)
        assert sorted(each.name for each in tmp_path.rglob("*")) == ["empty", "file"]
        for name in ("lake", "icechunk:", "icechunk:ftp://x/y", "icechunk:s3:/b"):
            words = ("expire", name, "--older-than", "30d", "--yes")
            program_free.refuses("invalid_argument", *words, code=2)

    def test_somebody_holds_it(self, program_free: Ebbtide, any_lake: Lake) -> None:
        """A file that says so, or that says nothing that can be understood."""
        lease = any_lake.path / "_ebbtide" / "gc" / "LEASE"
        lease.parent.mkdir(parents=True)
        record = {
            "run_id": "0" * 32,
            "run_epoch": 1,
            "holder": "elsewhere/1/1",
            "beat_at": datetime.now(UTC).isoformat(),
            "nonce": "",
        }
        for text, says in ((json.dumps(record), "holds the repository"), ("?", "is damaged")):
            lease.write_text(text)
            before = any_lake.files()
            for command in (("expire", "--keep-last=1", "--unsafe", "--yes"), ("gc", "plan")):
                found = program_free(*command, any_lake.name, "--json", code=3)
                assert found.document["error"]["kind"] == "run_in_progress"
                assert says in found.document["error"]["message"]
            assert any_lake.files() == before

    def test_a_damaged_repository(self, program_free: Ebbtide, lake: Lake) -> None:
        version_2 = (lake.path / "repo").exists()
        name = "repo" if version_2 else "refs/branch.main/ref.json"
        (lake.path / name).write_bytes((lake.path / name).read_bytes()[:20])
        before = lake.files()
        kind = "corrupt_repo" if version_2 else "corrupt_ref"
        found = program_free.refuses(kind, "expire", lake.name, "--keep-last=1", "--yes", code=3)
        assert name in found.err
        assert lake.files() == before

    def test_quiet_is_for_icechunk_alone(self, ebbtide: Ebbtide, tmp_path: Path) -> None:
        ebbtide("init", tmp_path / "store")
        ebbtide("repo create lake")
        for command in (("plan", "lake"), ("run", "lake", "--yes"), ("sweep", "lake", "--yes")):
            ebbtide.refuses("invalid_argument", "gc", *command, "--quiet-repository", code=2)

    def test_runs_that_are_not_there(self, program_free: Ebbtide, unchanged: Lake) -> None:
        assert "no runs yet" in program_free("gc runs", unchanged.name).out
        assert program_free.json("gc runs", unchanged.name) == {"runs": []}
        for arguments in (("show", unchanged.name, "0" * 32), ("sweep", unchanged.name, "--yes")):
            program_free.refuses("run_not_found", "gc", *arguments)


@pytest.mark.usefixtures("no_share_gate")
class TestCollecting:
    def test_expire_then_plan_then_sweep(
        self, program_free: Ebbtide, lake: Lake, spec_version: int
    ) -> None:
        """What goes is what the dry run named, and copies of `repo`; a second run finds nothing."""
        cut = ("expire", lake.name, "--keep-last", "1", "--unsafe")
        named = program_free.json(*cut, "--dry-run", "--files")["files"]
        program_free(*cut, "--yes")

        before = listing(lake.path)
        planned = program_free.json("gc plan", lake.name, *SHORT)
        assert (planned["state"], planned["error"]) == ("planned", None)
        assert listing(lake.path) == before
        run_id = planned["run_id"]
        shown = program_free.json("gc show", lake.name, run_id, "--candidates")
        candidates = {each["address"] for each in shown["candidates"]}
        backups = {each for each in candidates if each.startswith("overwritten/")}
        assert bool(backups) == (spec_version > 1)
        assert candidates - backups == {each["address"] for each in named}

        swept = program_free.json("gc sweep", lake.name, run_id, *AT_ONCE)
        assert (swept["state"], swept["failed_count"]) == ("swept", 0)
        assert swept["deleted_count"] == len(candidates)
        assert swept["deleted_kinds"].keys() <= EVERY_KIND
        assert before.keys() - listing(lake.path).keys() == candidates
        assert lake.ancestry(branch="main") == [lake.ids[number] for number in (6, 3, 2, 0)]
        session = open_repository(lake.path).readonly_session("main")
        assert zarr.open_group(session.store, mode="r")["a"][:].tolist() == [6.0] * 8  # type: ignore[index,union-attr]

        runs = program_free.json("gc runs", lake.name)["runs"]
        assert [(run["run_id"], run["state"]) for run in runs] == [(run_id, "swept")]
        assert "outcome" in program_free("gc show", lake.name, run_id).out
        again = program_free.json("gc run", lake.name, *AT_ONCE)
        assert again["state"] == "swept"
        assert again["deleted_kinds"].keys() <= {"backup"}

    def test_names_of_files_in_quarantine(self, program_free: Ebbtide, lake: Lake) -> None:
        """Their snapshots and manifests are there too, and are read there."""
        program_free("expire", lake.name, "--keep-last", "1", "--unsafe", "--yes")
        run_id = program_free.json("gc plan", lake.name, *SHORT)["run_id"]

        def names() -> dict[str, str]:
            shown = program_free.json("gc show", lake.name, run_id, "--candidates")
            return {each["address"]: each["name"] for each in shown["candidates"]}

        planned = names()
        assert {"a/c/0", "a"} <= set(planned.values())
        swept = program_free.json("gc sweep", lake.name, run_id, "--yes", *SHORT)
        assert (swept["deleted_count"], swept["quarantined_count"]) == (0, len(planned))
        assert names() == planned

    def test_nothing_goes_within_the_grace(self, program_free: Ebbtide, any_lake: Lake) -> None:
        program_free("expire", any_lake.name, "--keep-last", "1", "--unsafe", "--yes")
        before = listing(any_lake.path)
        done = program_free.json("gc run", any_lake.name, "--yes", "--quarantine", "none")
        assert (done["state"], done["candidate_count"]) == ("swept", 0)
        assert listing(any_lake.path) == before

    def test_a_run_dir_keeps_the_repository_as_it_is(
        self, program_free: Ebbtide, unchanged: Lake, tmp_path: Path
    ) -> None:
        """Plans and records lie in the directory, which `gc runs` and `gc show` are told."""
        name = unchanged.name
        elsewhere = ("--run-dir", tmp_path / "runs")
        planned = program_free.json("gc plan", name, *elsewhere)
        assert planned["run_path"].startswith(str(tmp_path / "runs"))
        runs = program_free.json("gc runs", name, *elsewhere)["runs"]
        assert [run["run_id"] for run in runs] == [planned["run_id"]]
        assert "0 expire next" in program_free("gc show", name, planned["run_id"], *elsewhere).out
        assert program_free.json("gc runs", name) == {"runs": []}

"""Commits that are read one by one: their dates, and whole ids that the server does not find."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta

import pyarrow.parquet as pq
import pytest

from ebbtide.audit.verify import verify
from ebbtide.errors import Failed, NotFound, Refused
from ebbtide.formats.lakefs.refs import commit_of, find_commit, read_history
from ebbtide.formats.lakefs.server import AnsweredCommit
from tests.formats.lakefs import fake
from tests.formats.lakefs.fake import FakeLakefs
from tests.formats.lakefs.tables import message
from tests.formats.lakefs.world import DAY, LakefsWorld

FRACTION = timedelta(microseconds=597_174)


def commit(world: LakefsWorld, name: str) -> str:
    world.state.upload("main", name, name.encode())
    return world.state.commit("main", dated=world.clock.now + FRACTION)


def commits_while_branches_are_read(world: LakefsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FakeLakefs.branches

    def branches(server: FakeLakefs) -> dict[str, str]:
        monkeypatch.setattr(FakeLakefs, "branches", original)
        commit(world, "late")
        return original(server)

    monkeypatch.setattr(FakeLakefs, "branches", branches)


def test_a_plan_beside_which_a_client_commits_verifies(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan and verification read the commit in two ways, in both of which it is the same."""
    world.state.upload("main", "dropped", b"dropped")
    world.state.delete("main", "dropped")
    commit_id, repository = commit(world, "first"), world.repository()
    history = read_history(world.server, repository.storage, repository.layout)
    assert history.commits[commit_id] == commit_of(world.server, commit_id)
    world.grow_old(3 * DAY)
    commits_while_branches_are_read(world, monkeypatch)
    report = world.collector().plan()
    assert report.counts["candidate"].objects == 1
    assert verify(world.collector(), report.run_id).counts == {}
    assert world.collector().sweep(report.run_id).state == "swept"
    assert verify(world.collector(), report.run_id).counts == {}


@pytest.mark.parametrize("damage", ["cut off", "no table", "not UTF-8", "no addresses"])
def test_a_damaged_list_of_uncommitted_objects_refuses(
    damage: str, world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of what it names could be told from garbage."""
    world.state.upload("main", "staged", b"staged")
    world.grow_old(3 * DAY)
    written = FakeLakefs.uncommitted

    def uncommitted(server: FakeLakefs) -> list[str]:
        (folder,) = written(server)
        storage = world.repository().storage
        address = folder.removeprefix(server.state.namespace) + "/part"
        data = storage.get(address)
        name = world.objects().pop().encode()
        texts = {
            "cut off": data[:-20],
            "no table": b"PAR1",
            "not UTF-8": _rewritten(data, name, b"\xff" * len(name)),
            "no addresses": _rewritten(data, b"physical_address", b"physical_adresse"),
        }
        storage.put(address, texts[damage])
        return [folder]

    monkeypatch.setattr(FakeLakefs, "uncommitted", uncommitted)
    with pytest.raises(Failed) as found:
        world.collector().plan()
    assert found.value.kind == "lakefs_error"


def _rewritten(data: bytes, old: bytes, new: bytes) -> bytes:
    """The same file without compression, and with other bytes."""
    sink = io.BytesIO()
    pq.write_table(
        pq.read_table(io.BytesIO(data)),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    assert old in sink.getvalue()
    return sink.getvalue().replace(old, new)


def test_a_whole_id_that_is_not_found_is_asked_for_by_a_prefix(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither another commit that the prefix finds, nor a branch of that name is taken for it."""
    (commit_id, other), server = (commit(world, "a"), commit(world, "b")), world.server
    prefix, expected, original = commit_id[:-1], commit_of(server, commit_id), FakeLakefs.commit
    answers: dict[str, str] = {}
    asked: list[str] = []

    def answer(server: FakeLakefs, name: str) -> AnsweredCommit:
        asked.append(name)
        if name not in answers:
            raise NotFound("commit_not_found", name)
        return original(server, answers[name])

    monkeypatch.setattr(FakeLakefs, "commit", answer)
    answers |= {prefix: commit_id}
    assert commit_of(server, commit_id) == expected
    assert asked == [commit_id, prefix]
    answers |= {prefix: other}
    assert find_commit(server, commit_id) is None
    with pytest.raises(Refused, match=r"names commit .* does not find it"):
        commit_of(server, commit_id)
    answers |= {commit_id: other, prefix: commit_id}
    assert commit_of(server, commit_id) == expected


def test_a_commit_beyond_all_dates_is_named(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a dump, and in an answer for one commit. The first and the last date are dates."""
    commit_id = commit(world, "a")
    world.grow_old(3 * DAY)
    answer = FakeLakefs.commit
    for seconds in (10**12, -(10**12), 2**63 - 1, -(2**63), -62_135_596_800, 253_402_300_799):
        instant = message((1, seconds % 2**64))
        monkeypatch.setattr(fake, "_instant", lambda _, instant=instant: instant)
        monkeypatch.setattr(FakeLakefs, "commit", answer)
        if seconds in (-62_135_596_800, 253_402_300_799):
            assert world.collector().plan().counts["candidate"].objects == 0
            continue
        with pytest.raises(Failed, match=rf"dates commit '\w+' {seconds} s"):
            world.collector().plan()
        dated = AnsweredCommit(commit_id, (), seconds, "", 1)
        monkeypatch.setattr(FakeLakefs, "commit", lambda *_, dated=dated: dated)
        with pytest.raises(Failed, match=f"commit '{commit_id}' {seconds} s"):
            commit_of(world.server, commit_id)


def test_a_dump_without_commits_is_not_whole(
    world: LakefsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heads would be asked for one by one, and commits of deleted branches would be missed."""
    commit(world, "a")
    dumped = world.server.dump()
    monkeypatch.setattr(FakeLakefs, "dump", lambda _: replace(dumped, commits=""))
    with pytest.raises(Failed, match="dumped no commits"):
        world.collector().plan()

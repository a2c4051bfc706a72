"""Explaining Icechunk repositories: random ones by the definition, and what stays for a while."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest
from icechunk import Repository

from ebbtide.audit.answers import ExplainedAddress, ExplainedCommit
from ebbtide.audit.explain import Explainer
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.base import node_address, tree_address
from ebbtide.formats.icechunk.repository import IcechunkRepository
from ebbtide.retention.decision import Decision, Roots, decide
from tests.formats.icechunk.operations import commit_array
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.errors import raises
from tests.support.icechunk import (
    SPEC_VERSIONS,
    build_random,
    create_repository,
    listing,
    open_repository,
)
from tests.support.icechunk_lake import GRACE, IcechunkLake, candidates, reasons
from tests.support.randomized import choose, randomized

ASKED_MAX = 10
QUARANTINE = timedelta(days=7)
each_version = pytest.mark.parametrize("version", SPEC_VERSIONS)
NOT_COLLECTED = ("system", "foreign")


@pytest.fixture
def version(request: pytest.FixtureRequest) -> int:
    """One of them, for what is explained alike in both."""
    return choose(request.node.nodeid, SPEC_VERSIONS)


def explainer(repository: IcechunkRepository, **options: object) -> Explainer:
    chosen = {"engine": INLINE, "grace": GRACE, "limit": 10_000} | options
    return Explainer(repository, **chosen)  # type: ignore[arg-type]


def address_of(explaining: Explainer, address: str) -> ExplainedAddress:
    found = explaining.explain(address)
    assert isinstance(found, ExplainedAddress)
    return found


def commit_of(explaining: Explainer, name: str) -> ExplainedCommit:
    found = explaining.explain(name)
    assert isinstance(found, ExplainedCommit)
    return found


def commit(repository: Repository, branch: str, name: str) -> str:
    number = len(list(repository.ancestry(branch=branch)))
    return commit_array(repository, name, number, branch=branch)


@randomized("Icechunk repositories, explained")
def test_random_repositories_by_the_definition(tmp_path: Path, version: int, seed: int) -> None:
    path, choices = tmp_path / "repository", random.Random(seed)
    build_random(path, seed, version)
    lake = IcechunkLake(path)
    lake.age()
    plan = lake.collector().plan()
    planned, kept = candidates(plan), reasons(plan)
    explaining = explainer(lake.format(), engine=lake.engine)
    with lake.format().reading(lake.format().now() - GRACE) as reading:
        roots = reading.roots()
    decision = decide(roots)
    addresses = sorted(listing(path))
    asked = choices.sample(addresses, min(ASKED_MAX, len(addresses)))

    for address in asked:
        found = address_of(explaining, address)
        if found.state in NOT_COLLECTED:
            assert address not in planned
            continue
        assert (found.state == "unneeded") is (address in planned), address
        data, records = holders(lake.format(), roots, decision, address)
        by_data = {k.commit_id: k.reason for k in found.keepers if k.by == "data"}
        assert by_data == {name: kept[name] for name in data}
        assert {k.commit_id for k in found.keepers if k.by == "record"} == records
        if address in planned:
            assert found.collectable_at is not None
            assert found.collectable_at <= lake.format().now()
        else:
            assert found.kept_by is not None  # what refs reach stays for good

    swept = lake.collector().sweep(plan.run_id)
    assert swept.state == "swept"
    for address in set(asked) & planned.keys():
        gone = address_of(explaining, address)
        assert gone.went is not None
        assert (gone.state, gone.went.run_id) == ("gone", plan.run_id)


def holders(
    repository: IcechunkRepository, roots: Roots, decision: Decision, address: str
) -> tuple[set[str], set[str]]:
    """The kept snapshots that refer to an address, or have it as a part: each is read by itself."""
    data: set[str] = set()
    records: set[str] = set()
    layout, storage = repository.layout, repository.storage
    for name in decision.recorded:
        nodes = layout.read_tree(storage, name, "").to_pylist()
        own = {tree_address(layout, name), *(node_address(layout, n["node_id"]) for n in nodes)}
        if address in own.union(roots.companions.get(name, ())):
            records.add(name)
        chunks = {
            chunk
            for n in nodes
            for chunk in layout.read_node(
                storage, n["node_id"], n["checksum"], entry_count=n["entry_count"]
            ).to_pylist()
        }
        if address in chunks and name in decision.active:
            data.add(name)
    return data, records


def lose(path: Path, version: int) -> str:
    """A snapshot of a new repository that nothing reaches any more."""
    repository = create_repository(path, version)
    commit(repository, "main", "kept")
    repository.create_branch("side", repository.lookup_branch("main"))
    lost = commit(repository, "side", "lost")
    repository.delete_branch("side")
    return lost


@each_version
def test_what_nothing_reaches_stays_for_a_grace(tmp_path: Path, version: int) -> None:
    """The day that is told is the latest at which a plan takes it."""
    path = tmp_path / "repository"
    lost = lose(path, version)
    clock = ManualClock(open_repository(path).lookup_snapshot(lost).written_at)
    clock.advance(timedelta(minutes=5))
    lake = IcechunkLake(path, clock=clock)
    if version == 1:
        unseen = commit_of(explainer(lake.format(quiet=False)), lost)
        assert (unseen.state, unseen.data_until) == ("kept", None)
        assert lake.collector(quiet=False).plan().state == "planned"
    explaining = explainer(lake.format(quiet=False))
    found = commit_of(explaining, lost)
    assert found.state == "kept"
    assert found.reason is not None
    assert "the grace" in found.reason
    assert found.refs == ()
    end = found.data_until
    assert end is not None
    assert clock.now < end <= clock.now + GRACE
    snapshot = address_of(explaining, f"snapshots/{lost}")
    assert snapshot.collectable_at is not None
    assert snapshot.collectable_at >= end

    assert f"snapshots/{lost}" not in candidates(lake.collector(quiet=False).plan())
    clock.now = snapshot.collectable_at + timedelta(microseconds=1)
    assert f"snapshots/{lost}" in candidates(lake.collector(quiet=False).plan())


def test_a_snapshot_by_ref_and_by_id(tmp_path: Path, version: int) -> None:
    path = tmp_path / "repository"
    repository = create_repository(path, version)
    first, head = commit(repository, "main", "a"), commit(repository, "main", "b")
    repository.create_tag("v1", first)
    explaining = explainer(IcechunkLake(path).format())

    found = commit_of(explaining, "main")
    assert (found.commit_id, found.state) == (head, "kept")
    assert commit_of(explaining, "v1").commit_id == first
    assert [ref.name for ref in commit_of(explaining, first).refs] == ["v1", "main"]
    with pytest.raises(InvalidInput, match="no paths of single files"):
        explaining.explain("main", "a")
    with pytest.raises(NotFound, match="no branch, tag or snapshot"):
        explaining.explain("nobody")
    with pytest.raises(NotFound, match="no run on record"):
        explaining.explain("chunks/" + "0" * 20)
    chunk = next(each for each in listing(path) if each.startswith("chunks/"))
    for manifest in (path / "manifests").iterdir():
        manifest.write_bytes(b"damaged")
    with raises("corrupt_node", of=Refused):
        explainer(IcechunkLake(path).format()).explain(chunk)


def test_a_snapshot_is_quarantined_until_the_quarantine_has_ended(
    tmp_path: Path, version: int
) -> None:
    """Its record went with its data. Later runs change nothing about what is said."""
    lost, lake = lose(tmp_path / "repository", version), IcechunkLake(tmp_path / "repository")
    lake.age()
    swept = lake.collector(quarantine=QUARANTINE).run()
    assert swept.counts["quarantined"].objects > 0

    def check_fate(state: str, words: str) -> None:
        found = commit_of(explainer(lake.format()), lost)
        assert found.state == "forgotten"
        assert found.fate is not None
        assert (found.fate.state, found.fate.run_id) == (state, swept.run_id)
        command = found.fate.restore_command
        assert (command is None) == (state == "deleted")
        assert (command or swept.run_id).endswith(swept.run_id)
        went = address_of(explainer(lake.format()), f"snapshots/{lost}").went
        assert went is not None and went.words == words

    for _ in range(2):
        check_fate("quarantined", "quarantined it")
        assert lake.collector(quarantine=QUARANTINE).run().state == "swept"
    assert lake.collector().purge(swept.run_id).quarantine is not None
    check_fate("deleted", "quarantined it, and the quarantine has ended: it is deleted")

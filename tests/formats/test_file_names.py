"""Names of files: tables by folders, and scans of commits against a plain search."""

from __future__ import annotations

from random import Random

import pytest

from ebbtide.formats import file_names
from ebbtide.formats.file_names import FileName, NodeScan, names_by, names_in_tables
from ebbtide.model import EPOCH, Commit
from tests.support.randomized import choose


def test_a_table_and_its_partition() -> None:
    tables = {"db/events/": "db.events", "db/": "db.all", "": "root"}
    names = {
        "db/events/data/day=2026-01-01/hour=3/x.parquet": "db.events, day=2026-01-01/hour=3",
        "db/events/metadata/x.avro": "db.events",
        "db/other/city=S%C3%A3o%20Paulo/x": "db.all, city=São Paulo",
        "x=1": "root",
    }
    found = names_in_tables(names, tables)
    assert found.complete
    assert found.by_address == {address: FileName(name) for address, name in names.items()}
    assert names_in_tables(names, {"db/events/": "e"}).by_address.keys() == set(list(names)[:2])


def test_scans_by_the_definition() -> None:
    for seed in range(200):
        check_scan(Random(seed))


def check_scan(random: Random) -> None:
    nodes = {
        f"n{n}": [(f"a{random.randrange(9)}", f"p{random.randrange(9)}") for _ in range(3)]
        for n in range(8)
    }
    trees = {
        f"c{n}": random.sample(sorted(nodes), random.randrange(4))
        for n in range(random.randrange(7))
    }
    lost = set(random.sample(sorted(trees), random.choice((0, 0, min(1, len(trees))))))
    damaged = set(random.sample(sorted(nodes), random.choice((0, 0, 1))))
    wanted = {f"a{n}" for n in random.sample(range(12), random.randrange(1, 6))}
    known = {"a0": FileName("known")}

    defined = {address: name for address, name in known.items() if address in wanted}
    for commit_id, tree in trees.items():
        for node in tree if commit_id not in lost else ():
            for address, name in nodes[node] if node not in damaged else ():
                if address in wanted:
                    defined.setdefault(address, FileName(name, commit_id))
    scan = NodeScan(
        [Commit(each, (), EPOCH, each) for each in trees],
        nodes_of=lambda commit: None if commit.commit_id in lost else trees[commit.commit_id],
        read=lambda node: None if node in damaged else nodes[node],
    )
    found = names_by(scan, wanted, known)
    assert found.by_address == defined
    is_whole = not lost and not damaged & {node for tree in trees.values() for node in tree}
    assert found.complete or not is_whole
    if found.complete and not is_whole:
        # The scan ended before the tree or the node that cannot be read.
        assert wanted <= defined.keys()


def test_limits_are_told(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    commits = [Commit(f"c{n}", (), EPOCH, f"c{n}") for n in range(40)]
    most = choose(request.node.nodeid, [1, 16, 17, 33])
    for limit in ("TREES_MAX", "NODES_MAX"):
        with monkeypatch.context() as patched:
            patched.setattr(file_names, limit, most)
            scan: NodeScan[str, list[tuple[str, str]]] = NodeScan(
                commits,
                nodes_of=lambda commit: [commit.commit_id],
                read=lambda node: [(node, node)],
                nodes_max=file_names.NODES_MAX,
            )
            assert [commit.commit_id for commit, _ in scan] == [f"c{n}" for n in range(most)]
            assert not scan.complete

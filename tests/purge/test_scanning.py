"""Which trees refer to some addresses: what either engine finds, against the definition."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ebbtide.errors import Refused
from ebbtide.formats.base import tree_address
from ebbtide.formats.embedded_layout import EmbeddedLayout
from ebbtide.gc.engines.base import Engine
from ebbtide.purge import scanning
from ebbtide.purge.references import intact_commits, trees_of
from ebbtide.purge.scanning import EXAMPLES_MAX, TreeScan
from ebbtide.store.repository import Repository
from tests.support.engines import on_engines
from tests.support.purging import save

COMMITS = 9
FILES = 12


@pytest.fixture(autouse=True)
def no_tree_is_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is looked at by the engine, in several goes."""
    monkeypatch.setattr(scanning, "FEW_TREES", 0)
    monkeypatch.setattr(scanning, "TREES_PER_TASK", 2)


def trees(repository: Repository) -> dict[str, str]:
    with repository.context.metadata.snapshot() as tx:
        return trees_of(intact_commits(tx, repository.context.repository_id))


def entries(repository: Repository) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for commit in repository.commits.log("main", amount=100):
        assert commit.tree_id is not None
        walked = repository.objects.walk(commit.commit_id)
        found[commit.tree_id] = [(entry.path, entry.address) for entry in walked]
    return found


def scan_of(repository: Repository, addresses: list[str], asked: set[str], by: Engine) -> TreeScan:
    return TreeScan(
        repository.context.storage,
        EmbeddedLayout(),
        frozenset(addresses),
        asked=frozenset(asked),
        engine=lambda: by,
    )


@on_engines("inline", "spark")
def test_what_refers_is_found(repository: Repository, engine: Engine) -> None:
    """Each entry of each tree is counted, or named if it was asked about."""
    rng = Random(5)
    paths = [f"f{number:02}" for number in range(FILES)]
    save(repository, *paths)
    for _ in range(COMMITS):
        save(repository, *rng.sample(paths, 2))
    by_tree = entries(repository)
    addresses = rng.sample(sorted({a for found in by_tree.values() for _, a in found}), 8)
    asked = set(paths[:4])
    scan = scan_of(repository, addresses, asked, engine)
    half = dict(list(trees(repository).items())[:4])
    scan.look_at(half)
    assert [scan.knows(tree_id) for tree_id in half] == [True] * 4
    assert scan.unseen(trees(repository)).keys() == by_tree.keys() - half.keys()
    scan.look_at(trees(repository))
    assert scan.unseen(trees(repository)) == {}
    seen: Counter[bool] = Counter()
    for tree_id, found in by_tree.items():
        expected = {path for path, address in found if address in addresses}
        hits = scan.hits(tree_id)
        told = [path for hit in hits for path in (*hit.examples, *hit.asked)]
        assert sum(hit.entry_count for hit in hits) == len(expected)
        assert sorted(told) == sorted(expected)
        assert {path for hit in hits for path in hit.asked} == expected & asked
        assert all(len(hit.examples) <= EXAMPLES_MAX for hit in hits)
        seen[bool(expected)] += 1
    assert seen[True] > 1


@on_engines("inline", "spark")
def test_what_cannot_be_read_may_refer_to_any(repository: Repository, engine: Engine) -> None:
    save(repository, "a")
    save(repository, "b")
    there = trees(repository)
    lost = sorted(there)[0]
    repository.context.storage.delete([tree_address(EmbeddedLayout(), lost)])
    scan = scan_of(repository, ["data/x"], set(), engine)
    with pytest.raises(Refused) as refused:
        scan.look_at(there)
    assert refused.value.kind == "missing_tree"
    assert lost in scan.unseen(there)

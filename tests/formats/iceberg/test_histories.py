"""Random histories of Iceberg tables, and runs and expiries between and beside them."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final
from unittest.mock import patch

from ebbtide.audit.verify import verify
from ebbtide.errors import EbbtideError
from ebbtide.storage.local import LocalStorage
from tests.formats.iceberg.histories import DiedError, History, ids_of, litter
from tests.formats.iceberg.warehouse import Warehouse, request
from tests.support.randomized import randomized

CHANGED: Final = {"repository_changed", "foreign_table"}
"""The refusals of a run beside which a writer is at work."""
AGAIN: Final = ("adopt", "twin")
"""What makes a file needed that no table has needed."""
KEPT: Final = timedelta(days=7)


@randomized("histories of Iceberg tables")
def test_random_histories(seed: int, tmp_path: Path) -> None:
    """What tables need by the definition stays and reads the same, and nothing else that is old
    stays."""
    with closing(Warehouse(tmp_path)) as lake, ids_of(seed):
        history = History(Random(seed), lake)
        for _ in range(history.rng.randrange(1, 4)):
            for _ in range(history.rng.randrange(4, 9)):
                history.act()
            check = history.rng.choice((expire_alone, expire_beside, run_alone, run_beside))
            check(history)
        run_alone(history)


def expire_alone(history: History) -> None:
    """And perhaps undoes it."""
    lake = history.lake
    kept, refs = history.kept(), history.refs_of_all()
    listed, contents = history.listed(), lake.contents()
    expire_id = f"expiry-{history.rng.getrandbits(40)}"
    lake.expire(request(), expire_id)
    assert history.listed() == kept
    assert history.refs_of_all() == refs
    if kept != listed and history.rng.random() < 0.5:
        lake.undo_expiry(expire_id)
        assert history.listed() == listed
        assert lake.contents() == contents
        found = history.refs_of_all()
        assert all(refs[name].items() <= found[name].items() for name in refs)


def expire_beside(history: History) -> None:
    """A writer is at work meanwhile, or the process dies before its change."""
    history.begin()
    put, dies = LocalStorage.put, history.rng.random() < 0.3

    def died(storage: LocalStorage, address: str, *arguments: object, **more: object) -> None:
        put(storage, address, *arguments, **more)  # type: ignore[arg-type]
        if dies and address.endswith(".metadata.json"):
            raise DiedError

    with patch.object(LocalStorage, "put", died), history.at_work(0.4), suppress(DiedError):
        try:
            history.lake.expire(request())
        except EbbtideError as error:
            assert error.kind in ("repository_changed", "incomplete"), error
    assert history.refs_of_all() == history.refs
    listed = history.listed()
    assert all(history.protected[name] <= listed[name] for name in listed)
    history.lake.contents()


def prepare(history: History) -> tuple[str, set[str]]:
    """Makes all files old but some, and draws the name of a run. Returns it, and the young files.
    Removes the files that would rightly refuse the run, after it has refused."""
    lake, rng = history.lake, history.rng
    names = sorted(lake.names())
    within = rng.choice(("", "", "", "db", rng.choice(names)))
    if not any(name.startswith(f"{within}.") or name == within for name in names):
        within = ""
    lake.age()
    young = litter(lake, lake.tables()[0], rng.getrandbits(40)) if rng.random() < 0.5 else set()
    is_first = True
    while unknown := history.unknown(within) - young:
        if is_first and lake.contents():
            report = lake.collector(within).plan()
            assert report.error is not None, unknown
            assert report.error["kind"] == "foreign_table", report.error
        is_first = False
        for each in unknown:
            (lake.path / each).unlink()
    return within, young


def run_alone(history: History) -> None:
    lake, rng = history.lake, history.rng
    within, young = prepare(history)
    contents = lake.contents()
    if not contents:  # a catalog without a snapshot may be an emptied one: a run refuses
        return
    before, dead = lake.files(), history.dead(within) - young
    assert lake.needed() <= before
    report = lake.swept(within, quarantine=rng.choice((None, KEPT)))
    gone = before - lake.files()
    assert gone == dead, (within, dead - gone, gone - dead)
    assert lake.contents() == contents
    if rng.random() < 0.3:
        assert not verify(lake.collector(within), report.run_id).difference_count
    if report.quarantine and rng.random() < 0.5:
        assert lake.collector(within).undo(report.run_id).state == "undone"
        assert lake.files() == before


def run_beside(history: History) -> None:
    """A writer is at work from the plan on: before and after each look at the catalog, so also
    between two batches, and between the check of a batch and its deletes."""
    lake, rng = history.lake, history.rng
    within, young = prepare(history)
    if not lake.contents():
        return
    history.begin()
    before, dead, needed = lake.files(), history.dead(within) - young, lake.needed()
    repository = lake.open(within)
    repository.batch_max = rng.choice((1, 2, 5))
    collector = lake.collector(repository=repository, quarantine=KEPT)
    with history.at_work(rng.choice((0.1, 0.4)), AGAIN):
        report = collector.run()
    history.done[f"{report.state} beside a writer"] += 1
    if report.error is not None and report.state != "incomplete":
        assert report.error["kind"] in CHANGED, report.error
    # Writers delete metadata files that fall out of the log.
    own = {each for each in needed if each.endswith(".metadata.json")}
    taken = before - lake.files() - own
    # A writer may let go of files before the plan reads the catalog.
    released = needed - lake.needed()
    assert taken <= dead | released, taken - dead
    if report.state == "swept":
        assert dead - taken <= history.seen, dead - taken - history.seen
    if report.state == "incomplete":
        assert lake.collector(within).undo(report.run_id).state == "undone"
    assert lake.needed() <= lake.files()
    lake.contents()

"""The outcome of each key says what happened, on storages that report absent keys."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Final

import obstore
import pytest

from ebbtide.ids import new_id
from ebbtide.storage import clients, deletes, open_storage
from ebbtide.storage.clients import StorageFailure
from tests.support.answers import broken, failed

OPTIONS: Final = {"account_name": "test", "account_key": "dGVzdA=="}
EVENTS: Final = {
    "denied": failed(403, "AuthorizationPermissionMismatch"),
    "busy": failed(503, "ServerBusy"),
    "before": failed(500, "InternalError"),
    "after": failed(500, "InternalError"),
    "lost": broken(),
}
"""The attempts that fail. The storage has deleted the object in those of `after` and `lost`."""
DOES_DELETE: Final = ("after", "lost")


class ReportingStorage:
    """A storage that reports absent keys, with a script of failures for each key. A call for
    several keys does all of them, and raises the first failure, as obstore does."""

    def __init__(self, there: set[str], scripts: dict[str, list[str]]) -> None:
        self.there = there
        self.left = {name: list(script) for name, script in scripts.items()}
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, _client: object, paths: list[str]) -> None:
        with self.lock:
            self.calls += 1
            errors = [error for path in paths if (error := self.one(path)) is not None]
        if errors:
            raise errors[0]

    def one(self, path: str) -> Exception | None:
        if self.left[path]:
            event = self.left[path].pop(0)
            if event in DOES_DELETE:
                self.there.discard(path)
            return EVENTS[event]
        if path not in self.there:
            return FileNotFoundError(path)
        self.there.remove(path)
        return None


def expected(*, is_there: bool, script: list[str]) -> str:
    tries = 0
    unknown = False
    for event in script:
        if event == "denied":
            return "failed"
        if event != "busy":
            unknown = True
            tries += 1
            if tries == deletes._TRIES_MAX:
                return "failed"
    # An attempt without an answer may have deleted a key that was absent: nobody can know.
    return "deleted" if is_there or unknown else "missing"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(sleep=lambda _seconds: None, monotonic=lambda: 0.0)
    monkeypatch.setattr(deletes, "time", clock)


def cases(count: int) -> list[tuple[set[str], dict[str, list[str]]]]:
    made = []
    for _ in range(count):
        names = [f"k{number}" for number in range(random.choice((1, 2, 5, 20, 60)))]
        there = set(random.sample(names, random.randrange(len(names) + 1)))
        rate = random.choice((0.0, 0.1, 0.5))
        # Few enough failures for one key that its tries suffice, except a denied one.
        events = [name for name in EVENTS if name != "busy"]
        scripts = {
            name: random.choices(events, k=random.randrange(1, 4)) if random.random() < rate else []
            for name in names
        }
        made.append((there, scripts))
    return made


@pytest.mark.usefixtures("fast")
def test_random_failures_and_absent_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(f"az://{new_id()}", OPTIONS)
    seen: dict[str, int] = defaultdict(int)
    for there, scripts in cases(300):
        model = {
            name: expected(is_there=name in there, script=script)
            for name, script in scripts.items()
        }
        fake = ReportingStorage(set(there), scripts)
        monkeypatch.setattr(obstore, "delete", fake)
        found = {each.address: each.outcome for each in storage.delete(list(scripts))}
        if "failed" in model.values():
            # If a dozen random keys fail, the others are not tried. None may be claimed gone.
            differing = {name for name in model if found[name] != model[name]}
            assert all(found[name] == "failed" for name in differing), (there, scripts)
        else:
            assert found == model, (there, scripts)
        for outcome in found.values():
            seen[outcome] += 1
    assert min(seen[each] for each in ("deleted", "missing", "failed")) > 60


@pytest.mark.usefixtures("fast")
def test_throttled_keys_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One refused key is absent: it was not deleted here. A key given twice has one outcome."""
    names = [f"k{number}" for number in range(40)]
    scripts = {name: ["busy"] * (number % 3) for number, name in enumerate(names)}
    monkeypatch.setattr(obstore, "delete", ReportingStorage({*names} - {"k5"}, scripts))
    storage = open_storage(f"az://{new_id()}", OPTIONS)
    shared = deletes.deletes_of(storage.url, tuple(sorted(OPTIONS.items())))
    monkeypatch.setattr(shared.pace, "_sleep", lambda _seconds: None)
    monkeypatch.setattr(shared.pace, "delay", lambda _amount: 0.0)
    asked = [*names, "k0"]
    found = [(each.address, each.outcome) for each in storage.delete(asked)]
    assert found == [(name, "missing" if name == "k5" else "deleted") for name in asked]


@pytest.mark.usefixtures("fast")
def test_if_all_keys_fail_few_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"k{number}" for number in range(1_000)]
    fake = ReportingStorage({*names}, {name: ["denied"] * 9 for name in names})
    monkeypatch.setattr(obstore, "delete", fake)
    outcomes = open_storage(f"az://{new_id()}", OPTIONS).delete(names)
    assert {each.outcome for each in outcomes} == {"failed"}
    assert fake.calls < 20


def test_every_failure_of_the_tests_reads_as_meant() -> None:
    assert clients.explained(EVENTS["busy"]).startswith("throttled: ")
    assert StorageFailure.of(EVENTS["denied"]).is_refused
    assert not StorageFailure.of(EVENTS["after"]).is_refused
    assert StorageFailure.of(EVENTS["lost"]).is_transient

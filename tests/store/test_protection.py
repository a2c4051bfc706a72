"""Protected branches: what they refuse and take, also if a rule is set during an operation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Final

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.store.content.layout import DATA_PREFIX, TREES_PREFIX
from ebbtide.store.refs.protection import ProtectionRules
from ebbtide.store.refs.ref_rows import require_branch
from ebbtide.store.repositories.repository_rows import write_protected
from ebbtide.store.repository import Repository
from tests.support.lakes import link, meanwhile
from tests.support.locks import waits_for_a_lock

SECONDS_MAX: Final = 20
Operation = Callable[[Repository], object]

REFUSED: Final[dict[str, Operation]] = {
    "put": lambda lake: lake.objects.put("main", "new", b"new"),
    "link": lambda lake: link(lake, "main", "linked"),
    "stage": lambda lake: lake.addresses.stage("main", "away", "s3://bucket/key", size_bytes=3),
    "copy of a staged object": lambda lake: lake.objects.copy("main", "copy", "main", "staged"),
    "copy of a committed object": lambda lake: lake.objects.copy("main", "copy", "main", "a"),
    "move of a staged object": lambda lake: lake.objects.move("main", "moved", "staged"),
    "move of a committed object": lambda lake: lake.objects.move("main", "moved", "a"),
    "delete": lambda lake: lake.objects.delete("main", "a"),
    "commit": lambda lake: lake.commits.commit("main", "no"),
    "reset": lambda lake: lake.commits.reset("main"),
    "reset of a path": lambda lake: lake.commits.reset_path("main", "staged"),
    "reset of a prefix": lambda lake: lake.commits.reset_prefix("main", "s"),
}
"""By name. Each changes `main` directly."""


@pytest.fixture
def lake(repository: Repository) -> Repository:
    """`main` with a commit and a staged object; `dev` with one commit more."""
    repository.objects.put("main", "a", b"a")
    repository.commits.commit("main", "a")
    repository.branches.create("dev", "main")
    repository.objects.put("dev", "e", b"e")
    repository.commits.commit("dev", "e")
    return repository


def contents(lake: Repository, ref: str) -> dict[str, str]:
    """Addresses by path. The bytes of a staged object outside the repository cannot be read."""
    return {entry.path: entry.address for entry in lake.objects.walk(ref)}


def refused(operation: Callable[[], object], kind: str = "write_protected") -> EbbtideError:
    with pytest.raises(EbbtideError) as caught:
        operation()
    assert caught.value.kind == kind
    return caught.value


def test_a_protected_branch_refuses_direct_changes(lake: Repository) -> None:
    lake.objects.put("main", "staged", b"staged")
    before = contents(lake, "main")
    head = lake.commits.resolve("main")
    lake.protection.set(["ma*"])
    for name, change in REFUSED.items():
        error = refused(partial(change, lake))
        assert " protected branch 'main'" in error.message, name
        assert (contents(lake, "main"), lake.commits.resolve("main")) == (before, head), name


def test_commits_of_commits_and_other_branches_are_free(lake: Repository) -> None:
    lake.protection.set(["main", "d?v"])
    makers: list[Callable[[], object]] = [
        lambda: lake.commits.cherry_pick("main", "dev"),
        lambda: lake.commits.revert("main", "main"),
        lambda: lake.commits.merge("dev", "main", allow_empty=True),
    ]
    for make in makers:
        head = lake.commits.resolve("main")
        make()
        assert lake.commits.get("main").parent_ids[0] == head
    refused(lambda: lake.objects.put("dev", "b", b"b"))
    lake.branches.create("free", "main")
    lake.objects.put("free", "b", b"b")
    lake.branches.delete("dev")


def test_the_rules_as_they_were_set(lake: Repository) -> None:
    rules = lake.protection
    assert rules.get() == ProtectionRules(())
    first = rules.set(["release/*", "main", "main"], only_if="").etag
    assert rules.get().patterns == ("release/*", "main")
    refused(lambda: rules.set(["dev"], only_if=""), "precondition_failed")
    rules.add("main")
    rules.add("v?")
    found = rules.get()
    assert found.patterns == ("release/*", "main", "v?")
    assert (found.protecting("release/a/b"), found.protecting("v10")) == ("release/*", None)
    refused(lambda: rules.set(["main"], only_if=first), "precondition_failed")
    rules.remove("release/*")
    refused(lambda: rules.remove("release/*"), "protection_not_found")
    for patterns in ([""], ["x" * 256], [str(number) for number in range(1001)], ["a\0"]):
        refused(partial(rules.set, patterns), "invalid_argument")
    assert rules.get().patterns == ("main", "v?")
    rules.set([], only_if=rules.get().etag)
    assert rules.get().etag == ""


def test_a_rule_that_is_set_while_bytes_are_written(lake: Repository) -> None:
    lake.objects.put("main", "staged", b"staged")
    before = contents(lake, "main")
    for name, at in (
        ("put", DATA_PREFIX),
        ("copy of a committed object", DATA_PREFIX),
        ("move of a committed object", DATA_PREFIX),
        ("commit", TREES_PREFIX),
    ):
        refused(partial(REFUSED[name], meanwhile(lake, lambda: lake.protection.set(["main"]), at)))
        assert contents(lake, "main") == before, name
        lake.protection.set([])
    # The upload itself is written first, to an address of its own.
    given = lake.addresses.get("main", "linked")
    lake.storage.put(given.address, b"linked")
    watched = meanwhile(lake, lambda: lake.protection.set(["main"]), DATA_PREFIX)
    refused(lambda: watched.addresses.link("main", "linked", given.token))
    lake.protection.set([])
    assert lake.addresses.link("main", "linked", given.token).path == "linked"


@pytest.mark.twins
def test_an_operation_that_waits_for_the_branch_sees_the_rule(lake: Repository) -> None:
    """The operation begins before the rule, and gets the branch after it."""
    lake.objects.put("main", "staged", b"staged")
    before = contents(lake, "main")
    context = lake.context
    for name, change in REFUSED.items():
        lake.protection.set([])
        with ThreadPoolExecutor(1) as pool:
            with context.metadata.transaction() as tx:
                tx.lock_repository(context.repository_id, "exclusive")
                require_branch(tx, context.repository_id, "main", lock="exclusive")
                begun = pool.submit(change, lake)
                assert waits_for_a_lock(context.metadata, begun), name
                write_protected(tx, context.repository_id, ["main"])
            refused(partial(begun.result, SECONDS_MAX))
        assert contents(lake, "main") == before, name


@pytest.mark.twins
def test_a_rule_waits_for_a_change_that_passed_the_check(lake: Repository) -> None:
    """When `set` returns, no change of a protected branch is under way."""
    context = lake.context
    is_locked, may_end = Event(), Event()

    def change() -> None:
        with context.metadata.transaction() as tx:
            require_branch(tx, context.repository_id, "main", lock="share")
            is_locked.set()
            assert may_end.wait(SECONDS_MAX)

    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(change)
        assert is_locked.wait(SECONDS_MAX)
        begun = pool.submit(lake.protection.set, ["main"])
        assert waits_for_a_lock(context.metadata, begun)
        assert lake.protection.get().patterns == ()
        may_end.set()
        changing.result(timeout=SECONDS_MAX)
        begun.result(timeout=SECONDS_MAX)
    assert lake.protection.get().patterns == ("main",)

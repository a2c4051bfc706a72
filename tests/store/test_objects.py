"""Objects: written, read, listed, deleted, copied."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import Failed
from ebbtide.ids import instant_of
from ebbtide.storage import Content
from ebbtide.store.database.conditions import behind
from ebbtide.store.database.schema import pending, staged
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import count
from tests.support.randomized import examples, randomized
from tests.support.reachable import stored


def paths(repository: Repository, ref: str, prefix: str = "") -> list[str]:
    return [entry.path for entry in repository.objects.walk(ref, prefix=prefix)]


def test_put_and_get(repository: Repository, clock: ManualClock) -> None:
    kinds: tuple[Content, ...] = (b"12345", io.BytesIO(b"12345"), iter([b"12", b"", b"345"]))
    for number, content in enumerate(kinds):
        path = f"a/{number}"
        entry = repository.objects.put(
            "main", path, content, content_type="text/plain", metadata={"k": "v"}
        )
        assert entry.size_bytes == 5
        assert entry.checksum == hashlib.sha256(b"12345").hexdigest()
        assert entry.mtime == clock.now
        assert (entry.content_type, entry.metadata) == ("text/plain", {"k": "v"})
        assert instant_of(entry.address.split("/")[1]) == clock.now
        assert repository.objects.stat("main", path) == entry
        assert repository.objects.get("main", path) == b"12345"
        assert b"".join(repository.objects.stream("main", path, start=1, end=3)) == b"23"
    assert count(repository, pending) == 0
    with raises("object_not_found"):
        repository.objects.get("main@", path)
    repository.commits.commit("main", "all")
    assert repository.objects.stat("main@", path) == entry
    assert repository.objects.get("main", path) == b"12345"


def test_a_put_that_fails_leaves_nothing(repository: Repository) -> None:
    def failing() -> Iterator[bytes]:
        yield b"some"
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        repository.objects.put("main", "a", failing())
    with raises("invalid_path"):
        repository.objects.put("main", "a\0", b"1")
    with raises("branch_not_found"):
        repository.objects.put("nowhere", "a", b"1")
    assert (count(repository, pending), count(repository, staged)) == (0, 0)
    assert stored(repository) == set()


def test_put_many(repository: Repository) -> None:
    items = [NewObject(f"{number:04}", f"{number}".encode()) for number in range(100)]
    # The last two are in one batch.
    items += [NewObject("0007", b"earlier"), NewObject("0007", b"later")]
    totals = repository.objects.put_many("main", iter(items))
    assert (totals.object_count, totals.bytes_total) == (102, 10 + 180 + 7 + 5)
    assert paths(repository, "main") == [f"{number:04}" for number in range(100)]
    assert repository.objects.get("main", "0007") == b"later"
    assert count(repository, pending) == 0
    assert repository.objects.put_many("main", []).object_count == 0


def test_put_many_keeps_whole_batches_before_an_error(repository: Repository) -> None:
    def items() -> Iterator[NewObject]:
        for number in range(20):
            yield NewObject(f"{number:02}", b"x")
        yield NewObject("bad\0", b"")

    with raises("invalid_path"):
        repository.objects.put_many("main", items())
    kept = paths(repository, "main")
    assert kept == [f"{number:02}" for number in range(8)]
    assert count(repository, pending) == 0
    assert len(stored(repository)) == 8


@pytest.mark.twins
def test_listing_with_delimiter_and_pages(repository: Repository) -> None:
    names = ["a", "b/1", "b/2/3", "b/2/4", "b0", "c/1", "d"]
    for name in names[::2]:
        repository.objects.put("main", name, b"")
    repository.commits.commit("main", "half")
    for name in names[1::2]:
        repository.objects.put("main", name, b"")
    repository.objects.delete("main", "d")
    page = repository.objects.list("main", delimiter="/")
    assert [entry.path for entry in page.entries] == ["a", "b0"]
    assert page.common_prefixes == ("b/", "c/")
    assert page.next_after is None
    inside = repository.objects.list("main", prefix="b/", delimiter="/")
    assert [entry.path for entry in inside.entries] == ["b/1"]
    assert inside.common_prefixes == ("b/2/",)
    assert paths(repository, "main", "b/2") == ["b/2/3", "b/2/4"]
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = repository.objects.list("main", delimiter="/", after=after, amount=1)
        seen += [*page.common_prefixes, *(entry.path for entry in page.entries)]
        after = page.next_after
    assert seen == ["a", "b/", "b0", "c/"]
    with raises("invalid_argument"):
        repository.objects.list("main", amount=0)


@pytest.mark.twins
def test_a_listing_passes_every_character_behind_a_delimiter(repository: Repository) -> None:
    for name in ["d/\U0010ffff", "d/\U0010ffffx", "d/\U0010ffff\U0010ffff", "e"]:
        repository.objects.put("main", name, b"")
    page = repository.objects.list("main", delimiter="/")
    assert page.common_prefixes == ("d/",)
    assert [entry.path for entry in page.entries] == ["e"]


@randomized("properties of values")
@examples("properties of values")
@given(st.text(max_size=3), st.text(max_size=4))
def test_the_end_of_a_prefix(prefix: str, path: str) -> None:
    end = behind(prefix)
    in_range = prefix <= path and (end is None or path < end)
    assert in_range == path.startswith(prefix)
    if end is not None:
        end.encode()


@pytest.mark.twins
def test_prefixes_tell_cases_and_wildcards_apart(repository: Repository) -> None:
    for name in ["A/1", "a/1", "a%/1", "a_/1", "ab/1", "\ud7ff".encode().decode() + "/x"]:
        repository.objects.put("main", name, b"")
    assert paths(repository, "main", "a/") == ["a/1"]
    assert paths(repository, "main", "a%") == ["a%/1"]
    assert paths(repository, "main", "a_") == ["a_/1"]
    assert paths(repository, "main", "\ud7ff") == ["\ud7ff/x"]


@pytest.mark.twins
def test_paths_sort_by_their_bytes_on_every_database(repository: Repository) -> None:
    names = ["Z", "a", "a b", "a-b", "a/b", "aB", "ab", "b", "é", "ﬀ", "😀"]
    for name in names:
        repository.objects.put("main", name, b"")
    assert paths(repository, "main") == sorted(names, key=str.encode)
    repository.commits.commit("main", "all")
    assert paths(repository, "main") == sorted(names, key=str.encode)


@pytest.mark.twins
def test_long_walks_page_through_what_is_staged(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.objects.views.PAGE_ROWS", 3)
    for name in "acegikmo":
        repository.objects.put("main", name, b"1")
    repository.commits.commit("main", "first")
    for name in "bdfhjln":
        repository.objects.put("main", name, b"2")
    for name in "aeo":
        repository.objects.delete("main", name)
    assert paths(repository, "main") == list("bcdfghijklmn")
    assert [entry.path for entry in repository.objects.walk("main", after="g")] == list("hijklmn")


def test_walks_over_what_several_unfinished_commits_sealed(
    repository: Repository, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.objects.views.PAGE_ROWS", 2)
    expected: dict[str, bytes] = {}
    for number, names in enumerate(["abcdefgh", "acegz", "bxyz", "ah", "qrst"]):
        for name in names:
            expected[name] = f"{number}".encode()
            repository.objects.put("main", name, expected[name])
        with raises("invalid_date"):
            repository.commits.commit("main", "", date=clock.now + timedelta(days=1))
    repository.objects.delete("main", "b")
    del expected["b"]
    assert paths(repository, "main") == sorted(expected)
    found = {name: repository.objects.get("main", name) for name in expected}
    assert found == expected
    assert [each.path for each in repository.commits.diff_staged("main")] == sorted(expected)
    repository.commits.commit("main", "")
    assert paths(repository, "main@") == sorted(expected)


def test_a_commit_during_a_walk_hides_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.objects.views.PAGE_ROWS", 2)
    names = list("abcdefgh")
    for name in names:
        repository.objects.put("main", name, b"")
    walk = repository.objects.walk("main")
    seen = [next(walk).path]
    repository.commits.commit("main", "meanwhile")
    seen += [entry.path for entry in walk]
    assert seen == names


def test_deleting(repository: Repository) -> None:
    repository.objects.put("main", "committed", b"1")
    repository.commits.commit("main", "first")
    repository.objects.put("main", "staged", b"2")
    repository.objects.delete("main", "staged")
    assert count(repository, staged) == 0, "what was only staged is dropped"
    repository.objects.delete("main", "committed")
    assert count(repository, staged) == 1
    for name in ("staged", "committed", "never"):
        with raises("object_not_found"):
            repository.objects.delete("main", name)
        with raises("object_not_found"):
            repository.objects.stat("main", name)
    assert repository.objects.get("main@", "committed") == b"1"
    repository.objects.put("main", "committed", b"3")
    assert repository.objects.get("main", "committed") == b"3"
    repository.objects.delete("main", "committed")
    assert paths(repository, "main") == []
    repository.commits.commit("main", "second")
    assert paths(repository, "main@") == []
    with raises("branch_not_found"):
        repository.objects.delete("nowhere", "a")


def test_delete_many(repository: Repository) -> None:
    for name in "abc":
        repository.objects.put("main", name, b"")
    repository.commits.commit("main", "first")
    repository.objects.put("main", "d", b"")
    assert repository.objects.delete_many("main", ["d", "a", "x", "c", "a"]) == ["x"]
    assert paths(repository, "main") == ["b"]


def test_damage_is_told(repository: Repository) -> None:
    first = repository.objects.put("main", "a", b"1")
    second = repository.objects.put("main", "b", b"2")
    repository.storage.put(first.address, b"X")
    with raises("corrupt_object"):
        repository.objects.get("main", "a")
    repository.branches.create("dev", "main")
    with raises("corrupt_object"):
        repository.objects.copy("dev", "c", "main", "a")
    assert count(repository, pending) == 0
    repository.storage.delete([second.address])
    with pytest.raises(Failed, match="missing"):
        repository.objects.get("main", "b")
    with raises("object_not_found"):
        repository.objects.stat("main", "c")

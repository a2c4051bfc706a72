"""Objects: written, read, listed, deleted, copied."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import Failed
from ebbtide.ids import instant_of
from ebbtide.storage import Content
from ebbtide.store.database.rows import behind
from ebbtide.store.database.schema import pending, staged
from ebbtide.store.repository import Repository
from ebbtide.store.staging.uploads import NewObject
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import count, seal
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
    """Of an error, whole batches before it are kept."""
    items = [NewObject(f"{number:02}", f"{number}".encode()) for number in range(20)]
    # The last two are in one batch.
    items += [NewObject("07", b"earlier"), NewObject("07", b"later")]
    totals = repository.objects.put_many("main", iter(items))
    assert (totals.object_count, totals.bytes_total) == (22, 10 + 20 + 7 + 5)
    assert paths(repository, "main") == [f"{number:02}" for number in range(20)]
    assert repository.objects.get("main", "07") == b"later"
    assert repository.objects.put_many("main", []).object_count == 0
    repository.branches.create("dev", "main")
    before = len(stored(repository))
    with raises("invalid_path"):
        repository.objects.put_many("dev", [*items[:20], NewObject("bad\0", b"")])
    assert paths(repository, "dev") == [f"{number:02}" for number in range(8)]
    assert len(stored(repository)) == before + 8
    assert count(repository, pending) == 0


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
def test_characters_on_every_database(repository: Repository) -> None:
    """Paths sort by their bytes. Listings pass every character, and tell cases apart."""
    names = ["A/1", "a/1", "a%/1", "a_/1", "ab/1", "a b", "aB", "é", "\ud7ff/x", "ﬀ", "😀"]
    names += [f"d/\U0010ffff{more}" for more in ("", "x", "\U0010ffff")]
    for name in names:
        repository.objects.put("main", name, b"")
    for _ in range(2):
        assert paths(repository, "main") == sorted(names, key=str.encode)
        page = repository.objects.list("main", delimiter="/")
        assert page.common_prefixes == ("A/", "a%/", "a/", "a_/", "ab/", "d/", "\ud7ff/")
        assert [entry.path for entry in page.entries] == ["a b", "aB", "é", "ﬀ", "😀"]
        for prefix in ("a/", "a%", "a_", "\ud7ff"):
            found = [name for name in names if name.startswith(prefix)]
            assert paths(repository, "main", prefix) == found
        repository.commits.commit("main", "all", allow_empty=True)


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
def test_walks_over_what_several_unfinished_commits_sealed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.store.objects.views.PAGE_ROWS", 2)
    for name in "acegikmo":
        repository.objects.put("main", name, b"committed")
    repository.commits.commit("main", "first")
    expected = dict.fromkeys("acegikmo", b"committed")
    for number, names in enumerate(["abcdefgh", "acegz", "bxyz", "ah", "qrst"]):
        for name in names:
            expected[name] = f"{number}".encode()
            repository.objects.put("main", name, expected[name])
        seal(repository)
    for name in "bko":
        repository.objects.delete("main", name)
        del expected[name]
    assert paths(repository, "main") == sorted(expected)
    assert {name: repository.objects.get("main", name) for name in expected} == expected
    after = [entry.path for entry in repository.objects.walk("main", after="g")]
    assert after == [name for name in sorted(expected) if name > "g"]
    changed = [name for name in expected if expected[name] != b"committed"]
    assert [each.path for each in repository.commits.diff_staged("main")] == sorted(
        [*changed, *"ko"]
    )
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
    for name in "ab":
        repository.objects.put("main", name, b"")
    repository.commits.commit("main", "first")
    repository.objects.put("main", "c", b"")
    assert repository.objects.delete_many("main", ["c", "a", "x", "b", "a"]) == ["x"]
    assert count(repository, staged) == 2, "what was only staged is dropped"
    assert paths(repository, "main") == []


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

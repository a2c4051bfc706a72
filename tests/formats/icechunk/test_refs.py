"""Branches and tags of version 1, beside Icechunk's own view of them."""

from __future__ import annotations

from pathlib import Path

import icechunk
import pytest
import zarr
from icechunk import Repository

from ebbtide.errors import NotFound, Refused
from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.refs import delete_branch, delete_tag, read_refs
from ebbtide.model import Ref
from ebbtide.storage import Storage, open_storage
from tests.support.faulty import FaultyStorage
from tests.support.icechunk import build_random, create_repository, open_repository
from tests.support.randomized import randomized

NAMES = ("a b", "v1.2.3", "x.json.deleted", "branch.x", "ref.json", "..", "tag.")


def commit(repository: Repository) -> str:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.attrs["number"] = root.attrs.get("number", 0) + 1  # type: ignore[operator]
    return session.commit("a commit")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return create_repository(tmp_path / "repo", 1)


@pytest.fixture
def storage(tmp_path: Path, repository: Repository) -> Storage:
    del repository
    return open_storage(str(tmp_path / "repo"))


def said(repository: Repository) -> set[Ref]:
    """What Icechunk says."""
    branches = [Ref(n, "branch", repository.lookup_branch(n)) for n in repository.list_branches()]
    tags = [Ref(n, "tag", repository.lookup_tag(n)) for n in repository.list_tags()]
    return {*branches, *tags}


def check(repository: Repository, storage: Storage) -> None:
    found = read_refs(storage)
    assert set(found) == said(repository)
    assert len(set(found)) == len(found)


def refusal(storage: Storage) -> str:
    with pytest.raises(Refused) as error:
        read_refs(storage)
    assert error.value.kind == "corrupt_ref"
    return error.value.message


@randomized("Icechunk repositories, read")
def test_those_of_random_repositories_are_as_icechunk_says(tmp_path: Path, seed: int) -> None:
    build_random(tmp_path / "random", seed, 1)
    check(open_repository(tmp_path / "random"), open_storage(str(tmp_path / "random")))


def test_names_may_have_spaces_and_dots(repository: Repository, storage: Storage) -> None:
    for name in NAMES:
        repository.create_branch(name, commit(repository))
        repository.create_tag(name, commit(repository))
        check(repository, storage)
    assert {ref.name for ref in read_refs(storage)} == {"main", *NAMES}


def test_a_name_that_icechunk_lists_otherwise_than_it_was_given_keeps_its_snapshot(
    repository: Repository, storage: Storage
) -> None:
    """On a local disk, that is any beyond ASCII."""
    head = commit(repository)
    repository.reset_branch("main", ROOT_ID)
    repository.create_branch("é", head)
    assert head in {ref.commit_id for ref in read_refs(storage)}
    assert len(read_refs(storage)) == 2


def test_a_deleted_tag_is_none(repository: Repository, storage: Storage) -> None:
    for name in ("gone", "goner", "there"):
        repository.create_tag(name, commit(repository))
    repository.delete_tag("gone")
    repository.delete_tag("goner")
    check(repository, storage)
    assert {ref.name for ref in read_refs(storage)} == {"main", "there"}


def test_deletions_are_seen_by_icechunk(repository: Repository, storage: Storage) -> None:
    head = commit(repository)
    for name in NAMES[:5]:
        repository.create_branch(name, head)
        repository.create_tag(name, head)
    for name in NAMES[:3]:
        delete_branch(storage, name)
        delete_tag(storage, name)
        check(open_repository(Path(storage.url.removeprefix("file://"))), storage)
    repository = open_repository(Path(storage.url.removeprefix("file://")))
    assert repository.list_branches() == {"main", *NAMES[3:5]}
    assert repository.list_tags() == set(NAMES[3:5])
    for name in NAMES[:3]:
        repository.create_branch(name, head)
        with pytest.raises(icechunk.IcechunkError):
            repository.create_tag(name, head)
    check(repository, storage)


def test_what_is_deleted_already_can_be_deleted(repository: Repository, storage: Storage) -> None:
    repository.create_branch("x", ROOT_ID)
    repository.create_tag("x", ROOT_ID)
    for _ in range(2):
        delete_branch(storage, "x")
        delete_tag(storage, "x")
    assert [ref.name for ref in read_refs(storage)] == ["main"]
    repository.create_tag("y", ROOT_ID)
    repository.delete_tag("y")
    delete_tag(storage, "y")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"7",
        b'"1CECHNKREP0F1RSTCMT0"',
        b'{"snapshot": null}',
        b'{"snapshot": 7}',
        b'{"snapshot": ["1CECHNKREP0F1RSTCMT0"]}',
        b'{"snapshot": ""}',
        b'{"snapshot": "1CECHNKREP0F1RSTCMT"}',
        b'{"snapshot": "1CECHNKREP0F1RSTCMT1"}',
        b'{"snapshot": "1cechnkrep0f1rstcmt0"}',
        b'{"Snapshot": "1CECHNKREP0F1RSTCMT0"}',
        b'{"snapshot": "1CECHNKREP0F1RSTCMT0"',
        b"\xff\xfe",
    ],
)
def test_damaged_ones_are_refused(repository: Repository, storage: Storage, data: bytes) -> None:
    repository.create_tag("damaged", ROOT_ID)
    storage.put("refs/tag.damaged/ref.json", data)
    assert "refs/tag.damaged/ref.json" in refusal(storage)


def test_one_that_is_damaged_and_deleted_is_none(repository: Repository, storage: Storage) -> None:
    repository.create_tag("damaged", ROOT_ID)
    repository.delete_tag("damaged")
    storage.put("refs/tag.damaged/ref.json", b"")
    assert [ref.name for ref in read_refs(storage)] == ["main"]


@pytest.mark.parametrize("folder", ["other", "branches.x", "Branch.x", "branch", "branch.a/b"])
def test_what_is_neither_a_branch_nor_a_tag_is_refused(storage: Storage, folder: str) -> None:
    """Icechunk refuses such a repository, too, or does not know of it."""
    storage.put(f"refs/{folder}/ref.json", b'{"snapshot": "1CECHNKREP0F1RSTCMT0"}')
    assert f"refs/{folder}/ref.json" in refusal(storage)


def test_icechunk_refuses_what_is_neither_a_branch_nor_a_tag(
    repository: Repository, storage: Storage
) -> None:
    storage.put("refs/other/ref.json", b'{"snapshot": "1CECHNKREP0F1RSTCMT0"}')
    with pytest.raises(icechunk.IcechunkError):
        said(repository)


def test_one_that_goes_away_while_it_is_read_is_none(
    repository: Repository, storage: Storage
) -> None:
    repository.create_branch("x", ROOT_ID)

    def go(method: str, address: str) -> None:
        if (method, address) == ("get", "refs/branch.x/ref.json"):
            raise NotFound("object_not_found", "it went away")

    assert [ref.name for ref in read_refs(FaultyStorage(storage, before=go))] == ["main"]

"""Branches and tags of version 1, beside Icechunk's own view of them."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import icechunk
import pytest
from icechunk import Repository

from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.icechunk.ids import ROOT_ID
from ebbtide.formats.icechunk.refs import delete_branch, delete_tag, read_refs
from ebbtide.formats.icechunk.repository import IcechunkRepository
from ebbtide.gc.hold import expire
from ebbtide.gc.options import RunOptions
from ebbtide.ids import new_id
from ebbtide.model import Ref
from ebbtide.retention import Policy
from ebbtide.retention.expiry import ExpiryRequest
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage
from tests.formats.icechunk.operations import commit
from tests.support.errors import raises
from tests.support.faulty import FaultyStorage
from tests.support.icechunk import (
    build_random,
    create_repository,
    open_repository,
)
from tests.support.randomized import randomized

ENCODED: tuple[str, ...] = ("#", "100%", "~me", "*", 'a "b"', "[x]", "a\\b", "{^`|}", "<?>", "\t")
ENCODED += ("forschung-m\u00fcller", "\u65e5\u672c", "e\u0301", "\U0001f9ca")
ENCODED += ("\x7f", "%C3%BC")
CONTROLS = {"\t", "\x7f"}
"""Keys with these can't be listed on S3."""
BRANCH = "forschung-m\u00fcller"
NAMES = ("a b", "v1.2.3", "x.json.deleted", "branch.x", "ref.json", "..", "tag.")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return create_repository(tmp_path / "repo", 1)


@pytest.fixture
def storage(tmp_path: Path, repository: Repository) -> Storage:
    del repository
    return open_storage(str(tmp_path / "repo"))


def said(repository: Repository) -> set[Ref]:
    branches = [Ref(n, "branch", repository.lookup_branch(n)) for n in repository.list_branches()]
    tags = [Ref(n, "tag", repository.lookup_tag(n)) for n in repository.list_tags()]
    return {*branches, *tags}


def check(repository: Repository, storage: Storage) -> None:
    found = read_refs(storage)
    assert set(found) == said(repository)
    assert len(set(found)) == len(found)


def refuses(storage: Storage, address: str) -> None:
    with raises("corrupt_ref", address, of=Refused):
        read_refs(storage)


@randomized("Icechunk repositories, read")
def test_those_of_random_repositories_are_as_icechunk_says(tmp_path: Path, seed: int) -> None:
    build_random(tmp_path / "random", seed, 1)
    check(open_repository(tmp_path / "random"), open_storage(str(tmp_path / "random")))


def test_names_are_as_they_were_given(repository: Repository, storage: Storage) -> None:
    """In a directory Icechunk itself lists them as their folders are called."""
    ids = [ROOT_ID, commit(repository), commit(repository)]
    for number, name in enumerate(NAMES):
        repository.create_branch(name, ids[number % 3])
        repository.create_tag(name, ids[number % 2])
    check(repository, storage)
    for number, name in enumerate(ENCODED):
        repository.create_branch(name, ids[number % 3])
        repository.create_tag(name, ids[number % 2])
    found = read_refs(storage)
    assert {ref.name for ref in found} == {"main", *NAMES, *ENCODED}
    for ref in found:
        look_up = repository.lookup_branch if ref.kind == "branch" else repository.lookup_tag
        assert look_up(ref.name) == ref.commit_id


def test_a_name_that_was_copied_to_where_it_is_keeps_its_snapshot(
    repository: Repository, storage: Storage
) -> None:
    """Icechunk never spells these so in a directory: they were copied, from S3 for instance."""
    for name in ("\u00fc", "a%20b", "%FF", "%zz"):
        storage.put(f"refs/branch.{name}/ref.json", b'{"snapshot": "1CECHNKREP0F1RSTCMT0"}')
    repository.create_branch("\u00fc", ROOT_ID)
    names = sorted(ref.name for ref in read_refs(storage))
    assert names == ["%FF", "%zz", "a%20b", "main", "\u00fc", "\u00fc"]
    for name in names:
        delete_branch(storage, name)
    assert read_refs(storage) == ()


def test_on_s3_names_are_as_they_were_given(s3_url: str) -> None:
    """Icechunk encodes nothing there."""
    place, names = f"{s3_url}/{new_id()}", {*NAMES, *random.sample(ENCODED, 5)} - CONTROLS
    repository, storage = create_repository(place, 1), open_storage(place)
    for name in names:
        repository.create_branch(name, ROOT_ID)
        repository.create_tag(name, ROOT_ID)
    check(repository, storage)
    assert {ref.name for ref in read_refs(storage)} == {"main", *names}
    for name in names:
        delete_branch(storage, name)
        delete_tag(storage, name)
    assert repository.list_branches() == {"main"}
    assert repository.list_tags() == set()


class TestRules:
    @pytest.fixture
    def lake(self, tmp_path: Path, repository: Repository) -> IcechunkRepository:
        repository.create_branch(BRANCH, ROOT_ID)
        for _ in range(4):
            commit(repository, BRANCH)
        return IcechunkRepository(
            open_storage(str(tmp_path / "repo")), name="it", settings=Settings()
        )

    def request(self, lake: IcechunkRepository, pattern: str) -> ExpiryRequest:
        policy = Policy.parse({"default": {"keep_last": 1}, "branches": {pattern: "keep"}})
        now = lake.now()
        return ExpiryRequest.of(now=now, sessions=timedelta(0), policy=policy, unsafe=True)

    def test_apply_to_names_as_they_were_given(self, lake: IcechunkRepository) -> None:
        for pattern in (BRANCH, "forschung-*", "*ll?r"):
            assert lake.plan_expiry(self.request(lake, pattern))[1].is_empty
        _, expiry = lake.plan_expiry(self.request(lake, "other"))
        assert len(expiry.released) == 3

    def test_that_spell_a_branch_as_its_folder_are_refused(self, lake: IcechunkRepository) -> None:
        """So Icechunk lists it, and a rule that was copied from there would keep nothing."""
        for pattern in ("forschung-m%C3%BCller", "*%C3%BC*"):
            for step in (
                lake.plan_expiry,
                partial(expire, lake, options=RunOptions.of(Settings())),
            ):
                with raises("invalid_policy", BRANCH, of=InvalidInput):
                    step(self.request(lake, pattern))


def test_deletions_are_seen_by_icechunk(repository: Repository, storage: Storage) -> None:
    """What is deleted already can be deleted. A deleted tag is none, even if it is damaged."""
    names = [*NAMES[:5], *ENCODED]
    for name in names:
        repository.create_branch(name, ROOT_ID)
        repository.create_tag(name, ROOT_ID)
    repository.delete_tag(NAMES[0])
    storage.put(f"refs/tag.{NAMES[0]}/ref.json", b"")
    gone = [*NAMES[:3], *ENCODED]
    for name in (*gone, *NAMES[:3]):
        delete_branch(storage, name)
        delete_tag(storage, name)
    check(repository, storage)
    assert repository.list_branches() == {"main", *NAMES[3:5]}
    assert repository.list_tags() == set(NAMES[3:5])
    for name in gone:
        repository.create_branch(name, ROOT_ID)
        with pytest.raises(icechunk.IcechunkError):
            repository.create_tag(name, ROOT_ID)
    assert {ref.name for ref in read_refs(storage)} == {"main", *names}


DAMAGED: Final = [
    *(b"", b"{", b"{}", b"[]", b"7", b"\xff\xfe", b'"1CECHNKREP0F1RSTCMT0"', b"[" * 100_000),
    *(b'{"snapshot": %s}' % each for each in (b"null", b"7", b'["1CECHNKREP0F1RSTCMT0"]', b'""')),
    *(b'{"snapshot": "%s"}' % each for each in (b"1CECHNKREP0F1RSTCMT1", b"1cechnkrep0f1rstcmt0")),
    b'{"Snapshot": "1CECHNKREP0F1RSTCMT0"}',
    b'{"snapshot": "1CECHNKREP0F1RSTCMT0"',
]


def test_damaged_ones_are_refused(
    repository: Repository, storage: Storage, subtests: pytest.Subtests
) -> None:
    repository.create_tag("damaged", ROOT_ID)
    for data in DAMAGED:
        storage.put("refs/tag.damaged/ref.json", data)
        with subtests.test(data=data[:50]):
            refuses(storage, "refs/tag.damaged/ref.json")


def test_what_is_neither_a_branch_nor_a_tag_is_refused(storage: Storage) -> None:
    """Icechunk refuses such a repository, too, or does not know of it."""
    for folder in ("other", "branches.x", "Branch.x", "branch", "branch.a/b"):
        address = f"refs/{folder}/ref.json"
        storage.put(address, b'{"snapshot": "1CECHNKREP0F1RSTCMT0"}')
        refuses(storage, address)
        storage.delete([address])


def test_one_that_goes_away_while_it_is_read_is_none(
    repository: Repository, storage: Storage
) -> None:
    repository.create_branch("x", ROOT_ID)

    def go(method: str, address: str) -> None:
        if (method, address) == ("get", "refs/branch.x/ref.json"):
            raise NotFound("object_not_found", "it went away")

    assert [ref.name for ref in read_refs(FaultyStorage(storage, before=go))] == ["main"]

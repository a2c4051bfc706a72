"""Repositories at the root of a bucket whose keys begin with a slash: what a run says of them."""

from __future__ import annotations

import os

import pytest

from ebbtide.errors import NotFound, Refused
from ebbtide.formats.icechunk.state import check_clean, spec_version
from ebbtide.ids import new_id
from ebbtide.storage import RemoteStorage, Storage, open_storage
from tests.support.ceph import make_bucket
from tests.support.errors import raises
from tests.support.stray import put_key

ANCHORS = ("repo", "refs/branch.main/ref.json")


@pytest.fixture
def bucket(s3_url: str) -> Storage:
    del s3_url  # its server and its variables
    name = f"rooted-{new_id()[:20]}"
    make_bucket(name, os.environ)
    return open_storage(f"s3://{name}")


def test_one_is_refused_in_words_that_fit(bucket: Storage) -> None:
    """Also beside one that can be read. Nobody can tell to which of the two clients write."""
    put_key(bucket.url, "/repo-of-something-else")
    with pytest.raises(NotFound):
        spec_version(bucket)
    bucket.put("repo", b"of the one")
    assert spec_version(bucket) == 2
    bucket.delete(["repo"])
    for anchor in reversed(ANCHORS):
        put_key(bucket.url, f"/{anchor}")
        told = (f"(/{anchor})", f"icechunk:{bucket.url}/")
        with raises("repository_rooted", *told, of=Refused):
            spec_version(bucket)
    bucket.put("repo", b"of the one")
    with pytest.raises(Refused):
        spec_version(bucket)


def test_what_has_a_prefix_is_not_asked() -> None:
    """Nor is a directory: neither can have such keys."""
    nowhere = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "region": "x"}
    storage = open_storage("s3://bucket/prefix", nowhere)
    assert isinstance(storage, RemoteStorage)
    check_clean(storage, ANCHORS)
    check_clean(open_storage("/nowhere"), ANCHORS)

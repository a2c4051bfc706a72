"""Addresses of a storage namespace, in all forms in which a server names them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.formats.lakefs.repository import find_namespace
from ebbtide.formats.lakefs.server import AnsweredRepository, Namespace
from tests.formats.lakefs.fake import FakeLakefs
from tests.formats.lakefs.world import open_lakefs_world

LOCAL = Namespace("local://repo/", "local:///srv/blocks/repo/")
REMOTE = Namespace("s3://lake/repo/", "s3://lake/repo/")


@pytest.mark.parametrize(
    ("namespace", "url", "address"),
    [
        (REMOTE, "s3://lake/repo/data/p/x", "data/p/x"),
        (REMOTE, "s3://lake/repo/linked/x", "linked/x"),
        (REMOTE, "https://lake.s3.example/repo/data/p/x,signed", "data/p/x,signed"),
        (REMOTE, "s3://other/x", None),
        (LOCAL, "local://repo/data/p/x", "data/p/x"),
        (LOCAL, "local:///srv/blocks/repo/data/p/x", "data/p/x"),
        (LOCAL, "local:///srv/blocks/srv/blocks/repo/data/p/x", "data/p/x"),
    ],
)
def test_relative(namespace: Namespace, url: str, address: str | None) -> None:
    assert namespace.relative(url) == address


def test_where_it_is_opened() -> None:
    assert REMOTE.storage_url == "s3://lake/repo"
    assert LOCAL.storage_url == "file:///srv/blocks/repo"
    for other in ("https://a.blob.example/c/", "gs://lake/repo/"):
        with pytest.raises(InvalidInput, match="cannot be collected yet: it has to begin with s3:"):
            _ = Namespace(other, other).storage_url


def test_a_server_over_a_directory_needs_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_lakefs_world() as world:
        assert find_namespace(world.server, None) == REMOTE
        answer = replace(world.server.repository(), namespace="local://repo/")

        def local(_server: FakeLakefs) -> AnsweredRepository:
            return answer

        monkeypatch.setattr(FakeLakefs, "repository", local)
        assert find_namespace(world.server, "/srv/blocks/") == LOCAL
        with pytest.raises(InvalidInput, match="EBBTIDE_LAKEFS_LOCAL_PATH is not set"):
            find_namespace(world.server, None)

"""Metadata of users: what one client attached over S3 or the API, another one finds over the other.

Names and letters are those of lakeFS: `x-amz-meta-Color` is `X-Amz-Meta-color` in the API.
"""

from __future__ import annotations

from typing import Any

import lakefs
import pytest

from ebbtide.server.s3.described import headers_of, metadata_of
from ebbtide.store.content.entries import Entry
from tests.server.s3.conftest import Client
from tests.server.s3.test_multipart import Upload
from tests.support.server import Server
from tests.support.world import START


def of_api(repo: lakefs.Repository, path: str) -> Any:
    return repo.branch("main").object(path).stat().metadata


def test_metadata_of_s3_in_the_api(s3: Client, repo: lakefs.Repository) -> None:
    given = {"Color": "blue", "x_y.z-1": "2"}
    expected = {"X-Amz-Meta-color": "blue", "X-Amz-Meta-x_y.z-1": "2"}
    s3.put_object(Bucket=repo.id, Key="main/a", Body=b"1", Metadata=given)
    source = f"{repo.id}/main/a"
    s3.copy_object(Bucket=repo.id, Key="main/copied", CopySource=source)
    replaced = {"MetadataDirective": "REPLACE", "Metadata": given}
    s3.copy_object(Bucket=repo.id, Key="main/replaced", CopySource=source, **replaced)
    upload = Upload(s3, repo.id, "main/parts", Metadata=given)
    upload.complete([upload.part(1, b"1")])
    repo.branch("main").commit("m")
    for path in ("a", "copied", "replaced", "parts"):
        assert of_api(repo, path) == expected
        found = s3.head_object(Bucket=repo.id, Key=f"main/{path}")["Metadata"]
        assert found == {"color": "blue", "x_y.z-1": "2"}


def test_metadata_of_the_api_in_s3(s3: Client, server: Server, repo: lakefs.Repository) -> None:
    place = f"/repositories/{repo.id}/branches/main/objects"
    with server.http() as http:
        sent = {"x-lakefs-meta-X-Amz-Meta-Color": "blue", "x-lakefs-internal-client-mtime": "1"}
        answer = http.post(place, params={"path": "a"}, content=b"1", headers=sent)
        assert answer.status_code == 201
        found = s3.head_object(Bucket=repo.id, Key="main/a")
        assert (found["Metadata"], found["MissingMeta"]) == ({"color": "blue"}, 1)
        changed = {"X-Amz-Meta-Color": "röt", "plain": "1"}
        answer = http.put(
            f"{place}/stat/user_metadata", params={"path": "a"}, json={"set": changed}
        )
        assert answer.status_code == 204
    assert of_api(repo, "a") == changed
    found = s3.head_object(Bucket=repo.id, Key="main/a")["Metadata"]
    assert found == {"color": "=?UTF-8?B?csO2dA==?=", "plain": "1"}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("blue", "blue"),
        ("=?UTF-8?B?csO2dA==?=", "röt"),
        ("=?iso-8859-1?Q?r=F6t?=", "röt"),
        ("röt".encode().decode("latin-1"), "röt"),
        ("röt", "röt"),  # bytes of Latin-1
        ("=?UTF-8?Q?blue?=", "=?UTF-8?Q?blue?="),
        ("=?x-unknown?B?csO2dA==?=", "=?x-unknown?B?csO2dA==?="),
        ("=?UTF-8?B?gA==?=", "=?UTF-8?B?gA==?="),
        ("", ""),
    ],
)
def test_values_in_other_letters(sent: str, stored: str) -> None:
    """A client that encodes, as S3's own do, is understood by the API; S3 gives it back encoded."""
    found = metadata_of({"x-amz-meta-a": sent})
    assert found == {"X-Amz-Meta-a": stored}
    again = headers_of(Entry("a", "data/a/b", 1, "x", START, metadata=found))["x-amz-meta-a"]
    assert again.isascii()
    assert metadata_of({"x-amz-meta-a": again}) == found


@pytest.mark.parametrize(
    ("metadata", "shown", "missing"),
    [
        ({"color": "1"}, {"color": "1"}, None),
        ({"color": "1", "X-Amz-Meta-color": "2"}, {"color": "2"}, "1"),
        ({"x-amz-meta-color": "1", "Color": "2", "color": "3"}, {"color": "1"}, "2"),
        ({"X-Amz-Meta-": "1", "ä": "2", "::lakefs::x": "3"}, {}, "3"),
        ({"c:d": "2", "b": "ö"}, {"b": "=?UTF-8?B?w7Y=?="}, "1"),
    ],
)
def test_names_that_share_a_header(
    metadata: dict[str, str], shown: dict[str, str], missing: str | None
) -> None:
    headers = headers_of(Entry("a", "data/a/b", 1, "x", START, metadata=metadata))
    found = {
        name.removeprefix("x-amz-meta-"): value
        for name, value in headers.items()
        if name.startswith("x-amz-meta-")
    }
    assert (found, headers.get("x-amz-missing-meta")) == (shown, missing)

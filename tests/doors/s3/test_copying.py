"""Copies whose source changes while they are made: the request's condition holds for the copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ebbtide.server.app import create_app
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.etags import etag_of
from ebbtide.store.embedded import Store
from ebbtide.store.objects.objects import Objects
from ebbtide.store.repository import Repository
from tests.support.app import asking

Send = Callable[..., httpx.Response]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Repository, Send]]:
    """A repository, and what sends it a PUT that botocore signs. Headers have underscores."""
    with Store.init(tmp_path / "store", settings=Settings()) as store:
        lake = store.create_repository("lake")
        pair = store.keys.create(Role.ADMIN, name="test")
        keys = Credentials(pair.key.access_key_id, pair.secret)
        with asking(create_app(store), (pair.key.access_key_id, pair.secret)) as http:

            def put(place: str, **headers: str) -> httpx.Response:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                request = AWSRequest("PUT", f"http://test/{place}", named)
                S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
                return http.request("PUT", request.url, headers=dict(request.headers), auth=None)

            yield lake, put


def written_once_found(monkeypatch: pytest.MonkeyPatch, lake: Repository) -> None:
    """Writes another object to the path `a` as soon as a request has found the one there."""
    found = Objects.open

    def opened(objects: Objects, ref: str, path: str) -> Any:
        monkeypatch.setattr(Objects, "open", found)
        source = found(objects, ref, path)
        lake.objects.put("main", "a", b"second")
        return source

    monkeypatch.setattr(Objects, "open", opened)


def test_the_condition_holds_for_what_is_copied(
    made: tuple[Repository, Send], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an object, and of a part."""
    lake, send = made
    for target, directive in (("b", "COPY"), ("c", "REPLACE"), ("d", "COPY"), ("e", "REPLACE")):
        lake.objects.put("main", "a", b"first")
        tag = etag_of(lake.objects.stat("main", "a"))
        if target in "de":
            lake.commits.commit("main", "")
        written_once_found(monkeypatch, lake)
        answer = send(
            f"lake/main/{target}",
            x_amz_copy_source="lake/main/a",
            x_amz_copy_source_if_match=tag,
            x_amz_metadata_directive=directive,
        )
        if answer.status_code == 412:
            assert target not in {entry.path for entry in lake.objects.walk("main")}
        else:
            found = etag_of(lake.objects.stat("main", target))
            assert (answer.status_code, found) == (200, tag), target

    upload = lake.multipart.create("main", "f")
    lake.objects.put("main", "a", b"first")
    source = {"x_amz_copy_source": "lake/main/a"}
    source["x_amz_copy_source_if_match"] = etag_of(lake.objects.stat("main", "a"))
    written_once_found(monkeypatch, lake)
    answer = send(f"lake/main/f?partNumber=1&uploadId={upload.upload_id}", **source)
    assert answer.status_code == 200
    (part,) = lake.multipart.parts(upload, after=0, amount=2)
    assert part.size_bytes == len(b"first")

"""Deletes on a real S3 server that is busy."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ebbtide.ids import new_id
from ebbtide.storage import clients, open_storage
from tests.support.proxy import Proxy, proxied


@pytest.fixture
def proxy(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server, which all that is opened from now on goes through."""
    del s3_url
    with proxied(os.environ["AWS_ENDPOINT"]) as found:
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL"):
            monkeypatch.setenv(name, found.endpoint)
        # Clients are kept, and know the endpoint that there was.
        clients.connect.cache_clear()
        yield found
        clients.connect.cache_clear()


def test_most_deletes_are_refused(s3_url: str, proxy: Proxy) -> None:
    proxy.busy_share = 0.6
    storage = open_storage(f"{s3_url}/{new_id()}")
    addresses = [f"data/{new_id()}/{new_id()}" for _ in range(3_000)]
    outcomes = storage.delete(addresses)
    assert {each.outcome for each in outcomes} == {"deleted"}
    assert proxy.refused > 0

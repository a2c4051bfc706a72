"""How much memory an upload in parts takes in a server that does nothing else."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from boto3.s3.transfer import TransferConfig

from tests.server.s3.conftest import s3_client
from tests.server.test_streaming import MEGABYTE, forget_peak, peak
from tests.support.databases import new_database
from tests.support.server import Server, new_server

LARGE = 96 * MEGABYTE
PART = 24 * MEGABYTE
AT_ONCE = 4
GROWTH_MAX = {"local": 40 * MEGABYTE, "shared": 90 * MEGABYTE}
"""On S3, all uploads share 16 MiB for parts. The rest are pieces that arrive, and memory that the
allocator keeps."""


@pytest.fixture
def alone(request: pytest.FixtureRequest, tmp_path: Path, server_kind: str) -> Server:
    """A server of one kind for one test alone."""
    settings = {"EBBTIDE_RECLAIM": "false"}
    if server_kind == "shared":
        settings["EBBTIDE_DATABASE_URL"] = new_database(request.getfixturevalue("postgres"))
        settings["EBBTIDE_STORAGE_URL"] = f"{request.getfixturevalue('s3_url')}/memory"
    server = new_server(tmp_path / "store", **settings).start()
    request.addfinalizer(server.stop)
    return server


@pytest.mark.twins
def test_an_upload_in_parts_needs_little_memory(
    alone: Server, server_kind: str, tmp_path: Path
) -> None:
    """Much less than the object: the parts pass through."""
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, LARGE)
    alone.repository("lake")
    config = TransferConfig(
        multipart_threshold=MEGABYTE, multipart_chunksize=PART, max_concurrency=AT_ONCE
    )
    before = forget_peak(alone)
    with closing(s3_client(alone)) as client:
        client.upload_file(str(file), "lake", "main/large", Config=config)
        head = client.head_object(Bucket="lake", Key="main/large")
    assert head["ContentLength"] == LARGE
    assert peak(alone) - before < GROWTH_MAX[server_kind]

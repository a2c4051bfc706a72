"""Clients of S3, set up as `docs/s3.md` says, on one repository: each does the same work."""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import httpx
import lakefs
import pytest
from boto3.s3.transfer import TransferConfig

from tests.doors.s3.clients.clients import (
    PART_BYTES,
    REFUSALS,
    Aws,
    Program,
    Pyarrow,
    Rclone,
    S3cmd,
    S3Files,
    S3fs,
)
from tests.doors.s3.clients.hadoop import Hadoop, java
from tests.doors.s3.clients.page import PAGE, Page
from tests.server.test_collecting import expire_older
from tests.support.collected import figure
from tests.support.server import Server

CLIENTS: dict[str, Callable[[Page, Path], S3Files]] = {
    "aws": Aws,
    "rclone": Rclone,
    "s3fs": S3fs,
    "pyarrow": Pyarrow,
    "s3cmd": S3cmd,
}


@pytest.fixture
def hadoop(plain: Server, lake: lakefs.Repository, tmp_path: Path) -> Iterator[Hadoop]:
    with java(tmp_path / "java.log") as jvm:
        yield Hadoop(Page(plain, lake.id), jvm)


@pytest.fixture(params=[*CLIENTS, "hadoop"])
def client(
    request: pytest.FixtureRequest, plain: Server, lake: lakefs.Repository, tmp_path: Path
) -> S3Files | Hadoop:
    if request.param == "hadoop":
        return cast(Hadoop, request.getfixturevalue("hadoop"))
    return CLIENTS[request.param](Page(plain, lake.id), tmp_path)


def answered(server: Server, operation: str) -> float:
    """How often the server has carried out an operation of S3."""
    with server.http() as http:
        return figure(http, rf'ebbtide_requests_total{{.*route="s3:{operation}".*}}')


@pytest.mark.drawn("clients of S3")
def test_files(
    client: S3Files | Hadoop, plain: Server, lake: lakefs.Repository, http: httpx.Client
) -> None:
    main = lake.branch("main")
    small, large = "main/table/day=1/a", "main/table/large"
    client.write(small, b"0123456789", color="blue")
    assert main.object("table/day=1/a").stat().checksum == hashlib.sha256(b"0123456789").hexdigest()
    assert client.read(small) == b"0123456789"
    assert client.read_range(small, 2, 3) == b"234"
    assert client.color(small) == "blue"

    data = random.Random(1).randbytes(PART_BYTES + 100)
    parts = answered(plain, "UploadPart")
    client.write(large, data, color="green")
    assert answered(plain, "UploadPart") - parts >= 1
    with main.object("table/large").reader() as reader:
        assert reader.read() == data
    assert client.color(large) == "green"
    assert sorted(client.listed("main/table/")) == ["day=1/", "large"]

    older = main.commit("with large").get_commit().id
    client.copy(small, "main/table/b")
    client.delete(large)
    client.write(small, b"changed", color="red")
    assert sorted(client.listed("main/table/")) == ["b", "day=1/"]
    assert client.read("main/table/b") == b"0123456789"
    assert client.read(f"{older}/table/day=1/a") == b"0123456789"
    assert sorted(client.listed(f"{older}/table/")) == ["day=1/", "large"]

    lake.tag("v1").create(main.commit("without large").get_commit().id)
    assert client.read("v1/table/day=1/a") == b"changed"
    with pytest.raises(REFUSALS) as refused:
        client.write("v1/table/day=1/a", b"changed", color="red")
    assert "'v1' is a tag or a commit, which never changes: write to a branch" in str(refused.value)
    run_id = expire_older(http, lake)
    with pytest.raises(REFUSALS) as refused:
        client.read(f"{older}/table/large")
    said = f"commit {older} has expired: collector run {run_id} deleted its data"
    # pyarrow does not read what an answer to GET says about an error.
    assert ("HTTP status 410" if isinstance(client, Pyarrow) else said) in str(refused.value)


@pytest.mark.drawn("clients of S3")
def test_hadoop_renames(hadoop: Hadoop, plain: Server, lake: lakefs.Repository) -> None:
    """It copies what it renames on the server, a large file in parts."""
    files = {"a": b"small", "large": random.Random(2).randbytes(2 * PART_BYTES + 100)}
    for name, data in files.items():
        hadoop.write(f"main/old/{name}", data, color="blue")
    counts = {name: answered(plain, name) for name in ("CopyObject", "UploadPartCopy")}
    assert hadoop.rename("main/old", "main/new")
    assert all(answered(plain, name) > counts[name] for name in counts)
    assert hadoop.listed("main/") == ["new/"]
    assert {name: hadoop.read(f"main/new/{name}") for name in files} == files
    assert hadoop.color("main/new/a") == "blue"
    lake.branch("main").commit("renamed")
    assert sorted(hadoop.listed("main/new/")) == ["a", "large"]


def test_the_transfer_manager_of_boto3(plain: Server, lake: lakefs.Repository) -> None:
    """It sends parts in several threads, with checksums in trailers."""
    s3 = Page(plain, lake.id).run("boto3.client(")["s3"]
    data, got = random.Random(1).randbytes(2 * PART_BYTES + 100), io.BytesIO()
    config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES)
    s3.upload_fileobj(io.BytesIO(data), lake.id, "main/a", Config=config)
    s3.copy({"Bucket": lake.id, "Key": "main/a"}, lake.id, "main/b", Config=config)
    s3.download_fileobj(lake.id, "main/b", got, Config=config)
    assert got.getvalue() == data


@pytest.mark.drawn("clients of S3")
def test_s3cmd_sends_what_has_changed(
    plain: Server, lake: lakefs.Repository, tmp_path: Path
) -> None:
    """By the MD5 in the listing, or in the metadata of an upload in parts."""
    s3cmd = S3cmd(Page(plain, lake.id), tmp_path)
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "a").write_bytes(b"12345")
    (directory / "b").write_bytes(b"1")
    (directory / "large").write_bytes(bytes(PART_BYTES + 1))

    def sent() -> set[str]:
        printed = s3cmd.run("sync", f"{directory}/", f"{s3cmd.root}main/")
        return set(re.findall(r"^upload: '.*?/directory/(\w+)'", printed, re.M))

    assert sent() == {"a", "b", "large"}
    assert sent() == set()
    (directory / "a").write_bytes(b"54321")
    assert sent() == {"a"}


@pytest.mark.drawn("clients of S3")
def test_the_commands_of_the_page(plain: Server, lake: lakefs.Repository, tmp_path: Path) -> None:
    """As they stand, and the URL that `aws s3 presign` makes after what the page says."""
    page = Page(plain, lake.id)
    aws = Aws(page, tmp_path)
    (tmp_path / "data.csv").write_text("1,2")
    path = f"{Path(aws.program).parent}:{os.environ['PATH']}"
    set_up = "aws configure set default.s3.signature_version s3v4"
    assert set_up in PAGE.read_text()
    commands = f"""{page.snippet("sh", "aws")}
{set_up}
aws --endpoint-url {page.url} s3 presign {aws.root}main/data.csv"""
    done = Program(
        ["bash", "-ec", f"cd '{tmp_path}'; {commands}"], **aws.environment | {"PATH": path}
    )()
    listed, url = done.decode().splitlines()[-2:]
    assert listed.split()[-2:] == ["3", "data.csv"]
    assert lake.branch("main").object("data.csv").stat().size_bytes == 3
    assert httpx.get(url, verify=False).text == "1,2"

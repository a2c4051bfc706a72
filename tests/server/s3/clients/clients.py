"""Clients of S3 that read and write files, each with the same few methods.

Paths are `REF/PATH` in one repository. Clients for tables have tests of their own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.fs
import s3fs
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests.server.s3.clients.page import Page
from tests.support.requirements import require_or_skip

PART_BYTES: Final = 5 * 2**20
"""The smallest part that these clients make."""
LIMIT_SECONDS: Final = 120
Found = tuple[list[str], list[str]]
"""Names of the files and directories directly below a prefix, in order."""


class Refused(Exception):
    """What a client shows when the server refuses."""


class S3Files(Protocol):
    """One client, as the page sets it up."""

    def write(self, path: str, data: bytes, color: str) -> None:
        """Writes a file at once, with `color` in its metadata. Raises Refused."""

    def write_parts(self, path: str, data: bytes) -> None:
        """Writes a file in parts of `PART_BYTES`."""

    def read(self, path: str) -> bytes:
        """The whole file. Raises Refused."""

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """Some bytes of a file."""

    def color(self, path: str) -> str:
        """What the metadata says."""

    def listed(self, prefix: str) -> Found:
        """What is directly below a prefix that ends with a slash."""

    def copy(self, source: str, target: str) -> None:
        """Copies a file on the server."""

    def delete(self, path: str) -> None:
        """Deletes a file."""


class Boto3:
    """boto3."""

    def __init__(self, page: Page, directory: Path) -> None:
        del directory
        self.s3 = page.run("boto3.client(")["s3"]
        self.bucket = page.bucket

    def write(self, path: str, data: bytes, color: str) -> None:
        try:
            self.s3.put_object(Bucket=self.bucket, Key=path, Body=data, Metadata={"color": color})
        except ClientError as error:
            raise Refused(str(error)) from error

    def write_parts(self, path: str, data: bytes) -> None:
        config = TransferConfig(multipart_threshold=1, multipart_chunksize=PART_BYTES)
        self.s3.upload_fileobj(io.BytesIO(data), self.bucket, path, Config=config)

    def read(self, path: str) -> bytes:
        try:
            return bytes(self.s3.get_object(Bucket=self.bucket, Key=path)["Body"].read())
        except ClientError as error:
            raise Refused(str(error)) from error

    def read_range(self, path: str, start: int, count: int) -> bytes:
        wanted = f"bytes={start}-{start + count - 1}"
        found = self.s3.get_object(Bucket=self.bucket, Key=path, Range=wanted)
        return bytes(found["Body"].read())

    def color(self, path: str) -> str:
        return str(self.s3.head_object(Bucket=self.bucket, Key=path)["Metadata"]["color"])

    def listed(self, prefix: str) -> Found:
        found = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
        return (
            [each["Key"].removeprefix(prefix) for each in found.get("Contents", ())],
            [each["Prefix"].removeprefix(prefix) for each in found.get("CommonPrefixes", ())],
        )

    def copy(self, source: str, target: str) -> None:
        self.s3.copy_object(
            Bucket=self.bucket, Key=target, CopySource={"Bucket": self.bucket, "Key": source}
        )

    def delete(self, path: str) -> None:
        self.s3.delete_object(Bucket=self.bucket, Key=path)


class Program:
    """A program in a process of its own, with no settings but these."""

    def __init__(self, program: Sequence[str], **environment: str) -> None:
        self._program = program
        self._environment = {"PATH": os.environ["PATH"]} | environment
        self.warned = ""
        """What the last call printed to stderr."""

    def __call__(self, *arguments: str, data: bytes = b"") -> bytes:
        """What it prints. Raises Refused with what it says about a failure."""
        done = subprocess.run(
            [*self._program, *arguments],
            env=self._environment,
            input=data,
            capture_output=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        if done.returncode:
            raise Refused(done.stderr.decode())
        self.warned = done.stderr.decode()
        return done.stdout


@cache
def found_aws() -> str | None:
    """The first `aws` on the path that runs: another may be a shim that does not."""
    for directory in os.get_exec_path():
        program = shutil.which("aws", path=directory)
        if program and not subprocess.run([program, "--version"], capture_output=True).returncode:
            return program
    return None


class Aws:
    """AWS's command line."""

    def __init__(self, page: Page, directory: Path) -> None:
        program = found_aws()
        if program is None:
            require_or_skip("aws", "no aws on PATH that runs")
        configuration = directory / "aws.ini"
        configuration.write_text(
            f"[default]\ns3 =\n  multipart_threshold = {PART_BYTES}\n"
            f"  multipart_chunksize = {PART_BYTES}\n"
        )
        self.page = page
        self.directory = directory
        self.environment = {
            "HOME": str(directory),
            "AWS_CONFIG_FILE": str(configuration),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": page.key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": page.key.secret,
        }
        self.program = program
        self.run = Program([program, "--endpoint-url", page.url], **self.environment)

    def _api(self, operation: str, path: str, *more: str) -> Any:
        where = ("--bucket", self.page.bucket, "--key", path)
        return json.loads(self.run("s3api", operation, *where, "--output", "json", *more))

    def url(self, path: str) -> str:
        """As `aws s3` names a file."""
        return f"s3://{self.page.bucket}/{path}"

    def write(self, path: str, data: bytes, color: str) -> None:
        self.run("s3", "cp", "--metadata", f"color={color}", "-", self.url(path), data=data)

    def write_parts(self, path: str, data: bytes) -> None:
        file = self.directory / "large"
        file.write_bytes(data)
        self.run("s3", "cp", str(file), self.url(path))

    def read(self, path: str) -> bytes:
        return self.run("s3", "cp", self.url(path), "-")

    def read_range(self, path: str, start: int, count: int) -> bytes:
        file = self.directory / "range"
        self._api("get-object", path, "--range", f"bytes={start}-{start + count - 1}", str(file))
        return file.read_bytes()

    def color(self, path: str) -> str:
        return str(self._api("head-object", path)["Metadata"]["color"])

    def listed(self, prefix: str) -> Found:
        words = [
            line.split() for line in self.run("s3", "ls", self.url(prefix)).decode().splitlines()
        ]
        return (
            [each[-1] for each in words if each[0] != "PRE"],
            [each[-1] for each in words if each[0] == "PRE"],
        )

    def copy(self, source: str, target: str) -> None:
        self.run("s3", "cp", self.url(source), self.url(target))

    def delete(self, path: str) -> None:
        self.run("s3", "rm", self.url(path))


class Rclone:
    """rclone."""

    def __init__(self, page: Page, directory: Path) -> None:
        if shutil.which("rclone") is None:
            require_or_skip("rclone", "no rclone on PATH")
        configuration = directory / "rclone.conf"
        configuration.write_text(page.snippet("ini", "[ebbtide]"))
        self.bucket = page.bucket
        self.directory = directory
        size = str(PART_BYTES)
        options = ("--retries=1", f"--s3-upload-cutoff={size}B", f"--s3-chunk-size={size}B")
        self.run = Program(
            ["rclone", *options], HOME=str(directory), RCLONE_CONFIG=str(configuration)
        )

    def _place(self, path: str) -> str:
        return f"ebbtide:{self.bucket}/{path}"

    def write(self, path: str, data: bytes, color: str) -> None:
        file = self.directory / "small"
        file.write_bytes(data)
        color = f"color={color}"
        self.run("copyto", "--metadata", "--metadata-set", color, str(file), self._place(path))

    def write_parts(self, path: str, data: bytes) -> None:
        file = self.directory / "large"
        file.write_bytes(data)
        self.run("copyto", str(file), self._place(path))

    def read(self, path: str) -> bytes:
        return self.run("cat", self._place(path))

    def read_range(self, path: str, start: int, count: int) -> bytes:
        return self.run("cat", f"--offset={start}", f"--count={count}", self._place(path))

    def color(self, path: str) -> str:
        (found,) = json.loads(self.run("lsjson", "--metadata", self._place(path)))
        return str(found["Metadata"]["color"])

    def listed(self, prefix: str) -> Found:
        lines = self.run("lsf", self._place(prefix)).decode().splitlines()
        return (
            [line for line in lines if not line.endswith("/")],
            [line for line in lines if line.endswith("/")],
        )

    def copy(self, source: str, target: str) -> None:
        self.run("copyto", self._place(source), self._place(target))

    def delete(self, path: str) -> None:
        self.run("deletefile", self._place(path))


class S3cmd:
    """s3cmd. It compares the MD5 of what it sent or got with the ETag, and warns."""

    def __init__(self, page: Page, directory: Path) -> None:
        if shutil.which("s3cmd") is None:
            require_or_skip("s3cmd", "no s3cmd on PATH")
        configuration = directory / "s3cfg"
        configuration.write_text(page.snippet("ini", "host_base"))
        self.bucket = page.bucket
        self.directory = directory
        # `--multipart-chunk-size-mb` of s3cmd counts MiB.
        size = f"--multipart-chunk-size-mb={PART_BYTES // 2**20}"
        options = ("--config", str(configuration), "--no-progress", size)
        self.program = Program(["s3cmd", *options], HOME=str(directory))

    def run(self, *arguments: str) -> str:
        """What it prints. A warning fails the test."""
        printed = self.program(*arguments).decode()
        assert "WARNING" not in self.program.warned, self.program.warned
        return printed

    def url(self, path: str) -> str:
        """As s3cmd names a file."""
        return f"s3://{self.bucket}/{path}"

    def write(self, path: str, data: bytes, color: str) -> None:
        file = self.directory / "small"
        file.write_bytes(data)
        self.run("put", f"--add-header=x-amz-meta-color:{color}", str(file), self.url(path))

    def write_parts(self, path: str, data: bytes) -> None:
        file = self.directory / "large"
        file.write_bytes(data)
        self.run("put", str(file), self.url(path))

    def read(self, path: str) -> bytes:
        file = self.directory / "read"
        self.run("get", "--force", self.url(path), str(file))
        return file.read_bytes()

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """It reads ranges to continue a download alone."""
        file = self.directory / "part"
        file.write_bytes(self.read(path)[:start])
        self.run("get", "--continue", self.url(path), str(file))
        return file.read_bytes()[start : start + count]

    def color(self, path: str) -> str:
        lines = self.run("info", self.url(path)).splitlines()
        (found,) = (line for line in lines if "x-amz-meta-color" in line)
        return found.rpartition(": ")[2]

    def listed(self, prefix: str) -> Found:
        words = [line.split() for line in self.run("ls", self.url(prefix)).splitlines()]
        names = {each[-1].removeprefix(self.url(prefix)): each[0] for each in words}
        return (
            [name for name in names if names[name] != "DIR"],
            [name for name in names if names[name] == "DIR"],
        )

    def copy(self, source: str, target: str) -> None:
        self.run("cp", self.url(source), self.url(target))

    def delete(self, path: str) -> None:
        self.run("del", self.url(path))


class S3fs:
    """s3fs, of fsspec."""

    def __init__(self, page: Page, directory: Path) -> None:
        del directory
        self.fs = page.run("s3fs.S3FileSystem(", s3fs=s3fs)["fs"]
        self.bucket = page.bucket

    def write(self, path: str, data: bytes, color: str) -> None:
        try:
            self.fs.pipe_file(f"{self.bucket}/{path}", data, Metadata={"color": color})
        except OSError as error:
            raise Refused(str(error)) from error

    def write_parts(self, path: str, data: bytes) -> None:
        with self.fs.open(f"{self.bucket}/{path}", "wb", block_size=PART_BYTES) as file:
            file.write(data)

    def read(self, path: str) -> bytes:
        try:
            return bytes(self.fs.cat_file(f"{self.bucket}/{path}"))
        except OSError as error:
            raise Refused(str(error)) from error

    def read_range(self, path: str, start: int, count: int) -> bytes:
        return bytes(self.fs.cat_file(f"{self.bucket}/{path}", start=start, end=start + count))

    def color(self, path: str) -> str:
        return str(self.fs.metadata(f"{self.bucket}/{path}", refresh=True)["color"])

    def listed(self, prefix: str) -> Found:
        entries = self.fs.ls(f"{self.bucket}/{prefix}", detail=True, refresh=True)
        names = {entry["name"].rpartition("/")[2]: entry["type"] for entry in entries}
        return (
            sorted(name for name in names if names[name] == "file"),
            sorted(f"{name}/" for name in names if names[name] == "directory"),
        )

    def copy(self, source: str, target: str) -> None:
        self.fs.copy(f"{self.bucket}/{source}", f"{self.bucket}/{target}")

    def delete(self, path: str) -> None:
        self.fs.rm_file(f"{self.bucket}/{path}")


class Pyarrow:
    """pyarrow's own client. Of metadata it writes the content type and other headers alone."""

    def __init__(self, page: Page, directory: Path) -> None:
        del directory
        self.fs = page.run("pyarrow.fs.S3FileSystem(", pyarrow=pyarrow)["fs"]
        self.bucket = page.bucket

    def write(self, path: str, data: bytes, color: str) -> None:
        metadata = {"Content-Type": f"text/{color}"}
        try:
            with self.fs.open_output_stream(f"{self.bucket}/{path}", metadata=metadata) as stream:
                stream.write(data)
        except OSError as error:
            raise Refused(str(error)) from error

    def write_parts(self, path: str, data: bytes) -> None:
        with self.fs.open_output_stream(f"{self.bucket}/{path}") as stream:
            stream.write(data)

    def read(self, path: str) -> bytes:
        try:
            with self.fs.open_input_stream(f"{self.bucket}/{path}") as stream:
                return bytes(stream.read())
        except OSError as error:
            raise Refused(str(error)) from error

    def read_range(self, path: str, start: int, count: int) -> bytes:
        with self.fs.open_input_file(f"{self.bucket}/{path}") as file:
            return bytes(file.read_at(count, start))

    def color(self, path: str) -> str:
        with self.fs.open_input_stream(f"{self.bucket}/{path}") as stream:
            kind: bytes = stream.metadata()["Content-Type"]
        return kind.decode().removeprefix("text/")

    def listed(self, prefix: str) -> Found:
        selected = pyarrow.fs.FileSelector(f"{self.bucket}/{prefix.rstrip('/')}")
        found = {each.base_name: each.is_file for each in self.fs.get_file_info(selected)}
        return (
            sorted(name for name in found if found[name]),
            sorted(f"{name}/" for name in found if not found[name]),
        )

    def copy(self, source: str, target: str) -> None:
        self.fs.copy_file(f"{self.bucket}/{source}", f"{self.bucket}/{target}")

    def delete(self, path: str) -> None:
        self.fs.delete_file(f"{self.bucket}/{path}")

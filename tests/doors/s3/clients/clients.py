"""Clients of S3 beside boto3 that read and write files, each with the same few methods. `write`
sends `color` in the metadata, and `listed` ends the names of directories with a slash.

Paths are `REF/PATH` in one repository. Clients for tables have tests of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow.fs
import s3fs
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from tests.doors.s3.clients.page import Page
from tests.support.requirements import require_or_skip

PART_BYTES: Final = 5 * 2**20
"""The smallest part that these clients make."""
LIMIT_SECONDS: Final = 120


class Refused(Exception):
    """What a program shows when the server refuses."""


REFUSALS: Final = (Refused, OSError, Py4JJavaError)


class Program:
    """A program in a process of its own, with no settings but these."""

    def __init__(self, program: Sequence[str], **environment: str) -> None:
        self._program = program
        self._environment = {"PATH": os.environ["PATH"]} | environment
        self.warned = ""
        """What the last call printed to stderr."""

    def __call__(self, *arguments: str) -> bytes:
        """What it prints. Raises Refused with what it says about a failure."""
        done = subprocess.run(
            [*self._program, *arguments],
            env=self._environment,
            capture_output=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        self.warned = done.stderr.decode()
        if done.returncode:
            raise Refused(self.warned)
        return done.stdout


class OfFiles:
    """A program that sends and gets the files of a directory. `root` is before each path."""

    def __init__(self, directory: Path, root: str, configuration: str) -> None:
        self.directory = directory
        self.root = root
        self.configuration = self.file("configuration", configuration.encode())

    def file(self, name: str, data: bytes = b"") -> str:
        """The path of a file that is to be sent, or that takes what is got."""
        (self.directory / name).write_bytes(data)
        return str(self.directory / name)

    def got(self, name: str) -> bytes:
        """The content of such a file."""
        return (self.directory / name).read_bytes()


@cache
def found_aws() -> str | None:
    """The first `aws` on the path that runs: another may be a shim that does not."""
    for directory in os.get_exec_path():
        program = shutil.which("aws", path=directory)
        if program and not subprocess.run([program, "--version"], capture_output=True).returncode:
            return program
    return None


class Aws(OfFiles):
    def __init__(self, page: Page, directory: Path) -> None:
        program = found_aws()
        if program is None:
            require_or_skip("aws", "no aws on PATH that runs")
        configuration = (
            f"[default]\ns3 =\n  multipart_threshold = {PART_BYTES}\n"
            f"  multipart_chunksize = {PART_BYTES}\n"
        )
        super().__init__(directory, f"s3://{page.bucket}/", configuration)
        self.bucket = page.bucket
        self.environment = {
            "HOME": str(directory),
            "AWS_CONFIG_FILE": self.configuration,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": page.key.access_key_id,
            "AWS_SECRET_ACCESS_KEY": page.key.secret,
        }
        self.program = program
        self.run = Program([program, "--endpoint-url", page.url], **self.environment)

    def _api(self, operation: str, path: str, *more: str) -> Any:
        where = ("--bucket", self.bucket, "--key", path)
        return json.loads(self.run("s3api", operation, *where, "--output", "json", *more))

    def write(self, path: str, data: bytes, color: str) -> None:
        file = self.file("sent", data)
        self.run("s3", "cp", "--metadata", f"color={color}", file, self.root + path)

    def read(self, path: str) -> bytes:
        return self.run("s3", "cp", self.root + path, "-")

    def read_range(self, path: str, start: int, count: int) -> bytes:
        wanted = f"bytes={start}-{start + count - 1}"
        self._api("get-object", path, "--range", wanted, self.file("got"))
        return self.got("got")

    def color(self, path: str) -> str:
        return str(self._api("head-object", path)["Metadata"]["color"])

    def listed(self, prefix: str) -> list[str]:
        lines = self.run("s3", "ls", self.root + prefix).decode().splitlines()
        return [line.split()[-1] for line in lines]

    def copy(self, source: str, target: str) -> None:
        self.run("s3", "cp", self.root + source, self.root + target)

    def delete(self, path: str) -> None:
        self.run("s3", "rm", self.root + path)


class Rclone(OfFiles):
    def __init__(self, page: Page, directory: Path) -> None:
        if shutil.which("rclone") is None:
            require_or_skip("rclone", "no rclone on PATH")
        super().__init__(directory, f"ebbtide:{page.bucket}/", page.snippet("ini", "[ebbtide]"))
        sizes = (f"--s3-upload-cutoff={PART_BYTES}B", f"--s3-chunk-size={PART_BYTES}B")
        self.run = Program(
            ["rclone", "--retries=1", *sizes],
            HOME=str(directory),
            RCLONE_CONFIG=self.configuration,
        )

    def write(self, path: str, data: bytes, color: str) -> None:
        metadata = ("--metadata", "--metadata-set", f"color={color}")
        self.run("copyto", *metadata, self.file("sent", data), self.root + path)

    def read(self, path: str) -> bytes:
        return self.run("cat", self.root + path)

    def read_range(self, path: str, start: int, count: int) -> bytes:
        return self.run("cat", f"--offset={start}", f"--count={count}", self.root + path)

    def color(self, path: str) -> str:
        (found,) = json.loads(self.run("lsjson", "--metadata", self.root + path))
        return str(found["Metadata"]["color"])

    def listed(self, prefix: str) -> list[str]:
        return self.run("lsf", self.root + prefix).decode().splitlines()

    def copy(self, source: str, target: str) -> None:
        self.run("copyto", self.root + source, self.root + target)

    def delete(self, path: str) -> None:
        self.run("deletefile", self.root + path)


class S3cmd(OfFiles):
    """s3cmd. It compares the MD5 of what it sent or got with the ETag, and warns."""

    def __init__(self, page: Page, directory: Path) -> None:
        if shutil.which("s3cmd") is None:
            require_or_skip("s3cmd", "no s3cmd on PATH")
        super().__init__(directory, f"s3://{page.bucket}/", page.snippet("ini", "host_base"))
        # `--multipart-chunk-size-mb` of s3cmd counts MiB.
        size = f"--multipart-chunk-size-mb={PART_BYTES // 2**20}"
        options = ("--config", self.configuration, "--no-progress", size)
        self.program = Program(["s3cmd", *options], HOME=str(directory))

    def run(self, *arguments: str) -> str:
        """What it prints. A warning fails the test."""
        printed = self.program(*arguments).decode()
        assert "WARNING" not in self.program.warned, self.program.warned
        return printed

    def write(self, path: str, data: bytes, color: str) -> None:
        header = f"--add-header=x-amz-meta-color:{color}"
        self.run("put", header, self.file("sent", data), self.root + path)

    def read(self, path: str) -> bytes:
        self.run("get", "--force", self.root + path, self.file("got"))
        return self.got("got")

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """It reads ranges to continue a download alone."""
        part = self.file("part", self.read(path)[:start])
        self.run("get", "--continue", self.root + path, part)
        return self.got("part")[start : start + count]

    def color(self, path: str) -> str:
        lines = self.run("info", self.root + path).splitlines()
        (found,) = (line for line in lines if "x-amz-meta-color" in line)
        return found.rpartition(": ")[2]

    def listed(self, prefix: str) -> list[str]:
        lines = self.run("ls", self.root + prefix).splitlines()
        return [line.split()[-1].removeprefix(self.root + prefix) for line in lines]

    def copy(self, source: str, target: str) -> None:
        self.run("cp", self.root + source, self.root + target)

    def delete(self, path: str) -> None:
        self.run("del", self.root + path)


class S3fs:
    def __init__(self, page: Page, _directory: Path) -> None:
        self.fs = page.run("s3fs.S3FileSystem(", s3fs=s3fs)["fs"]
        self.root = f"{page.bucket}/"

    def write(self, path: str, data: bytes, color: str) -> None:
        more = {"block_size": PART_BYTES, "Metadata": {"color": color}}
        with self.fs.open(self.root + path, "wb", **more) as file:
            file.write(data)

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(self.root + path))

    def read_range(self, path: str, start: int, count: int) -> bytes:
        return bytes(self.fs.cat_file(self.root + path, start=start, end=start + count))

    def color(self, path: str) -> str:
        return str(self.fs.metadata(self.root + path, refresh=True)["color"])

    def listed(self, prefix: str) -> list[str]:
        entries = self.fs.ls(self.root + prefix, detail=True, refresh=True)
        ends = {"file": "", "directory": "/"}
        return [entry["name"].rpartition("/")[2] + ends[entry["type"]] for entry in entries]

    def copy(self, source: str, target: str) -> None:
        self.fs.copy(self.root + source, self.root + target)

    def delete(self, path: str) -> None:
        self.fs.rm_file(self.root + path)


class Pyarrow:
    """pyarrow's own client. Of metadata it writes the content type and other headers alone."""

    def __init__(self, page: Page, _directory: Path) -> None:
        self.fs = page.run("pyarrow.fs.S3FileSystem(", pyarrow=pyarrow)["fs"]
        self.root = f"{page.bucket}/"

    def write(self, path: str, data: bytes, color: str) -> None:
        metadata = {"Content-Type": f"text/{color}"}
        with self.fs.open_output_stream(self.root + path, metadata=metadata) as stream:
            stream.write(data)

    def read(self, path: str) -> bytes:
        with self.fs.open_input_stream(self.root + path) as stream:
            return bytes(stream.read())

    def read_range(self, path: str, start: int, count: int) -> bytes:
        with self.fs.open_input_file(self.root + path) as file:
            return bytes(file.read_at(count, start))

    def color(self, path: str) -> str:
        with self.fs.open_input_stream(self.root + path) as stream:
            kind: bytes = stream.metadata()["Content-Type"]
        return kind.decode().removeprefix("text/")

    def listed(self, prefix: str) -> list[str]:
        selected = pyarrow.fs.FileSelector(self.root + prefix.rstrip("/"))
        found = self.fs.get_file_info(selected)
        return [each.base_name + ("" if each.is_file else "/") for each in found]

    def copy(self, source: str, target: str) -> None:
        self.fs.copy_file(self.root + source, self.root + target)

    def delete(self, path: str) -> None:
        self.fs.delete_file(self.root + path)


S3Files = Aws | Rclone | S3cmd | S3fs | Pyarrow

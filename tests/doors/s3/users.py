"""Clients of S3 that work beside those of `tests.support.load`: each reads back what it wrote."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from botocore.exceptions import ClientError

from tests.doors.s3.conftest import Client
from tests.support.load import NAMES, RETRIES, WORK, Progress

BUCKET: Final = "lake"
BRANCHES: Final = WORK[:2]
"""Others commit to them, and nobody merges into them."""


@dataclass
class S3User:
    """One client, which alone writes to the keys with its number."""

    number: int
    s3: Client
    progress: Progress
    rng: random.Random
    held: dict[str, bytes] = field(default_factory=dict)
    open: list[tuple[dict[str, str], dict[int, tuple[str, bytes]]]] = field(default_factory=list)
    """Uploads in parts: where each goes, and ETag and bytes of each part."""

    def work(self) -> None:
        acts = [self.put, self.begin, self.read] * 2 + [self.part] * 6 + [self.complete] * 3
        acts += [self.abort, self.copy, self.delete, self.list]
        for act in (self.begin, self.part, self.complete):
            act()
        while not self.progress.over:
            self.rng.choice(acts)()

    def key(self) -> str:
        return f"{self.rng.choice(BRANCHES)}/s{self.number}/{self.rng.choice(NAMES)}"

    def data(self) -> bytes:
        size = self.rng.choice([0, 10, 1000, 70_000, 1_200_000])
        return self.rng.randbytes(10) + bytes(size)

    def put(self) -> None:
        key, data = self.key(), self.data()
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        self.held[key] = data

    def begin(self) -> None:
        key = self.key()
        made = self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)
        self.open.append(({"Bucket": BUCKET, "Key": key, "UploadId": made["UploadId"]}, {}))

    def part(self) -> None:
        if self.open:
            where, parts = self.rng.choice(self.open)
            number, data = self.rng.randint(1, 4), self.data()
            sent = self.s3.upload_part(**where, PartNumber=number, Body=data)
            parts[number] = (sent["ETag"], data)

    def complete(self) -> None:
        ready = [each for each in self.open if each[1]]
        if ready:
            where, parts = chosen = self.rng.choice(ready)
            self.open.remove(chosen)
            listed = [{"PartNumber": number, "ETag": parts[number][0]} for number in sorted(parts)]
            self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
            self.held[where["Key"]] = b"".join(parts[number][1] for number in sorted(parts))

    def abort(self) -> None:
        if self.open:
            where, _ = self.open.pop()
            self.s3.abort_multipart_upload(**where)

    def copy(self) -> None:
        if not self.held:
            return
        source, target = self.rng.choice(sorted(self.held)), self.key()
        if source != target:
            copied = {"Bucket": BUCKET, "Key": target, "CopySource": f"{BUCKET}/{source}"}
            self._again(lambda: self.s3.copy_object(**copied))
            self.held[target] = self.held[source]

    def delete(self) -> None:
        key = self.key()
        self.s3.delete_object(Bucket=BUCKET, Key=key)
        self.held.pop(key, None)

    def read(self) -> None:
        self.check(self.key())

    def check(self, key: str) -> None:
        if key in self.held:
            got = self._again(lambda: self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            assert got == self.held[key], key

    def list(self) -> None:
        for branch in BRANCHES:
            prefix = f"{branch}/s{self.number}/"
            found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
            assert {each["Key"]: each["Size"] for each in found} == {
                key: len(data) for key, data in self.held.items() if key.startswith(prefix)
            }

    def finish(self) -> None:
        """Aborts what is open, and reads everything back."""
        while self.open:
            self.abort()
        self.list()
        for key in self.held:
            self.check(key)

    def _again(self, ask: Any) -> Any:
        """A branch may move on so fast that its commit expires before it was read."""
        for _ in range(RETRIES):
            try:
                return ask()
            except ClientError as error:
                assert error.response["Error"]["Code"] == "CommitExpired", error
        raise AssertionError("it is never there")

"""A bucket with versions on the S3 server of the tests. Not for the server itself (`ceph`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide.ids import new_id
from tests.support.ceph import connect as connect

NEVER: Final = ""
"""The status of a bucket whose versioning was never set."""


@dataclass
class VersionedBucket:
    """A bucket of one test. The environment has the server's endpoint and credentials."""

    name: str = field(default_factory=lambda: f"versions-{new_id()}")
    client: Any = field(default_factory=connect)

    @classmethod
    def made(cls, status: str = "Enabled") -> VersionedBucket:
        bucket = cls()
        bucket.client.create_bucket(Bucket=bucket.name)
        if status != NEVER:
            bucket.set(status)
        return bucket

    @classmethod
    def with_lock(cls, mode: str | None = "GOVERNANCE", **period: int) -> VersionedBucket:
        """Makes a bucket with object lock, by default for `period`, as `Days=1`."""
        bucket = cls()
        bucket.client.create_bucket(Bucket=bucket.name, ObjectLockEnabledForBucket=True)
        if mode is not None:
            bucket.lock_by_default(mode, **period)
        return bucket

    def lock_by_default(self, mode: str, **period: int) -> None:
        """Sets the default: each version that is written from now on is locked."""
        rule = {"DefaultRetention": {"Mode": mode, **period}}
        self.client.put_object_lock_configuration(
            Bucket=self.name,
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule},
        )

    def hold(self, status: str) -> None:
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=self.name):
            for each in page.get("Versions", ()):
                self.client.put_object_legal_hold(
                    Bucket=self.name,
                    Key=each["Key"],
                    VersionId=each["VersionId"],
                    LegalHold={"Status": status},
                )

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def set(self, status: str) -> None:
        self.client.put_bucket_versioning(
            Bucket=self.name, VersioningConfiguration={"Status": status}
        )

    def left(self, prefix: str = "") -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        pages = self.client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=self.name, Prefix=prefix):
            for place, name in enumerate(("Versions", "DeleteMarkers")):
                for each in page.get(name, ()):
                    counts = list(found.get(each["Key"], (0, 0)))
                    counts[place] += 1
                    found[each["Key"]] = (counts[0], counts[1])
        return found

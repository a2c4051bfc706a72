"""Detects repositories at the root of a bucket whose keys begin with a slash.

Icechunk before 2.1 wrote `/repo` in place of `repo` if it was given a bucket of S3 without a
prefix. obstore cannot name such keys. Not for: any other storage.
Source: Icechunk 2.3, `KeyLayout` in `icechunk-s3/src/lib.rs`; its issue 2239.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ebbtide.errors import Refused
from ebbtide.storage import RemoteStorage, Storage
from ebbtide.storage.keys import Bucket

_SCHEME: Final = "s3://"


def check_clean(storage: Storage, anchors: Sequence[str]) -> None:
    """Raises Refused `repository_rooted` if one of `anchors` exists with a slash before it.

    `anchors` are addresses that only a repository has. Asks the storage only if it is a whole
    bucket of S3.
    """
    bucket = storage.url.removeprefix(_SCHEME)
    if not isinstance(storage, RemoteStorage) or bucket == storage.url or "/" in bucket:
        return
    for anchor in anchors:
        key = f"/{anchor}"
        page = next(Bucket(bucket, storage.effective_options()).list_keys(key))
        if key in (found for found, _, _ in page.objects):
            raise Refused(
                "repository_rooted",
                f"{storage.url} has an Icechunk repository whose keys begin with a slash ({key}), "
                "as Icechunk before 2.1 wrote them without a prefix: this program cannot read "
                "them. Stop the writers, copy each of these objects to a prefix, such as "
                f"/chunks/ID to data/chunks/ID, and use the copy: icechunk:{storage.url}/data",
            )

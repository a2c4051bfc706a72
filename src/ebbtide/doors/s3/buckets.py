"""Operations on buckets, which are repositories, and lists of their keys.

Buckets are made and deleted by the API alone.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from ebbtide.doors.s3.call import InThread, S3Call, answer, decoded, key_of, operation, split_key
from ebbtide.doors.s3.errors import Markup, S3Error, date_text, element, key_text, root
from ebbtide.doors.s3.object_headers import quoted
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.etags import etag_of
from ebbtide.store.repository import Repository

REGION: Final = "us-east-1"
"""The region that clients are told. They may sign for any other."""
OWNER: Final = "ebbtide"


@operation("ListBuckets", Role.NONE, "service", "GET")
@InThread
def list_buckets(call: S3Call) -> Response:
    """Lists the repositories that the key may read."""
    readable = call.rights.readable_ids
    buckets = [
        element(
            "Bucket",
            element("Name", each.info.name),
            element("CreationDate", date_text(each.info.created_at)),
        )
        for each in call.store.catalog.list()
        if readable is None or each.info.repository_id in readable
    ]
    return answer(root("ListAllMyBucketsResult", owner_element(), element("Buckets", *buckets)))


@operation("HeadBucket", Role.READER, "bucket", "HEAD")
@InThread
def head_bucket(call: S3Call) -> Response:
    """Says whether there is a repository."""
    call.repository()
    return Response(headers={"x-amz-bucket-region": REGION})


@operation("GetBucketLocation", Role.READER, "bucket", "GET", "location")
@InThread
def get_location(call: S3Call) -> Response:
    """Returns the region; an empty one means `us-east-1`."""
    call.repository()
    return answer(root("LocationConstraint"))


@operation("GetBucketVersioning", Role.READER, "bucket", "GET", "versioning")
@InThread
def get_versioning(call: S3Call) -> Response:
    """Returns that versions of single objects are not kept. Commits keep them."""
    call.repository()
    return answer(root("VersioningConfiguration"))


@operation("CreateBucket", Role.WRITER, "bucket", "PUT")
@InThread
def create_bucket(call: S3Call) -> Response:
    """Says that the bucket exists, to clients that make it before each upload."""
    call.repository()
    raise S3Error("BucketAlreadyOwnedByYou", f"the bucket {call.bucket} exists already")


def owner_element() -> Markup:
    """Returns the owner of everything."""
    return element("Owner", element("ID", OWNER), element("DisplayName", OWNER))


KEYS_MAX: Final = 1000
_BEFORE_IDS: Final = "!"
"""A text that sorts before every id."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The page that a request asks for: keys with `prefix` behind the key `after`."""

    prefix: str
    delimiter: str
    after: str
    amount: int
    is_encoded: bool

    @classmethod
    def of(cls, call: S3Call, after: str) -> Asked:
        """Reads the parameters that both versions of the request have. Raises S3Error."""
        encoding = call.query.get("encoding-type", "")
        if encoding not in ("", "url"):
            raise S3Error("InvalidArgument", "encoding-type is url")
        return cls(
            prefix=call.query.get("prefix", ""),
            delimiter=call.query.get("delimiter", ""),
            after=after,
            amount=min(call.number("max-keys", KEYS_MAX), KEYS_MAX),
            is_encoded=encoding == "url",
        )

    def text(self, key: str) -> str:
        """Returns a key as the answer has it."""
        return key_text(key, encoded=self.is_encoded)


@dataclass(frozen=True, slots=True)
class Listed:
    """A page: entries by key, prefixes, and the key after which the next page begins."""

    entries: Sequence[tuple[str, Entry]]
    prefixes: Sequence[str]
    next_after: str | None = None


@operation("ListObjects", Role.READER, "bucket", "GET")
@InThread
def list_objects(call: S3Call) -> Response:
    """Lists objects, by the first or the second version of the request."""
    kind = call.query.get("list-type", "1")
    if kind not in ("1", "2"):
        raise S3Error("InvalidArgument", "list-type is 2, or left out")
    return _second(call) if kind == "2" else _first(call)


def _first(call: S3Call) -> Response:
    marker = call.query.get("marker", "")
    asked = Asked.of(call, marker)
    page = page_of_keys(call.repository(), asked)
    more = [element("Marker", asked.text(marker))]
    if page.next_after is not None:
        more.append(element("NextMarker", asked.text(page.next_after)))
    return _answer(call, asked, page, more, with_owner=True)


def _second(call: S3Call) -> Response:
    token, start = call.query.get("continuation-token"), call.query.get("start-after", "")
    asked = Asked.of(call, start if token is None else _after_of(token))
    page = page_of_keys(call.repository(), asked)
    more = [element("KeyCount", len(page.entries) + len(page.prefixes))]
    if token is not None:
        more.append(element("ContinuationToken", token))
    if start:
        more.append(element("StartAfter", asked.text(start)))
    if page.next_after is not None:
        more.append(element("NextContinuationToken", _token_of(page.next_after)))
    with_owner = call.query.get("fetch-owner", "").lower() == "true"
    return _answer(call, asked, page, more, with_owner=with_owner)


def _answer(
    call: S3Call, asked: Asked, page: Listed, more: Sequence[Markup], *, with_owner: bool
) -> Response:
    optional = {
        "Delimiter": asked.text(asked.delimiter),
        "EncodingType": "url" if asked.is_encoded else "",
    }
    owner = (owner_element(),) if with_owner else ()
    contents = (
        element(
            "Contents",
            element("Key", asked.text(key)),
            element("LastModified", date_text(entry.mtime)),
            element("ETag", quoted(etag_of(entry))),
            element("Size", entry.size_bytes),
            element("StorageClass", "STANDARD"),
            *owner,
        )
        for key, entry in page.entries
    )
    prefixes = (
        element("CommonPrefixes", element("Prefix", asked.text(each))) for each in page.prefixes
    )
    return answer(
        root(
            "ListBucketResult",
            element("Name", call.bucket),
            element("Prefix", asked.text(asked.prefix)),
            element("MaxKeys", asked.amount),
            element("IsTruncated", "false" if page.next_after is None else "true"),
            *more,
            *(element(name, text) for name, text in optional.items() if text),
            *contents,
            *prefixes,
        )
    )


def page_of_keys(repository: Repository, asked: Asked) -> Listed:
    """Returns a page of keys. Without a slash in the prefix, the branches are its common prefixes.

    A ref that does not exist has no keys. Raises Gone `commit_expired`, S3Error.
    """
    ref, path = split_key(asked.prefix)
    if path is None:
        return _branches(repository, ref, asked)
    start = asked.prefix[: asked.prefix.index("/") + 1]
    if not asked.amount or (asked.after > start and not asked.after.startswith(start)):
        return Listed((), ())
    try:
        page = repository.objects.list(
            ref,
            prefix=path,
            delimiter=asked.delimiter,
            after=asked.after.removeprefix(start) if asked.after > start else "",
            amount=asked.amount,
        )
    except NotFound:
        return Listed((), ())
    except InvalidInput as error:
        # Such a ref cannot exist.
        if error.kind != "invalid_argument":
            raise
        return Listed((), ())
    return Listed(
        [(start + entry.path, entry) for entry in page.entries],
        [start + each for each in page.common_prefixes],
        None if page.next_after is None else start + page.next_after,
    )


def _branches(repository: Repository, prefix: str, asked: Asked) -> Listed:
    """Lists branches as common prefixes, sorted by their names."""
    if not asked.amount:
        return Listed((), ())
    name, path = split_key(asked.after)
    name, blank, _ = name.partition(" ")
    # The branch `main` has the prefix `main/`, which is behind the key `main`. No name has a blank.
    includes_name = path is None and name and not blank
    after = f"{name} {_BEFORE_IDS}" if includes_name else name
    found = repository.branches.page(prefix=prefix, after=after, amount=asked.amount + 1)
    keys = [key_of(each.name, "") for each in found[: asked.amount]]
    return Listed((), keys, keys[-1] if len(found) > asked.amount else None)


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _after_of(token: str) -> str:
    try:
        return decoded(base64.urlsafe_b64decode(token.encode()))
    except (binascii.Error, ValueError, InvalidInput):
        raise S3Error("InvalidArgument", "the continuation token is not valid") from None

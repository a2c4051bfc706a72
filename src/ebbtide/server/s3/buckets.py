"""Operations on buckets, which are repositories. They are made and deleted by the API alone."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.server.s3.call import InThread, S3Call, answer, operation
from ebbtide.server.s3.errors import S3Error
from ebbtide.server.s3.markup import Markup, date_text, element, root
from ebbtide.store.access.keys import Role

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

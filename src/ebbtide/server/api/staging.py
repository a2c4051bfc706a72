"""Uploads directly to the storage, linked afterwards; and objects that stay outside the
repository."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import Header, Query

from ebbtide.errors import Conflict, InvalidInput
from ebbtide.model import EPOCH
from ebbtide.server.api.base import Metadata, Seconds, Segment, Text, Wire, seconds_of
from ebbtide.server.api.objects import ObjectStats
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.uploads import parse_condition
from ebbtide.storage.urls import object_url
from ebbtide.store.access.keys import Role
from ebbtide.store.importing.sources import require_allowed


class ObjectStageCreation(Wire):
    """An object outside the repository that stays where it is."""

    physical_address: Text
    checksum: Text
    size_bytes: int
    mtime: Seconds | None = None
    metadata: Metadata | None = None
    content_type: Text | None = None


class StagingLocation(Wire):
    """An address to upload to. To link the upload, the client sends `physical_address` back
    unchanged."""

    physical_address: Text | None = None
    presigned_url: Text | None = None
    presigned_url_expiry: int | None = None


class StagingMetadata(Wire):
    """The description of an upload. A `checksum` of 64 hexadecimal digits is compared as SHA-256;
    any other checksum is ignored. `mtime` is the object's date, if it is given."""

    staging: StagingLocation
    checksum: Text
    size_bytes: int
    mtime: Seconds | None = None
    user_metadata: Metadata | None = None
    content_type: Text | None = None


routes = Routes("staging")

PathQuery = Annotated[Text, Query()]
ConditionHeader = Annotated[str | None, Header()]

_BRANCH: Final = "/repositories/{repository:segment}/branches/{branch:segment}"
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


@routes.add("GET", _BRANCH + "/staging/backing", Role.WRITER)
def get_physical_address(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    served: ServedDep,
    presign: Annotated[bool, Query()] = False,
) -> StagingLocation:
    """Returns an address to upload to. An upload that is not linked before its token expires is
    deleted."""
    given = served.repository(repository).addresses.get(branch, path)
    signed = given.presigned_url if presign else None
    return StagingLocation(
        physical_address=given.url,
        presigned_url=signed,
        presigned_url_expiry=None if signed is None else seconds_of(given.expires_at),
    )


@routes.add("PUT", _BRANCH + "/staging/backing", Role.WRITER)
def link_physical_address(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    asked: StagingMetadata,
    served: ServedDep,
    if_none_match: ConditionHeader = None,
    if_match: ConditionHeader = None,
) -> ObjectStats:
    """Links an upload to a path. A repeated link gets the answer of the first one, as long as the
    path shows its object."""
    found = served.repository(repository)
    if asked.staging.physical_address is None:
        raise InvalidInput("invalid_argument", "staging.physical_address: field required")
    only_if = parse_condition(if_none_match, if_match)
    try:
        entry = found.addresses.link(
            branch,
            path,
            found.addresses.token_of(asked.staging.physical_address),
            size_bytes=asked.size_bytes,
            # Clients may send a storage's ETag here, which cannot be compared.
            checksum=asked.checksum if _SHA256.fullmatch(asked.checksum) else None,
            content_type=asked.content_type,
            metadata=asked.user_metadata,
            mtime=_mtime(asked.mtime),
            only_if=only_if,
        )
    except Conflict as error:
        if error.kind != "token_used" or only_if is not None:
            raise
        linked = found.addresses.find_linked(
            branch,
            path,
            size_bytes=asked.size_bytes,
            checksum=asked.checksum,
            content_type=asked.content_type,
            metadata=asked.user_metadata,
        )
        if linked is None:
            raise
        entry = linked
    return ObjectStats.of(entry, found.info.storage_url)


@routes.add("PUT", _BRANCH + "/objects", Role.WRITER, status=201)
def stage_object(
    repository: Segment,
    branch: Segment,
    path: PathQuery,
    asked: ObjectStageCreation,
    served: ServedDep,
) -> ObjectStats:
    """Stages an object outside the repository, which stays where it is. `EBBTIDE_IMPORT_PREFIXES`
    must allow its place, because the server reads it for all users, with its own credentials."""
    url = object_url(asked.physical_address)
    require_allowed(url, served.import_prefixes)
    found = served.repository(repository)
    entry = found.addresses.stage(
        branch,
        path,
        url,
        size_bytes=asked.size_bytes,
        checksum=asked.checksum,
        mtime=_mtime(asked.mtime),
        content_type=asked.content_type,
        metadata=asked.metadata,
    )
    return ObjectStats.of(entry, found.info.storage_url)


def _mtime(seconds: int | None) -> datetime | None:
    return None if seconds is None else EPOCH + timedelta(seconds=seconds)

"""Deleting objects: DeleteObject and DeleteObjects. A key without an object is no error."""

from __future__ import annotations

from collections import defaultdict
from typing import Final
from xml.etree.ElementTree import Element

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.server.s3.addressing import split_key
from ebbtide.server.s3.call import S3Call, answer, in_thread, operation, writing
from ebbtide.server.s3.errors import S3Error, code_of
from ebbtide.server.s3.markup import Markup, element, root
from ebbtide.store.access.keys import Role
from ebbtide.store.names import check_path
from ebbtide.store.repository import Repository

KEYS_MAX: Final = 1000
BODY_BYTES_MAX: Final = 2 * 1024 * 1024


@operation("DeleteObject", Role.WRITER, "object", "DELETE")
@in_thread
def delete_object(call: S3Call) -> Response:
    """Deletes an object."""
    if "if-match" in call.headers:
        raise S3Error("NotImplemented", "a delete takes no condition")
    errors = _delete(call.repository(), [call.key])
    if errors:
        raise errors[call.key]
    return Response(status_code=204)


@operation("DeleteObjects", Role.WRITER, "bucket", "POST", "delete")
async def delete_objects(call: S3Call) -> Response:
    """Deletes the keys that the body lists."""
    body = await call.document("Delete", bytes_max=BODY_BYTES_MAX)
    keys = _keys_of(body)
    is_quiet = (body.findtext("Quiet") or "").strip().lower() == "true"

    def delete() -> Markup:
        errors = _delete(call.repository(), keys)
        done = [] if is_quiet else [key for key in keys if key not in errors]
        return root(
            "DeleteResult",
            *(element("Deleted", element("Key", key)) for key in done),
            *(_error(key, errors[key]) for key in keys if key in errors),
        )

    return answer(await call.run(delete))


def _keys_of(body: Element) -> list[str]:
    """Returns the keys of the body. Raises S3Error."""
    items = body.findall("Object")
    if not 1 <= len(items) <= KEYS_MAX:
        raise S3Error("MalformedXML", f"list between 1 and {KEYS_MAX} keys")
    keys = []
    for item in items:
        if any(item.find(name) is not None for name in ("ETag", "LastModifiedTime", "Size")):
            raise S3Error("NotImplemented", "a delete takes no condition")
        if (item.findtext("VersionId") or "null") != "null":
            raise S3Error("NotImplemented", "objects have no versions")
        key = item.findtext("Key")
        if not key:
            raise S3Error("MalformedXML", "an Object has no Key")
        keys.append(key)
    return list(dict.fromkeys(keys))


def _delete(repository: Repository, keys: list[str]) -> dict[str, EbbtideError]:
    """Deletes keys, and returns the errors by key."""
    by_ref: dict[str, dict[str, str]] = defaultdict(dict)
    for key in keys:
        ref, path = split_key(key)
        # No object can be at any other key.
        if path is not None and _is_path(path):
            by_ref[ref][path] = key
    errors: dict[str, EbbtideError] = {}
    for ref, paths in by_ref.items():
        try:
            with writing(repository, ref):
                repository.objects.delete_many(ref, paths)
        except NotFound as error:
            if error.kind != "branch_not_found":
                errors.update(dict.fromkeys(paths.values(), error))
        except EbbtideError as error:
            errors.update(dict.fromkeys(paths.values(), error))
    return errors


def _is_path(path: str) -> bool:
    try:
        check_path(path)
    except InvalidInput:
        return False
    return True


def _error(key: str, error: EbbtideError) -> Markup:
    return element(
        "Error",
        element("Key", key),
        element("Code", code_of(error)),
        element("Message", error.message),
    )

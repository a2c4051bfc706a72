"""Deleting objects: DeleteObject and DeleteObjects. A key without an object is no error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from xml.etree.ElementTree import Element

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.escaping import shown
from ebbtide.server.s3.addressing import split_key
from ebbtide.server.s3.call import InThread, S3Call, answer, operation, writing
from ebbtide.server.s3.conditions import IfUnchanged, condition_of_delete
from ebbtide.server.s3.errors import S3Error, code_of, own_elements
from ebbtide.server.s3.markup import Markup, element, root
from ebbtide.store.access.keys import Role
from ebbtide.store.names import check_path
from ebbtide.store.repository import Repository

KEYS_MAX: Final = 1000
BODY_BYTES_MAX: Final = 2 * 1024 * 1024


@operation("DeleteObject", Role.WRITER, "object", "DELETE")
@InThread
def delete_object(call: S3Call) -> Response:
    """Deletes an object."""
    only_if = condition_of_delete(
        call.headers.get("if-match"),
        call.headers.get("x-amz-if-match-last-modified-time"),
        call.headers.get("x-amz-if-match-size"),
    )
    errors = _delete(call.repository(), {call.key: only_if})
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
        for error in set(errors.values()):
            call.store.tell(error)
        done = [] if is_quiet else [key for key in keys if key not in errors]
        return root(
            "DeleteResult",
            *(element("Deleted", element("Key", key)) for key in done),
            *(_error(key, errors[key]) for key in keys if key in errors),
        )

    return answer(await call.run(delete))


def _keys_of(body: Element) -> dict[str, IfUnchanged | None]:
    """Returns the keys of the body, with the condition of each. Raises S3Error."""
    items = body.findall("Object")
    if not 1 <= len(items) <= KEYS_MAX:
        raise S3Error("MalformedXML", f"list between 1 and {KEYS_MAX} keys")
    keys: dict[str, IfUnchanged | None] = {}
    for item in items:
        if (item.findtext("VersionId") or "null") != "null":
            raise S3Error("NotImplemented", "objects have no versions")
        key = item.findtext("Key")
        if not key:
            raise S3Error("MalformedXML", "an Object has no Key")
        texts = (item.findtext(name) for name in ("ETag", "LastModifiedTime", "Size"))
        only_if = condition_of_delete(*(None if text is None else text.strip() for text in texts))
        if keys.setdefault(key, only_if) != only_if:
            raise S3Error("InvalidArgument", f"{shown(key)} is listed twice, with two conditions")
    return keys


def _delete(
    repository: Repository, keys: Mapping[str, IfUnchanged | None]
) -> dict[str, EbbtideError]:
    """Deletes keys, and returns the errors by key."""
    by_ref: dict[str, dict[str, str]] = defaultdict(dict)
    errors: dict[str, EbbtideError] = {}
    for key, only_if in keys.items():
        ref, path = split_key(key)
        # No object can be at any other key.
        if path is None or not _is_path(path):
            continue
        if only_if is None:
            by_ref[ref][path] = key
        else:
            delete = partial(repository.objects.delete_if, ref, path, only_if)
            errors |= _tried(repository, ref, [key], delete)
    for ref, paths in by_ref.items():
        delete_many = partial(repository.objects.delete_many, ref, paths)
        errors |= _tried(repository, ref, paths.values(), delete_many)
    return errors


def _tried(
    repository: Repository, ref: str, keys: Iterable[str], delete: Callable[[], object]
) -> dict[str, EbbtideError]:
    """Deletes, and returns the error for each key, if there is one."""
    try:
        with writing(repository, ref):
            delete()
    except EbbtideError as error:
        if error.kind != "branch_not_found":
            return dict.fromkeys(keys, error)
    return {}


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
        *own_elements(error),
    )

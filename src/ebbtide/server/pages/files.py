"""The files of a branch, tag or commit: browse, upload, delete, commit, view and download.

A file is content of a user. It is sent with a policy that lets nothing in it run, and never under a
type that a browser would interpret, except images that are recognized by their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response, StreamingResponse

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.server.api import downloads
from ebbtide.server.pages.previews import HEAD_BYTES, image_type, preview, read_range
from ebbtide.server.pages.refs import choices_of
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.publication import until_published
from ebbtide.store.content.differences import Change
from ebbtide.store.content.entries import without_checksums
from ebbtide.store.objects.objects import Readable
from ebbtide.store.page import Page
from ebbtide.store.repository import Repository
from ebbtide.text import shown

pages = Pages()

CHANGES_SHOWN: Final = 12
_FILES: Final = "/repositories/{repository:segment}/files"


@dataclass(frozen=True, slots=True)
class Crumb:
    """A directory above the one that the page shows."""

    name: str
    prefix: str


@pages.add("GET", _FILES, Role.READER)
def list_files(visit: Visit) -> Response:
    """Shows a directory at a ref (`ref`, `prefix`), and the staged changes of a branch."""
    repository = visit.repository()
    ref, prefix = visit.form("branch") or visit.query("ref"), visit.given("prefix")
    if visit.error is not None and visit.error.kind == "branch_not_found":
        raise visit.error  # the form's branch has no page
    ref = ref or repository.info.default_branch
    page = repository.objects.list(
        ref, prefix=prefix, delimiter="/", after=visit.query("after"), amount=PAGE_ROWS
    )
    changes = _changes(repository, ref)
    return visit.page(
        "files.html",
        name=repository.info.name,
        ref=ref,
        prefix=prefix,
        choices=choices_of(repository),
        crumbs=crumbs_of(prefix),
        page=page,
        is_branch=changes is not None,
        changes=() if changes is None else changes.entries,
        more_changes=changes is not None and changes.next_after is not None,
        asked={field: visit.form(field) for field in ("path", "message")},
    )


@pages.add("POST", _FILES + "/upload", Role.WRITER, uploads=True, again=list_files)
def upload_file(visit: Visit) -> Response:
    """Stores a file on a branch: in the directory that is shown, or at the path in the form."""
    repository, branch, prefix = visit.repository(), visit.form("branch"), visit.form("prefix")
    upload = visit.upload
    if upload is None or not upload.filename:
        raise InvalidInput("invalid_argument", "choose a file to upload")
    path = visit.form("path").strip() or prefix + _name_of(upload.filename)
    repository.objects.put(branch, path, upload.content, content_type=upload.content_type)
    return _done(visit, repository, "uploaded", ref=branch, prefix=path[: path.rfind("/") + 1])


@pages.add("POST", _FILES + "/delete", Role.WRITER, again=list_files)
def delete_file(visit: Visit) -> Response:
    """Deletes a file on a branch. Commits that have the file keep it."""
    repository, branch, prefix = visit.repository(), visit.form("branch"), visit.form("prefix")
    repository.objects.delete(branch, visit.form("path"))
    return _done(visit, repository, "file_deleted", ref=branch, prefix=prefix)


@pages.add("POST", _FILES + "/commit", Role.WRITER, again=list_files)
def commit_files(visit: Visit) -> Response:
    """Commits the staged changes of a branch."""
    repository, branch, prefix = visit.repository(), visit.form("branch"), visit.form("prefix")
    message, committer = visit.form("message").strip(), visit.served.committer
    if not message:
        raise InvalidInput("invalid_argument", "a commit needs a message that describes it")
    until_published(
        repository.context,
        branch,
        lambda _: repository.commits.commit(branch, message, committer=committer),
    )
    return _done(visit, repository, "committed", ref=branch, prefix=prefix)


def _done(visit: Visit, repository: Repository, notice: str, *, ref: str, prefix: str) -> Response:
    name = repository.info.name
    return visit.to("repositories", name, "files", ref=ref, prefix=prefix, notice=notice)


def _changes(repository: Repository, ref: str) -> Page[Change] | None:
    """Returns the first staged changes of a branch; None if the ref is not a branch."""
    try:
        if repository.branches.get(ref).name != ref:
            return None
        return repository.commits.page_of_staged(ref, amount=CHANGES_SHOWN)
    except NotFound:
        return None


def crumbs_of(prefix: str) -> list[Crumb]:
    """Returns the directories of a prefix, the outermost first."""
    parts = prefix.split("/")
    return [
        Crumb(part, "/".join(parts[: place + 1]) + "/") for place, part in enumerate(parts[:-1])
    ]


def _name_of(filename: str) -> str:
    """Returns a file's own name. Browsers encode a quote in it as in URLs (HTML standard, multipart
    form data)."""
    return filename.replace("%22", '"').replace("\\", "/").rsplit("/", 1)[-1]


_OBJECT: Final = "/repositories/{repository:segment}/object"
OCTETS: Final = "application/octet-stream"
CONTENT_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of every answer that has the bytes of a user's file."""


@pages.add("GET", _OBJECT, Role.READER)
def show_object(visit: Visit) -> Response:
    """Shows a file (`path`) at a ref (`ref`)."""
    repository, path = visit.repository(), visit.query("path")
    ref = visit.query("ref") or repository.info.default_branch
    found = repository.objects.open(ref, path)
    prefix = path[: path.rfind("/") + 1]
    return visit.page(
        "object.html",
        name=repository.info.name,
        ref=ref,
        path=path,
        prefix=prefix,
        file_name=path[len(prefix) :] or path,
        crumbs=crumbs_of(prefix),
        choices=choices_of(repository),
        entry=found.entry,
        metadata=without_checksums(found.entry.metadata),
        preview=preview(found),
    )


@pages.add("GET", _OBJECT + "/content", Role.READER)
def send_object(visit: Visit) -> Response:
    """Sends a file, or a range of it, for saving. With `as=image`, sends an image for the page that
    shows it."""
    path, headers = visit.query("path"), visit.request.headers
    found = visit.repository().objects.open(visit.query("ref"), path)
    if visit.query("as") == "image":
        return _image(found)
    options = downloads.DownloadOptions(
        headers.get("range"), headers.get("if-none-match"), headers.get("if-modified-since")
    )
    answer = downloads.answer(found, options, path)
    answer.headers.update(CONTENT_HEADERS)
    answer.headers["Content-Type"] = OCTETS
    answer.headers["Content-Disposition"] = downloads.attachment(path)
    return answer


def _image(found: Readable) -> Response:
    """Returns an image, under the type that its first bytes have. Raises NotFound
    `object_not_found` for any other file."""
    media_type = image_type(read_range(found, 0, HEAD_BYTES), found.entry)
    if media_type is None:
        raise NotFound(
            "object_not_found", f"{shown(found.entry.path)} is no image that a page can show"
        )
    headers = {**CONTENT_HEADERS, "Content-Length": str(found.entry.size_bytes)}
    return StreamingResponse(found.stream(), 200, headers, media_type=media_type)

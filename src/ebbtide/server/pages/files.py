"""The files of a branch, tag or commit: browse, upload, delete and commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.server.pages.ref_choices import choices_of
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit, mendable
from ebbtide.store.access.access_keys import Role
from ebbtide.store.commits.publication import until_published
from ebbtide.store.content.differences import Change
from ebbtide.store.page import Page
from ebbtide.store.repository import Repository

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
    return _list(visit, ref=visit.query("ref"), prefix=visit.query("prefix"))


@pages.add("POST", _FILES + "/upload", Role.WRITER, uploads=True)
def upload_file(visit: Visit) -> Response:
    """Stores a file on a branch: in the directory that is shown, or at the path in the form."""
    repository, branch, prefix = visit.repository(), visit.form("branch"), visit.form("prefix")
    upload = visit.upload
    try:
        if upload is None or not upload.filename:
            raise InvalidInput("invalid_argument", "choose a file to upload")
        path = visit.form("path").strip() or prefix + _name_of(upload.filename)
        repository.objects.put(branch, path, upload.content, content_type=upload.content_type)
    except EbbtideError as error:
        return _problem(visit, error, ref=branch, prefix=prefix)
    return _done(visit, repository, "uploaded", ref=branch, prefix=path[: path.rfind("/") + 1])


@pages.add("POST", _FILES + "/delete", Role.WRITER)
def delete_file(visit: Visit) -> Response:
    """Deletes a file on a branch. Commits that have the file keep it."""
    repository, branch, prefix = visit.repository(), visit.form("branch"), visit.form("prefix")
    try:
        repository.objects.delete(branch, visit.form("path"))
    except EbbtideError as error:
        return _problem(visit, error, ref=branch, prefix=prefix)
    return _done(visit, repository, "file_deleted", ref=branch, prefix=prefix)


@pages.add("POST", _FILES + "/commit", Role.WRITER)
def commit_files(visit: Visit) -> Response:
    """Commits the staged changes of a branch."""
    repository, branch, prefix = visit.repository(), visit.form("branch"), visit.form("prefix")
    try:
        message = visit.form("message").strip()
        if not message:
            raise InvalidInput("invalid_argument", "a commit needs a message that describes it")
        committer = visit.served.committer
        until_published(
            repository.context,
            branch,
            lambda _: repository.commits.commit(branch, message, committer=committer),
        )
    except EbbtideError as error:
        return _problem(visit, error, ref=branch, prefix=prefix)
    return _done(visit, repository, "committed", ref=branch, prefix=prefix)


def _done(visit: Visit, repository: Repository, notice: str, *, ref: str, prefix: str) -> Response:
    name = repository.info.name
    return visit.to("repositories", name, "files", ref=ref, prefix=prefix, notice=notice)


def _problem(visit: Visit, error: EbbtideError, *, ref: str, prefix: str) -> Response:
    """Shows an error above the page of the form. If the branch does not exist, there is no such
    page, and the error is raised."""
    if error.kind == "branch_not_found":
        raise error
    return _list(visit, ref=ref, prefix=prefix, error=error, status=mendable(error))


def _list(
    visit: Visit,
    *,
    ref: str,
    prefix: str,
    error: EbbtideError | None = None,
    status: int = 200,
) -> Response:
    repository = visit.repository()
    ref = ref or repository.info.default_branch
    page = repository.objects.list(
        ref, prefix=prefix, delimiter="/", after=visit.query("after"), amount=PAGE_ROWS
    )
    changes = _changes(repository, ref)
    return visit.page(
        "files.html",
        status=status,
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
        error=error,
    )


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

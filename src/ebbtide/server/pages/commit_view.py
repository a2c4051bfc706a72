"""One commit: its message, its state, and what it changed."""

from __future__ import annotations

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.retention.decision import decide
from ebbtide.server.pages.changes import small_diffs
from ebbtide.server.pages.commits import fate_of, refs_by_commit
from ebbtide.server.pages.ref_choices import choices_of
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit, restorable_by
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.differences import Change
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.page import Page
from ebbtide.store.repository import Repository

pages = Pages()


@pages.add("GET", "/repositories/{repository:segment}/commits/{commit_id:segment}", Role.READER)
def show_commit(visit: Visit) -> Response:
    """Shows a commit, and its changes against its first parent or another one (`parent`, counted
    from 1)."""
    repository = visit.repository()
    record = repository.commits.get(visit.segment("commit_id"))
    parent_id = _parent_id(visit, record)
    form = EmbeddedRepository(repository.context, store_id=visit.store.store_id)
    with form.reading() as reading:
        roots = reading.roots()
    known = {commit.commit_id: commit for commit in roots.commits}
    closed_by = record.closed_by
    fates = repository.fates([] if closed_by is None else [closed_by])
    fate, reason = fate_of(known.get(record.commit_id), decide(roots), record, fates)
    refs = refs_by_commit(roots, visit.served.settings.trash_time)
    page, problem = _changes(visit, repository, record, parent_id)
    return visit.page(
        "commit.html",
        name=repository.info.name,
        record=record,
        parent_id=parent_id,
        fate=fate,
        reason=reason,
        restorable=restorable_by(fates[closed_by])
        if closed_by is not None and fate == "quarantined"
        else None,
        refs=refs.get(record.commit_id, ()),
        changes=page,
        problem=problem,
        diffs=[]
        if page is None or parent_id is None
        else small_diffs(repository, parent_id, record.commit_id, page.entries),
        choices=choices_of(repository),
        now=roots.now,
    )


def _parent_id(visit: Visit, record: CommitRecord) -> str | None:
    """Returns the parent to compare with; None for a commit that has none. Raises InvalidInput
    `invalid_argument` for a parent that does not exist."""
    if not record.parent_ids:
        return None
    number = visit.number("parent", 1, most=len(record.parent_ids))
    if number == 0:
        raise InvalidInput("invalid_argument", "parents are counted from 1")
    return record.parent_ids[number - 1]


def _changes(
    visit: Visit, repository: Repository, record: CommitRecord, parent_id: str | None
) -> tuple[Page[Change] | None, EbbtideError | None]:
    """Returns a page of the changes. If one of the commits was forgotten, there is an error in
    place of the changes."""
    if parent_id is None:
        return None, None
    try:
        page = repository.commits.page_of_diff(
            parent_id, record.commit_id, after=visit.query("after"), amount=PAGE_ROWS
        )
    except EbbtideError as error:
        if error.kind != "commit_expired":
            raise
        return None, error
    return page, None

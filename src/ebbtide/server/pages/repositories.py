"""The repositories of the store, and the overview of one repository."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from starlette.responses import Response

from ebbtide.errors import EbbtideError
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.gc.parts import Count
from ebbtide.gc.whatif import alternative_of
from ebbtide.ids import instant_of
from ebbtide.retention.decision import decide
from ebbtide.server.api import runs
from ebbtide.server.api.repositories import storage_url_of
from ebbtide.server.api.runs import RunAnswer
from ebbtide.server.pages.charts import Line, line, shares
from ebbtide.server.pages.policies import history_of
from ebbtide.server.pages.readme import read_readme
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.trends import READERS, RUNS_SHOWN, Figures, Quarantined, RunFigures
from ebbtide.server.pages.visit import PAGE_ROWS, Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.lifecycle import TRASH
from ebbtide.store.repositories.catalog import Catalogued

pages = Pages()

RUNS_LISTED: Final = 5
TOTALLED_MAX: Final = 1_000
"""The most repositories whose figures are added up."""
BRANCHES_CHARTED: Final = 12
_UNFINISHED: Final = ("failed", "refused", "incomplete")


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """A repository in the list. `newest` is None before its first run with a plan. `trend` has the
    sizes after the last runs, and `freed` the bytes that they deleted for good."""

    found: Catalogued
    newest: RunFigures | None
    quarantined: Quarantined
    trend: Line | None
    freed: Line | None
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of several repositories. `unknown` repositories have no plan, or one without the
    sizes of kept files; they are missing in `size_bytes`. If `more`, others were not read."""

    repositories: int
    size_bytes: int
    unknown: int
    reclaimable_bytes: int
    quarantined: Count
    more: bool


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a repository; None before the first one, and if an `error` hides it."""

    name: str
    run: RunAnswer | None = None
    error: str = ""

    @property
    def made_at(self) -> datetime | None:
        """When the run began."""
        return None if self.run is None else instant_of(self.run.run_id)

    @property
    def is_good(self) -> bool:
        """Whether nobody has to look at it."""
        return not self.error and (self.run is None or self.run.state not in _UNFINISHED)


@pages.add("GET", "", Role.NONE)
def list_repositories(visit: Visit) -> Response:
    """Shows the repositories that the visitor may read, by name, with the results of their last
    runs, and the form for a new one."""
    search = visit.query("search")
    found = visit.store.catalog.page(
        after=visit.query("after"),
        amount=PAGE_ROWS + 1,
        search=search,
        only=visit.served.rights.readable_ids,
    )
    page = found[:PAGE_ROWS]
    more = page[-1].info.name if len(found) > PAGE_ROWS else None
    reads_all = visit.allows(Role.READER)
    trashed = visit.store.catalog.page(listed=TRASH, amount=1) if reads_all else []
    return visit.page(
        "repositories.html",
        rows=_rows(visit, page),
        more=more,
        search=search,
        elsewhere=[name for name in visit.served.elsewhere if search in name and reads_all],
        has_trash=bool(trashed),
        asked={field: visit.form(field) for field in ("name", "storage", "default_branch")},
        now=visit.now(),
    )


@pages.add("POST", "", Role.ADMIN, again=list_repositories)
def create_repository(visit: Visit) -> Response:
    """Creates a repository, at a place that the form names or below the store's storage."""
    place = visit.form("storage").strip()
    made = visit.store.create_repository(
        visit.form("name").strip(),
        storage_url=storage_url_of(place, visit.store) if place else None,
        default_branch=visit.form("default_branch").strip() or "main",
        namespace=place or None,
    )
    return visit.to("repositories", made.info.name, "files", notice="repository_made")


@pages.add("GET", "/totals", Role.NONE)
def show_totals(visit: Visit) -> Response:
    """Shows the totals over all repositories that the visitor may read. The page of the list
    requests them after it has loaded, because they need files of all repositories."""
    only = visit.served.rights.readable_ids
    found = visit.store.catalog.page(amount=TOTALLED_MAX + 1, only=only)
    rows = _rows(visit, found[:TOTALLED_MAX], amount=1)
    sizes = [None if row.newest is None else row.newest.size_bytes for row in rows]
    totals = Totals(
        repositories=len(rows),
        size_bytes=sum(size or 0 for size in sizes),
        unknown=sizes.count(None),
        reclaimable_bytes=sum(row.newest.reclaimable_bytes for row in rows if row.newest),
        quarantined=sum((row.quarantined.count for row in rows), Count()),
        more=len(found) > TOTALLED_MAX,
    )
    is_fragment = "x-fragment" in visit.request.headers
    return visit.page("totals.html" if is_fragment else "totals_page.html", totals=totals)


@pages.add("GET", "/runs", Role.NONE)
def list_last_runs(visit: Visit) -> Response:
    """Shows the newest run of each repository that the visitor may read, here and elsewhere: first
    those that somebody has to look at."""
    found = visit.store.catalog.page(amount=TOTALLED_MAX + 1, only=visit.served.rights.readable_ids)
    names = [each.info.name for each in found[:TOTALLED_MAX]]
    names += visit.served.elsewhere if visit.allows(Role.READER) else ()
    with ThreadPoolExecutor(READERS) as readers:
        rows = list(readers.map(lambda name: _last_run(visit, name), names))
    rows.sort(key=lambda row: row.is_good)
    bad = sum(not row.is_good for row in rows)
    return visit.page("last_runs.html", rows=rows, bad=bad, more=len(found) > TOTALLED_MAX)


def _last_run(visit: Visit, name: str) -> LastRun:
    try:
        newest, _ = runs.page(visit.served, visit.served.collected(name), after="", amount=1)
    except EbbtideError as error:
        return LastRun(name, error=error.message)
    return LastRun(name, newest[0] if newest else None)


@pages.add("GET", "/trash", Role.READER)
def list_trash(visit: Visit) -> Response:
    """Shows the repositories in the trash."""
    found = visit.store.catalog.page(listed=TRASH, after=visit.query("after"), amount=PAGE_ROWS + 1)
    page = found[:PAGE_ROWS]
    last = page[-1].info if len(found) > PAGE_ROWS else None
    return visit.page(
        "repository_trash.html",
        rows=page,
        more=None if last is None else f"{last.name} {last.repository_id}",
        now=visit.now(),
        trash_time=visit.served.settings.trash_time,
    )


@pages.add("POST", "/trash/{repository_id:segment}/restore", Role.ADMIN)
def restore_repository(visit: Visit) -> Response:
    """Restores a repository from the trash."""
    restored = visit.store.catalog.restore(
        visit.segment("repository_id"), ensure_unique_name=visit.form("unique") == "yes"
    )
    return visit.to("repositories", restored.info.name, notice="restored")


@pages.add("GET", "/repositories/{repository:segment}", Role.READER)
def show_repository(visit: Visit) -> Response:
    """Shows the overview of a repository. For a repository elsewhere, redirects to its runs."""
    if is_elsewhere(visit.segment("repository")):
        return visit.to("repositories", visit.collected.name, "runs")
    repository = visit.repository()
    found = visit.store.catalog.get(repository.info.repository_id)
    form = EmbeddedRepository(repository.context, store_id=visit.store.store_id)
    with form.reading() as reading:
        roots = history_of(reading.roots())
    decision = decide(roots)
    branches = sorted(
        decision.by_ref, key=lambda each: (each.kind != "branch", -each.expired_count, each.name)
    )
    latest, _ = runs.page(visit.served, visit.collected, after="", amount=RUNS_LISTED)
    return visit.page(
        "repository.html",
        found=found,
        row=_rows(visit, [found])[0],
        branch_count=sum(ref.kind == "branch" for ref in roots.refs),
        tag_count=sum(ref.kind == "tag" for ref in roots.refs),
        commits=alternative_of(roots, decision, decision).commits,
        shares=shares(
            (each.name, each.rule, each.kept_count, each.expired_count)
            for each in branches[:BRANCHES_CHARTED]
        ),
        more_branches=max(0, len(branches) - BRANCHES_CHARTED),
        warnings=decision.warnings,
        readme=read_readme(repository),
        has_policy=roots.policy is not None,
        runs=[(run, instant_of(run.run_id)) for run in latest],
        now=roots.now,
    )


def _rows(
    visit: Visit, found: Sequence[Catalogued], *, amount: int = RUNS_SHOWN
) -> list[RepositoryRow]:
    """Returns the rows of repositories, with the figures of at most `amount` runs of each."""
    repositories = [visit.served.repository(each.info.name) for each in found]
    kept = Figures.of_server(visit)
    figures = kept.of(visit.store, repositories, amount=amount)
    quarantined = kept.quarantined(visit.store, repositories)
    ids = [each.info.repository_id for each in found]
    return [
        _row(each, figures[place], quarantined[place])
        for each, place in zip(found, ids, strict=True)
    ]


def _row(
    found: Catalogued, figures: Sequence[RunFigures], quarantined: Quarantined
) -> RepositoryRow:
    return RepositoryRow(
        found,
        figures[0] if figures else None,
        quarantined,
        line([size for each in reversed(figures) if (size := each.size_bytes) is not None]),
        line([each.freed_bytes for each in reversed(figures)]),
        sum(each.freed_bytes for each in figures),
    )

"""Figures of a repository from its recorded runs: its size, the reclaimable bytes, and trends.

Figures of a run that cannot change any more are cached in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Final, Self, cast

from starlette.responses import Response

from ebbtide.errors import EbbtideError
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc import quarantine
from ebbtide.gc.parts import Count
from ebbtide.gc.runs import PLAN_FILE, REPORT_FILE, RunFolder, RunFolders
from ebbtide.ids import instant_of
from ebbtide.server.pages.charts import Plot, over_dates
from ebbtide.server.pages.html import seconds_text
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from ebbtide.text import count_text, size_text

pages = Pages()

RUNS_SHOWN: Final = 12
"""The most runs that a trend shows."""
READERS: Final = 16
KEPT_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run that made a plan.

    `size_bytes` is the size of the whole storage after the run; None if the run did not ask for the
    sizes of kept files. `reclaimable_bytes` is the size of the candidates; 0 after a sweep.
    `quarantined_bytes` is the size of the files that the run quarantined. `freed_bytes` is the size
    of the files that the run deleted for good: files in quarantine count when they are purged.
    `seconds` is the sum of the run's steps.
    """

    run_id: str
    made_at: datetime
    state: str
    object_count: int
    size_bytes: int | None
    reclaimable_count: int
    reclaimable_bytes: int
    deleted_bytes: int
    candidate_count: int
    candidate_bytes: int
    quarantined_bytes: int
    freed_bytes: int
    seconds: float
    is_final: bool


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The files in quarantine, and the runs that quarantined them, the newest first."""

    count: Count = field(default_factory=Count)
    run_ids: Sequence[str] = ()


class Figures:
    """Reads the figures of runs, and caches those that are final. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[str, RunFigures | None] = OrderedDict()

    @classmethod
    def of_server(cls, visit: Visit) -> Self:
        """Returns the cache of the server."""
        return cast("Self", visit.request.app.state.figures)

    def of(
        self, store: Store, repositories: Sequence[Repository], *, amount: int
    ) -> dict[str, tuple[RunFigures, ...]]:
        """Returns those of the newest `amount` runs that have a plan, the newest first, for each
        repository by its id. A run whose files are damaged or missing is left out."""
        return self.newest(_forms(store, repositories), amount=amount)

    def newest(
        self, forms: Mapping[str, RepositoryFormat], *, amount: int
    ) -> dict[str, tuple[RunFigures, ...]]:
        """Returns the figures of at most `amount` runs of each repository, as `of` does. The keys
        stay those of `forms`."""
        asked: list[tuple[str, str, Sequence[RunFolder]]] = []
        for key, form in forms.items():
            recorded = list(RunFolders(form).recorded().items())[:amount]
            asked += [(key, *each) for each in recorded]
        with ThreadPoolExecutor(READERS) as readers:
            read = list(readers.map(lambda each: self._read(*each[1:]), asked))
        found: dict[str, tuple[RunFigures, ...]] = dict.fromkeys(forms, ())
        for (key, *_), figures in zip(asked, read, strict=True):
            if figures is not None:
                found[key] += (figures,)
        return found

    def quarantined(
        self, store: Store, repositories: Sequence[Repository]
    ) -> dict[str, Quarantined]:
        """Returns the files in quarantine, for each repository by its id. They use storage until
        they are deleted. A run whose files are damaged or missing is left out."""
        forms = _forms(store, repositories)
        with ThreadPoolExecutor(READERS) as readers:
            counts = list(readers.map(_quarantined, forms.values()))
        return dict(zip(forms, counts, strict=True))

    def _read(self, run_id: str, places: Sequence[RunFolder]) -> RunFigures | None:
        with self._lock:
            if run_id in self._kept:
                self._kept.move_to_end(run_id)
                return self._kept[run_id]
        try:
            figures = read_figures(run_id, places[0])
        except EbbtideError:
            return None
        if figures is not None and figures.is_final:
            with self._lock:
                self._kept[run_id] = figures
                while len(self._kept) > KEPT_MAX:
                    self._kept.popitem(last=False)
        return figures


def _forms(store: Store, repositories: Sequence[Repository]) -> dict[str, RepositoryFormat]:
    return {
        each.info.repository_id: EmbeddedRepository(each.context, store_id=store.store_id)
        for each in repositories
    }


def _quarantined(form: RepositoryFormat) -> Quarantined:
    found, run_ids = Count(), list[str]()
    try:
        records, _ = quarantine.read_each(form.storage)
        known = RunFolders(form).recorded() if records else {}
    except EbbtideError:
        return Quarantined()
    for record in records:
        if record.state != "held" or record.run_id not in known:
            continue
        try:
            report = known[record.run_id][0].get_json(REPORT_FILE) or {}
        except EbbtideError:
            continue
        told = report.get("quarantine") or {}
        if told.get("state") == "held":
            found += Count(told["objects"], told["bytes"])
            run_ids.append(record.run_id)
    return Quarantined(found, sorted(run_ids))  # ids of runs are time-descending


def _purged_bytes(report: Mapping[str, Any]) -> int:
    """Returns the size of the files of a quarantine that was purged."""
    told = report.get("quarantine") or {}
    return (told.get("bytes") or 0) if told.get("state") == "purged" else 0


def read_figures(run_id: str, folder: RunFolder) -> RunFigures | None:
    """Returns the figures of a run; None if the run made no plan. Raises EbbtideError."""
    plan = folder.get_json(PLAN_FILE)
    made_at = instant_of(run_id)
    if plan is None or made_at is None or "whole" not in plan:
        return None
    report: Mapping[str, Any] = folder.get_json(REPORT_FILE) or {}
    whole, candidates = plan["whole"], plan["counts"].get("candidate", {})
    state = report.get("state", "planned")
    is_open = state in ("planned", "refused")
    deleted_bytes = report.get("deleted_bytes", 0)
    # A file that was already gone when the sweep came to it is not on the storage any more either.
    gone = report.get("deleted_count", 0) + report.get("missing_count", 0)
    gone_bytes = deleted_bytes + (report.get("missing_bytes") or 0)
    return RunFigures(
        run_id=run_id,
        made_at=made_at,
        state=state,
        object_count=whole["objects"] - gone,
        size_bytes=None if whole["bytes_total"] is None else whole["bytes_total"] - gone_bytes,
        reclaimable_count=candidates.get("objects", 0) if is_open else 0,
        reclaimable_bytes=candidates.get("bytes_total", 0) if is_open else 0,
        deleted_bytes=deleted_bytes,
        candidate_count=candidates.get("objects", 0),
        candidate_bytes=candidates.get("bytes_total") or 0,
        quarantined_bytes=report.get("quarantined_bytes") or 0,
        freed_bytes=(deleted_bytes or 0) + _purged_bytes(report),
        seconds=sum((report.get("seconds") or plan.get("seconds") or {}).values()),
        # Files in quarantine can still be restored or deleted.
        is_final=state == "swept" and not report.get("quarantine"),
    )


RUNS_CHARTED: Final = 200
"""The most runs that a trend reads: two files for each."""


@pages.add("GET", "/repositories/{repository:segment}/runs/trend", Role.READER)
def show_trend(visit: Visit) -> Response:
    """Shows the newest runs over time, as charts and as a table. Runs without a plan are left
    out."""
    here = visit.collected
    found = Figures.of_server(visit).newest({here.key: here.form}, amount=RUNS_CHARTED)[here.key]
    of_bytes = (
        ("Size of the storage", lambda run: run.size_bytes),
        ("Bytes freed", lambda run: run.freed_bytes),
        ("Bytes quarantined", lambda run: run.quarantined_bytes),
        ("Would be deleted, in bytes", lambda run: run.candidate_bytes),
    )
    charts = (
        *(_over_dates(title, found, value) for title, value in of_bytes),
        over_dates(
            "Would be deleted, in files",
            ((run.made_at, run.candidate_count) for run in found),
            text=_count_text,
            scale="whole",
        ),
        over_dates(
            "Time of the run",
            ((run.made_at, run.seconds) for run in found),
            text=_seconds_text,
            scale="any",
        ),
    )
    return visit.page(
        "trend.html",
        name=here.name,
        charts=[chart for chart in charts if chart is not None],
        runs=found,
        runs_max=RUNS_CHARTED,
    )


def _over_dates(
    title: str, found: Sequence[RunFigures], value: Callable[[RunFigures], int | None]
) -> Plot | None:
    """Returns a chart of bytes; None if the runs have fewer than two values, or all are zero."""
    rows = [(run.made_at, size) for run in found if (size := value(run)) is not None]
    if not any(size for _, size in rows):
        return None
    return over_dates(title, rows, text=_bytes_text, scale="bytes")


def _bytes_text(value: float) -> str:
    return size_text(round(value))


def _count_text(value: float) -> str:
    return count_text(round(value))


def _seconds_text(value: float) -> str:
    return f"{value:g} s" if value < 1 else seconds_text(value)

"""The runs of a repository over time: bytes freed, candidates, and the time that runs took."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from ebbtide.server.pages.charts import over_dates
from ebbtide.server.pages.rendering import seconds_text
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role
from ebbtide.text import count_text, size_text

pages = Pages()

RUNS_CHARTED: Final = 200
"""The most runs that a trend reads: two files for each."""


@pages.add("GET", "/repositories/{repository:segment}/runs/trend", Role.READER)
def show_trend(visit: Visit) -> Response:
    """Shows the newest runs over time, as charts and as a table. Runs without a plan are left
    out."""
    here = visit.collected
    found = visit.figures.newest({here.key: here.form}, amount=RUNS_CHARTED)[here.key]
    charts = (
        over_dates(
            "Bytes freed",
            ((run.made_at, run.freed_bytes) for run in found),
            text=_bytes_text,
            scale="bytes",
        ),
        over_dates(
            "Candidates, in bytes",
            ((run.made_at, run.candidate_bytes) for run in found),
            text=_bytes_text,
            scale="bytes",
        ),
        over_dates(
            "Candidates, in files",
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


def _bytes_text(value: float) -> str:
    return size_text(round(value))


def _count_text(value: float) -> str:
    return count_text(round(value))


def _seconds_text(value: float) -> str:
    return f"{value:g} s" if value < 1 else seconds_text(value)

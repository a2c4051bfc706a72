"""An Icechunk repository and its collector, for tests."""

from __future__ import annotations

from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ebbtide.arrow import texts
from ebbtide.clock import Clock
from ebbtide.formats.capabilities import CommitHistory
from ebbtide.formats.icechunk.repository import IcechunkRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.hold import expire
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.gc.steps import Observer, silent
from ebbtide.retention.expiry import Expiry, ExpiryRequest
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from tests.support.engines import INLINE
from tests.support.icechunk import backdate

GRACE = timedelta(hours=1)
LONG_AGO = 30 * 24 * 3600.0
"""Seconds by which files are made older than any grace."""


class IcechunkLake:
    def __init__(self, path: Path, *, clock: Clock | None = None, url: str | None = None) -> None:
        self.path = path
        self.url = url or str(path)
        self.clock = clock
        self.engine: Engine = INLINE
        self.settings = Settings(share_max=1.0, run_heartbeat=timedelta(seconds=1))

    def age(self) -> None:
        backdate(self.path, LONG_AGO)

    def format(self, *, quiet: bool = True, run_dir: Path | None = None) -> IcechunkRepository:
        """The repository as the collector sees it; nobody has a session open."""
        return IcechunkRepository(
            open_storage(self.url),
            name=f"icechunk:{self.url}",
            settings=self.settings,
            quiet=quiet,
            notes=None if run_dir is None else open_storage(str(run_dir)),
            clock=self.clock,
        )

    def collector(
        self,
        *,
        quiet: bool = True,
        run_dir: Path | None = None,
        observer: Observer = silent,
        **options: Any,
    ) -> Collector:
        """A collector with a grace of an hour, unless `options` say otherwise."""
        chosen = {"grace": GRACE, "sessions": timedelta(0)} | options
        if run_dir is not None:
            chosen["run_dir"] = str(run_dir)
        return Collector(
            self.format(quiet=quiet, run_dir=run_dir),
            engine=self.engine,
            options=RunOptions.of(self.settings, **chosen),
            observer=observer,
        )

    def expire(self, request: ExpiryRequest, *, quiet: bool = True) -> tuple[CommitHistory, Expiry]:
        return expire(self.format(quiet=quiet), request, RunOptions.of(self.settings))

    def collect(self, **options: Any) -> RunReport:
        return self.collector(**options).run()

    def planned(self, **options: Any) -> RunReport:
        report = self.collector(**options).plan()
        assert report.state == "planned", report.error
        return report

    def swept(self, **options: Any) -> RunReport:
        report = self.collect(**options)
        assert report.state == "swept", report.error
        return report


def candidates(report: RunReport) -> dict[str, int]:
    return {row["address"]: row["size_bytes"] for row in planned_rows(report)}


def reasons(report: RunReport) -> dict[str, str]:
    rows = pq.read_table(BytesIO(open_storage(report.run_path).get("commits.parquet"))).to_pylist()
    return {row["commit_id"]: row["reason"] for row in rows if row["active"]}


def planned_rows(report: RunReport) -> list[dict[str, Any]]:
    return _rows_in(report, "candidates/")


def told_of(report: RunReport, outcome: str) -> dict[str, str | None]:
    """The files of a sweep with this outcome, each with the reason that the record gives."""
    rows = _rows_in(report, "deleted/")
    return {row["address"]: row["error"] for row in rows if row["outcome"] == outcome}


def _rows_in(report: RunReport, folder: str) -> list[dict[str, Any]]:
    storage = open_storage(report.run_path)
    found: list[dict[str, Any]] = []
    for batch in storage.list(folder):
        for address in texts(batch.column("address")):
            found += pq.read_table(BytesIO(storage.get(address))).to_pylist()
    return sorted(found, key=lambda row: str(row["address"]))

"""A directory with Delta tables, and its collector."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from ebbtide.formats.delta.repository import DeltaRepository
from ebbtide.formats.delta.scheme import open_delta
from ebbtide.gc.collector import Collector
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.model import EPOCH
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from tests.support.clock import ManualClock
from tests.support.engines import INLINE
from tests.support.fixtures import FIXTURES_VARIABLE
from tests.support.icechunk_lake import candidates
from tests.support.requirements import require_or_skip

GRACE = timedelta(days=7)


def fixtures() -> Path:
    """The directory with real tables; without one, the test is skipped."""
    found = Path(os.environ.get(FIXTURES_VARIABLE) or "/nowhere") / "delta"
    if not found.exists():
        require_or_skip("fixtures", f"{FIXTURES_VARIABLE} names no directory with delta/")
    return found


def lay(name: str, directory: Path, *, into: str | None = None) -> dict[str, Any]:
    """Copies a real table to `directory`, and returns what is expected of it."""
    script = fixtures() / "lay.py"
    spec = importlib.util.spec_from_file_location("delta_lay", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.lay(name, directory)
    if into is not None:
        (directory / name).rename(directory / into)
    return found


class DeltaLake:
    """Tables below a directory, at the time `now_ms`."""

    def __init__(self, path: Path, *, now_ms: int, name: str | None = None) -> None:
        self.path = path
        self.name = name or f"delta:{path}"
        self.clock = ManualClock(EPOCH + timedelta(milliseconds=now_ms))
        self.engine: Engine = INLINE
        self.settings = Settings(share_max=1.0, run_heartbeat=timedelta(seconds=1))
        self.options: dict[str, Any] = {"grace": GRACE, "unsafe": True, "sessions": GRACE}
        self.options["mode"] = "clean"  # `test_incremental` has the others

    def open(self) -> DeltaRepository:
        return open_delta(self.name, self.settings, clock=self.clock)

    def keep(self, policy: dict[str, Any]) -> None:
        self.open().set_policy(Policy.parse(policy))

    def collector(self, repository: DeltaRepository | None = None, **options: Any) -> Collector:
        chosen = self.options | options
        found = replace(RunOptions.of(self.settings, **chosen), undo_hold=timedelta(0))
        return Collector(repository or self.open(), engine=self.engine, options=found)

    def planned(self, **options: Any) -> set[str]:
        report = self.collector(**options).plan()
        assert report.state == "planned", report.error
        return {*candidates(report)}

    def swept(self, **options: Any) -> RunReport:
        report = self.collector(**options).run()
        assert report.state == "swept", report.error
        return report

    def files(self) -> set[str]:
        found = (each for each in self.path.rglob("*") if each.is_file())
        names = (each.relative_to(self.path).as_posix() for each in found)
        return {each for each in names if not each.startswith("_ebbtide/")}


def policy_of(text: str) -> tuple[dict[str, Any], timedelta]:
    """The policy and the grace that a name such as `keep_last 1 and hold 2, grace 1d` says."""
    rules, _, grace = text.partition(", grace ")
    policy: dict[str, Any] = {}
    for rule in rules.split(" and "):
        kind, value = rule.split()
        if kind == "hold":
            policy["holds"] = {value: "asked"}
        else:
            policy["default"] = {kind: int(value) if value.isdecimal() else value}
    return policy, timedelta(days=int(grace.removesuffix("d")))


def expected_names() -> list[str]:
    """The names of the real tables; none without fixtures."""
    found = Path(os.environ.get(FIXTURES_VARIABLE) or "/nowhere") / "delta/expected"
    return sorted(each.stem for each in found.glob("*.json")) or ["plain"]


def expectations(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((fixtures() / f"expected/{name}.json").read_text())
    return found

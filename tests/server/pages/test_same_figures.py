"""Pages and commands say the same figures of one store, in the same words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc import commits_text
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.report import RunReport
from ebbtide.program.app import run
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.text import count_text, size_text
from tests.server.pages.conftest import PLACE, Browser, browsing
from tests.server.pages.test_pages import text_of
from tests.support.engines import INLINE
from tests.support.lake import NAME
from tests.support.templates import AGE, date_files

STATES: Final = {"kept": 1, "expires next": 1, "quarantined until": 1, "gone": 2}
COMMITS: Final = "1 commit kept, 1 expires next, 3 quarantined or gone"


@dataclass
class Seen:
    """A store with a commit in each state, a collection, and a plan."""

    browser: Browser
    plan: RunReport
    capture: pytest.CaptureFixture[str]
    directory: Path

    def page(self, place: str = "") -> str:
        return text_of(self.browser.get(f"{PLACE}{place}").text)

    def command(self, *words: str) -> str:
        self.capture.readouterr()
        assert run(["--store", str(self.directory), *words]) == 0
        return self.capture.readouterr().out


@pytest.fixture
def seen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Seen]:
    settings = Settings(reclaim=False, schedules=False, spark_master="none", lease_ttl=timedelta(0))
    directory = tmp_path / "store"
    chosen: dict[str, Any] = {"grace": timedelta(0), "unsafe": True, "allow_share": True}
    with Store.init(directory, settings=settings) as store:
        lake = store.create_repository(NAME)
        form = EmbeddedRepository(lake.context, store_id=store.store_id)
        project = lake.projects.create("p")
        lake.collections.create(project.project_id, "set")
        lake.retention.set({"default": {"keep_last": 1}})

        def commit(data: bytes, quarantine: timedelta | None) -> Collector:
            lake.objects.put("main", "a", data)
            lake.commits.commit("main", "change")
            date_files(directory, datetime.now(UTC) - AGE)
            options = RunOptions.of(settings, **chosen, quarantine=quarantine)
            return Collector(form, engine=INLINE, options=options)

        commit(b"first", None)
        commit(b"second one", None).run()
        commit(b"the third", timedelta(days=3)).run()
        plan = commit(b"the fourth one", None).plan()
        with browsing(store) as browsers:
            yield Seen(browsers(), plan, capfd, directory)


def test_commits_by_state(seen: Seen) -> None:
    assert commits_text(1, 1, 3) == COMMITS
    said = {
        "overview": seen.page(),
        "policy": seen.page("/policy"),
        "run": seen.page(f"/runs/{seen.plan.run_id}"),
        "retention show": seen.command("retention", "show", NAME),
        "gc show": seen.command("gc", "show", NAME, seen.plan.run_id),
    }
    assert [name for name, text in said.items() if COMMITS not in text] == []

    states = re.compile("|".join(sorted(STATES, key=len, reverse=True)))
    page = seen.browser.get(f"{PLACE}/commits").text
    assert Counter(states.findall(" ".join(re.findall(r'class="word">([^<]+)', page)))) == STATES
    rows = seen.command("retention", "show", NAME, "--commits").split("message\n")[1].split("\n\n")
    assert Counter(states.search(row)[0] for row in rows[0].splitlines()) == STATES  # type: ignore[index]
    logged = seen.command("log", NAME).split("message\n")[1].splitlines()
    assert Counter(states.search(row)[0] for row in logged if states.search(row)) == STATES  # type: ignore[index]


def test_files_and_bytes(seen: Seen) -> None:
    count, size = seen.plan.counts["candidate"].objects, seen.plan.counts["candidate"].bytes_total
    assert size == len(b"the third")
    figure, words = f"{count_text(count)} {size_text(size)}", "would be deleted"
    for text in (
        seen.page(f"/runs/{seen.plan.run_id}"),
        seen.command("gc", "show", NAME, seen.plan.run_id),
    ):
        assert re.search(f"{words}( named by the plan)? +{figure}", re.sub(r"\s+", " ", text)), text
    assert f"Would be deleted {size_text(size)} {count_text(count, 'file')} by" in seen.page()
    present = seen.command("what-if", NAME, "--policy", '{"default": "keep"}', "--grace", "0s")
    assert re.search(rf"^present +{count} +{size_text(size)} ", present, re.MULTILINE), present

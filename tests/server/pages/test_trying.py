"""Trying policies: commits while one types, bytes by a look, and what is left behind."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx
import pytest

from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.whatif import WhatIf
from ebbtide.retention import Policy
from ebbtide.server.jobs import Jobs, Order
from ebbtide.text import count_text, size_text
from tests.server.pages.conftest import PLACE, Browser, Lake
from tests.server.pages.test_pages import rows_of, text_of
from tests.support.engines import INLINE
from tests.support.lake import NAME
from tests.support.server import eventually

pytestmark = pytest.mark.xdist_group("pages")  # which share a lake

A: dict[str, Any] = {"default": {"keep_last": 1}}
B: dict[str, Any] = {"default": "30d", "branches": {"user-*": "keep"}}


def looked(browser: Browser, page: str) -> httpx.Response:
    """What a look has found, once it has ended."""
    place = re.search(r'data-progress="/ui([^"]+)"', page)
    assert place is not None, text_of(page)
    answers: list[httpx.Response] = []

    def has_ended() -> bool:
        answers.append(browser.get(place[1], headers={"Accept": "application/json"}))
        return bool(answers[-1].json()["ended"])

    eventually(has_ended)
    return answers[-1]


def form_of(lake: Lake) -> EmbeddedRepository:
    context = lake.store.repository(NAME).context
    return EmbeddedRepository(context, store_id=lake.store.store_id)


def what_if(lake: Lake) -> WhatIf:
    """As `ebbtide what-if` says it."""
    options = RunOptions.of(lake.store.settings, unsafe=True, mode="clean")
    collector = Collector(form_of(lake), engine=INLINE, options=options)
    return collector.what_if([Policy.parse(A), Policy.parse(B)])


def test_policies_side_by_side(lake: Lake, admin: Browser) -> None:
    """The same figures as `what-if` has, of commits at once and of bytes in the end. The pages
    leave out the contents of collections, which all policies keep."""
    before = lake.store.repository(NAME).retention.get()
    tried = admin.post(
        f"{PLACE}/policy", policy=json.dumps(A), policy_b=json.dumps(B), action="try"
    )
    assert tried.status_code == 200 and "Effect, if set" in tried.text
    assert "keep_last" in html.unescape(tried.text), "the text stays in the editor"
    found = what_if(lake)
    named = {"Present": found.present, "A": found.others[0], "B": found.others[1]}
    rows = rows_of(tried.text)
    contents = sum(commit.is_content for commit in form_of(lake).roots(None).commits)
    assert contents > 0
    for name, each in named.items():
        counts = (each.active_count - contents, each.expired_count, len(each.lost))
        counted = map(count_text, (*counts, each.regained_count))
        assert " ".join([name, *counted]) in rows
    assert len(found.others[0].lost) > 0
    (branch,) = [row for row in rows if row.startswith("user-bob")]
    for each in named.values():
        (ref,) = [ref for ref in each.by_ref if ref.name == "user-bob"]
        assert f"{ref.kept_count} " in branch and ref.rule in branch
    assert any(row.startswith("B keep 2 ") for row in rows), "by rule"

    answer = looked(admin, tried.text)
    assert answer.json()["ended"] is True, answer.text
    bytes_rows = rows_of(answer.json()["html"])
    assert found.others[0].reclaimable.bytes_total > found.present.reclaimable.bytes_total > 0
    for name, each in named.items():
        (row,) = [row for row in bytes_rows if row.startswith(f"{name} ")]
        size = each.reclaimable.bytes_total
        assert row.startswith(f"{name} {count_text(each.reclaimable.objects)} {size_text(size)} ")
    assert lake.store.repository(NAME).retention.get() == before
    assert form_of(lake).running_id() is None


def test_what_is_typed_is_previewed(admin: Browser) -> None:
    place = f"{PLACE}/policy/preview"
    shown = admin.post(place, policy=json.dumps(A)).json()["html"]
    assert "<html" not in shown and any(row.startswith("A ") for row in rows_of(shown))
    assert not any(row.startswith("B ") for row in rows_of(shown))
    broken = admin.post(place, policy=json.dumps(A), policy_b='{"default": "7"}').json()["html"]
    assert "Policy B: " in broken and "has no unit" in html.unescape(broken)
    assert "<table" not in broken
    hostile = admin.post(place, policy='{"<script>": 1}').json()["html"]
    assert "<script>" not in hostile
    tried = admin.post(f"{PLACE}/policy", policy=json.dumps(A), policy_c="{", action="try")
    assert tried.status_code == 400 and "Policy C: this is not JSON" in html.unescape(tried.text)
    assert "data-progress=" not in tried.text and "keep_last" in html.unescape(tried.text)
    assert admin.get(f"{PLACE}/policy/looks/{'0' * 32}").status_code == 404


def test_one_look_at_a_time_leaves_nothing(lake: Lake) -> None:
    """Of one owner; another's goes on. What was ended had no time to clear anything away."""
    changes: list[int] = []
    jobs = Jobs(changes.append)
    repository = lake.store.repository(NAME)
    order = Order(
        directory=lake.store.directory,
        settings=lake.store.settings,
        repository=NAME,
        repository_id=repository.info.repository_id,
        policies=(Policy.parse(A),),
    )
    looks = [jobs.look(order, owner="ada"), jobs.look(order, owner="bob")]
    files = [job.file for job in looks]
    files[0].directory.mkdir(exist_ok=True)
    (files[0].directory / "left").write_text("x")
    files.append(jobs.look(order, owner="ada").file)
    eventually(lambda: all(file.read().ended for file in files))
    first, other, second = (file.read() for file in files)
    assert first.error is not None and "start it again" in first.error["message"]
    for job in (second, other):
        assert job.error is None and len(job.found) == 2, job.error
    assert not any(file.directory.exists() for file in files)
    assert jobs.of(repository.info.repository_id) == [], "a look is no run"
    assert set(changes) == {0}
    third = jobs.look(order, owner="ada").file
    jobs.close()
    assert third.read().ended and not third.directory.exists()

"""What the pages show of a lake, and what their forms do."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from ebbtide.gc import FOUND, OUTCOMES
from ebbtide.gc.collector import Collector
from ebbtide.gc.parts import Count
from ebbtide.gc.report import COUNTED, RunState
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.job_files import add_job
from ebbtide.server.pages.charts import bars, shares
from ebbtide.server.pages.html import environment
from ebbtide.server.pages.runs import MEANINGS, SWEPT, advice_of
from ebbtide.settings import Settings
from ebbtide.storage import DeleteOutcome, LocalStorage, Retained
from ebbtide.storage.clients import LOCKED
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.text import size_text
from tests.server.pages.conftest import PLACE, Browser, Browsers, Lake, browsing
from tests.support.clock import ManualClock
from tests.support.cold import list_as
from tests.support.lake import HOSTILE, NAME, collector_of, leave_garbage

pytestmark = pytest.mark.xdist_group("pages")  # which share a lake


def text_of(page: str) -> str:
    """What a page says, without its markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def rows_of(page: str) -> list[str]:
    """The rows of its tables, as text."""
    return [text_of(row).strip() for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)]


def all_pages(browser: Browser, place: str) -> Iterator[str]:
    """A list that is cut into pages: each of them, the first one first."""
    while place:
        page = browser.get(place).text
        yield page
        older = re.search(r'rel="next" href="/ui([^"]+)"', page)
        place = html.unescape(older[1]) if older else ""


def test_no_name_is_markup(lake: Lake, admin: Browser) -> None:
    run = f"{PLACE}/runs/{lake.planned}"
    of_lake = (
        *("", "/files", "/files?ref=user-bob", "/commits", "/refs", "/collections", "/explain"),
        *("/refs?kind=tag&state=expiring", "/explain?what=main", "/policy", "/holds"),
        *("/protection", "/usage", "/runs", "/runs/trend", "/trash", "/purges"),
    )
    places = ["", "/trash", run, f"{run}/candidates", f"{run}/charts"]
    for place in (*places, *(f"{PLACE}{each}" for each in of_lake)):
        found = admin.get(place)
        assert found.status_code == 200, place
        assert HOSTILE not in found.text, place
        assert not re.search(r"\sstyle=|\son\w+=|<script(?! src=)", found.text), place
        assert "&lt;admin&gt;" in found.text, "whose session it is"


def test_repositories_and_the_overview(lake: Lake, admin: Browser) -> None:
    first = admin.get("").text
    (row,) = [row for row in rows_of(first) if row.startswith(NAME)]
    assert "persistent" in row and "planned" in row and "196.1 KiB" in row
    assert "<polyline" in first, "two runs make a trend"
    assert "No repository has" in admin.get("?search=nothing").text
    page = admin.get(PLACE).text
    assert "40 files by the newest plan" in text_of(page)
    plan = rf'href="/ui{re.escape(PLACE)}/runs/{lake.planned}"'
    assert re.search(rf"{plan}>196\.1 KiB<", first), "the reclaimable bytes lead to their plan"
    assert re.search(rf"{plan}>40 files by the newest plan<", page)
    assert any(row.startswith("main 30d, keep_monthly 3") for row in rows_of(page))


def test_totals_over_all_repositories(tmp_path: Path) -> None:
    """Those that the visitor may read, whether the list shows them on one page or not."""
    sizes, reclaimable = [], 0
    with new_store(tmp_path) as store, browsing(store) as browsers:
        for name, count in (("one", 3), ("other", 5), ("no-run", 0)):
            made = store.create_repository(name)
            leave_garbage(made, branch="main", count=count)
            if count:
                made.objects.put("main", "kept", b"kept")
                made.commits.commit("main", "one")
                report = collector_of(store, made).plan()
                sizes.append(report.to_json()["listed_bytes"])
                reclaimable += report.to_json()["candidate_bytes"]
        admin = browsers()
        assert 'data-fragment="/ui/totals"' in admin.get("").text
        totals = text_of(admin.get("/totals").text)
        assert "Repositories 3 that you may read" in totals
        assert f"Size of all {size_text(sum(sizes))} without 1, whose size no plan tells" in totals
        assert f"Would be deleted {size_text(reclaimable)} by the newest plans" in totals
        assert reclaimable > 40_000
        assert "<html" not in admin.get("/totals", headers={"x-fragment": "1"}).text
        assert "Repositories 0" in text_of(browsers(Role.NONE).get("/totals").text)


def test_a_single_bar_is_no_chart() -> None:
    macros: Any = environment().get_template("macros.html").module
    rows = bars([("object", 3, 30), ("range", 1, 10)])
    both, one = (macros.bar_table("By kind", "Kind", some) for some in (rows, rows[:1]))
    assert both.count("<svg") == 2 and "<svg" not in one and "object" in one
    shown = shares([("main", "30d", 3, 1), ("dev", "7d", 1, 0)])
    both, one = (macros.share_table("By branch", some) for some in (shown, shown[:1]))
    assert both.count("<svg") == 2 and "<svg" not in one and "main" in one


def test_a_notice_ends_with_what_it_tells(lake: Lake, admin: Browser) -> None:
    for notice in ("run_started", "undo_started", "aside_purged"):
        page = admin.get(f"{PLACE}/runs/{lake.swept}?notice={notice}").text
        assert 'role="status"' not in page, notice
    assert 'role="status"' in admin.get(f"{PLACE}/files?notice=committed").text


def test_commits_are_told_apart_and_say_why(lake: Lake, admin: Browser) -> None:
    page = admin.get(f"{PLACE}/commits").text
    for fate, shape in (("kept", "<circle cx"), ("gone", "<path d=")):
        (row, *_) = re.findall(rf'<li class="commit {fate}".*?</li>', page, re.DOTALL)
        assert shape in row
        reason = re.search(r'aria-describedby="(why-\d+)".*id="\1">([^<]+)<', row, re.DOTALL)
        assert reason is not None and reason[2]
    assert "head of branch main" in page
    assert f"run {lake.swept} deleted its data" in page
    assert html.escape(HOSTILE) in page, "in a message"
    for ref, state in (("experiment", "expiring"), ("also-dropped", "trashed")):
        assert re.search(rf'title="branch {ref}, {state}"', page)


def test_windows_of_the_history(lake: Lake, admin: Browser) -> None:
    """All windows together show each commit once, the newest first."""
    repository = lake.store.repository(NAME)
    pages = all_pages(admin, f"{PLACE}/commits")
    found = [each for page in pages for each in re.findall(r'id="c-([0-9a-f]+)"', page)]
    assert len(found) == len(set(found)) > 60
    dates = [repository.commits.get(commit_id).created_at for commit_id in found]
    assert dates == sorted(dates, reverse=True)

    head = repository.branches.get("user-ada").commit_id
    at = admin.get(f"{PLACE}/commits?at=user-ada").text
    assert re.findall(r'id="c-([0-9a-f]+)"', at)[0] == head
    day = dates[30].date()
    first = re.findall(r'id="c-([0-9a-f]+)"', admin.get(f"{PLACE}/commits?date={day}").text)[0]
    assert repository.commits.get(first).created_at.date() == day
    for query, status in (
        ("date=x", 400),
        ("date=9999-12-31", 200),
        ("date=0001-01-01", 200),
        ("at=nothing", 404),
        (f"from={'0' * 32}", 404),
    ):
        assert admin.get(f"{PLACE}/commits?{query}").status_code == status, query


def test_refs_by_state(admin: Browser) -> None:
    def names(query: str) -> list[str]:
        return [row.split()[0] for row in rows_of(admin.get(f"{PLACE}/refs?{query}").text)[1:]]

    assert names("state=trashed") == ["also-dropped", "dropped"]
    assert names("state=expiring") == ["experiment"]
    assert names("state=persistent&prefix=user") == ["user-ada", "user-bob"]
    assert names("kind=tag") == ["old", "v1.0", "v1.1-rc"]
    assert admin.get(f"{PLACE}/refs?kind=x").status_code == 400
    assert admin.get(f"{PLACE}/refs?state=gone").status_code == 400


def test_collections(lake: Lake, admin: Browser) -> None:
    projects = lake.store.repository(NAME).projects
    outer, inner = projects.find("genomes"), projects.find("genomes/2026")
    assert any("genomes" in row for row in rows_of(admin.get(f"{PLACE}/collections").text))
    page = admin.get(f"{PLACE}/collections?project={outer.project_id}").text
    assert [row.split()[0] for row in rows_of(page)[1:]] == ["2026", "abandoned"]
    assert "trashed" in rows_of(page)[2]
    page = admin.get(f"{PLACE}/collections?project={inner.project_id}").text
    states = {state.value for state in LifecycleState if f"badge {state.value}" in page}
    assert states == {"persistent", "expiring", "trashed"}
    assert admin.get(f"{PLACE}/collections?project={'0' * 32}").status_code == 404


def test_a_run(lake: Lake, admin: Browser) -> None:
    planned = admin.get(f"{PLACE}/runs/{lake.planned}").text
    assert "Sweep: delete the files that this plan names" in planned
    assert "Sweep:" not in lake.browsers(Role.WRITER).get(f"{PLACE}/runs/{lake.planned}").text
    swept = text_of(admin.get(f"{PLACE}/runs/{lake.swept}").text)
    assert "Sweep:" not in swept and "needed again, kept" in swept
    progress = admin.get(f"{PLACE}/runs/{lake.swept}/progress").json()
    assert progress["state"] == "swept" and progress["ended"] is True
    assert admin.get(f"{PLACE}/runs/{'0' * 32}").status_code == 404


def test_sizes_that_nobody_asked_for(tmp_path: Path) -> None:
    """A repository whose runs ask for those of candidates alone: none is made up."""
    with new_store(tmp_path, sizes="candidates") as store:
        collector = garbage_collector(store)
        first, second = collector.run(), collector.plan()
        assert not first.counts["listed"].sized
        assert first.counts["deleted"].sized
        with browsing(store) as browsers:
            admin = browsers()
            runs = [f"{PLACE}/runs/{run.run_id}" for run in (first, second)]
            for place in ("", PLACE, *runs):
                text = text_of(admin.get(place).text)
                assert "unknown" in text, place
                assert "None" not in text, place


def new_store(directory: Path, **more: Any) -> Store:
    settings = {"reclaim": False, "spark_master": "none", "lease_ttl": timedelta(0)}
    return Store.init(directory / "store", settings=Settings(**settings | more))


def garbage_collector(store: Store) -> Collector:
    """A collector of a repository with a file, and some that were staged and dropped."""
    lake = store.create_repository(NAME)
    lake.objects.put("main", "kept", b"kept")
    lake.commits.commit("main", "one")
    leave_garbage(lake, branch="main", count=3)
    return collector_of(store, lake)


def test_storage_classes_and_locks_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory stands for a bucket with cold files and locks."""
    list_as(monkeypatch, "Cool")
    monkeypatch.setattr(
        LocalStorage,
        "delete_versions",
        lambda _self, named: [DeleteOutcome(each, "failed", f"{LOCKED}x") for each in named],
    )
    with new_store(tmp_path, delete_versions=True) as store:
        run = garbage_collector(store).run()
        assert run.counts["locked"] == run.counts["failed"] != Count()
        with browsing(store) as browsers:
            page = browsers().get(f"{PLACE}/runs/{run.run_id}").text
    rows = rows_of(page)
    number = run.counts["candidate"].objects
    (row,) = [each for each in rows if each.startswith("Cool")]
    assert row.startswith(f"Cool 30 days at least are billed {number} ")
    assert any(each.startswith("kept by a lock of the failed ones: hidden") for each in rows)
    assert "its minimum of 30 days" in text_of(page)


def test_every_figure_of_a_run_is_explained() -> None:
    assert {*FOUND, *OUTCOMES, "locked"} == set(COUNTED) > set(MEANINGS)
    assert set(SWEPT) | {"planned", "refused"} == set(get_args(RunState))


def test_a_run_under_way(lake: Lake) -> None:
    with browsing(lake.store) as browsers:
        browser = browsers(Role.READER)
        repository_id, run_id = lake.store.repository(NAME).info.repository_id, "f" * 32
        job = add_job(browser.jobs._directory, repository_id)
        ended = '[0.0, "start", "list"]', '[1.25, "end", "list"]'
        job.path.write_text("\n".join((job.path.read_text(), *ended)))
        job.tell("run_id", run_id)
        job.tell("start", "mark <b>")
        page = browser.get(f"{PLACE}/runs/{run_id}?notice=run_started").text
        assert 'role="status"' in page, "the run goes on"
        assert f'data-progress="/ui{PLACE}/runs/{run_id}/progress"' in page
        assert "badge running" in page and "mark &lt;b&gt;" in page and "1.2 s" in page
        found = browser.get(f"{PLACE}/runs/{run_id}/progress").json()
        assert found["state"] == "running" and not found["ended"]
        assert re.findall(r'<li class="(\w+)">', found["html"]) == ["ended", "going"]
        assert "under way" in browser.get(f"{PLACE}/runs").text
        job.remove()


def test_charts(lake: Lake, admin: Browser) -> None:
    place = f"{PLACE}/runs/{lake.planned}/charts"
    fragment = admin.get(place, headers={"X-Fragment": "1"}).text
    assert "<html" not in fragment and "<html" in admin.get(place).text
    rows = rows_of(fragment)
    assert any(re.match(r"under a day 40 19\d\.\d KiB", row) for row in rows), rows
    assert any(row.startswith("object 40") for row in rows)
    assert any(row.startswith("data, written from ") for row in rows)


def test_candidates(lake: Lake, admin: Browser) -> None:
    """`test_candidates.py` has the filters. Garbage that was staged and never committed has only
    an address; a swept run's files have their paths, and addresses are one click away."""
    place = f"{PLACE}/runs/{lake.planned}/candidates"
    page = admin.get(place).text
    rows = rows_of(page)[1:]
    assert len(rows) == 40 and all(row.startswith("data/") for row in rows)
    one = rows[7].split()[0]
    assert [row.split()[0] for row in rows_of(admin.get(f"{place}?search={one}").text)[1:]] == [one]
    asked = f"{place}?kind=object&bytes_min=5030"
    assert len(rows_of(admin.get(asked).text)[1:]) == 10
    assert "No candidate fits" in admin.get(f"{place}?bytes_min=1+MiB").text
    for wrong in ("bytes_min=-1", "bytes_min=much", "position=-1", "position=x"):
        assert admin.get(f"{place}?{wrong}").status_code == 400, wrong
    rows = rows_of(admin.get(f"{place}?addresses=yes").text)[1:]
    assert len(rows) == 40 and all(row.startswith("no commit has it data/") for row in rows)
    swept = f"{PLACE}/runs/{lake.swept}/candidates?kind=object"
    named = r"tables/[\w-]+/day=\d+\.parquet in commit [0-9a-f]+ "
    for more, pattern in (("", f"{named}object"), ("&addresses=yes", f"{named}data/.* object")):
        rows = rows_of(admin.get(swept + more).text)[1:]
        assert any(re.match(pattern, row) for row in rows), (more, rows)


def test_what_a_form_of_a_run_says_is_checked(lake: Lake, admin: Browser) -> None:
    planned, swept = f"{PLACE}/runs/{lake.planned}", f"{PLACE}/runs/{lake.swept}"
    before = admin.get(f"{planned}/progress").json()
    for place, fields, problem in (
        (f"{PLACE}/runs", {"action": "explode"}, "Choose the action of the run"),
        (f"{PLACE}/runs", {"mode": "wild"}, "is no value for mode"),
        (f"{PLACE}/runs", {"grace": "5"}, "has no unit"),
        (f"{PLACE}/runs", {"grace": "1s"}, "grace"),
        (f"{planned}/sweep", {"confirmation": "lak"}, "Nothing was deleted"),
        (f"{planned}/sweep", {"confirmation": NAME, "quarantine": "7"}, "has no unit"),
        (f"{swept}/purge", {"confirmation": "lak"}, "Nothing was deleted"),
    ):
        answer = admin.post(place, **fields)
        assert answer.status_code == 400 and problem in html.unescape(answer.text), fields
    assert admin.get(f"{planned}/progress").json() == before
    assert "Undo: restore the files" not in admin.get(swept).text
    undone = admin.post(f"{swept}/undo")
    assert undone.status_code == 404 and "has no files in quarantine" in undone.text


def test_what_keeps_what(lake: Lake, admin: Browser) -> None:
    page = admin.get(f"{PLACE}/runs/{lake.planned}/candidates").text
    link = re.search(rf'href="/ui({PLACE}/explain[^"]+)"', page)
    assert link is not None
    assert "Nothing keeps it" in text_of(admin.get(html.unescape(link[1])).text)
    head = text_of(admin.get(f"{PLACE}/explain?what=main").text)
    assert "never, while nothing changes" in head and "In the history of" in head
    repository = lake.store.repository(NAME)
    entry = next(repository.objects.walk("main"))
    asked = admin.get(f"{PLACE}/explain", params={"what": "main", "path": entry.path}).text
    assert entry.address in asked and "What keeps it, the nearest first" in asked
    wrong = admin.get(f"{PLACE}/explain?what=nothing-of-that-name")
    assert wrong.status_code == 404 and "Not done" in wrong.text


def test_the_policy_editor(store: Store, browsers: Browsers) -> None:
    lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    admin, reader = browsers(), browsers(Role.READER)
    assert "everything is kept" in admin.get("/repositories/lake/policy").text
    place = "/repositories/lake/policy"
    for wrong, problem in (
        ("{", "This is not JSON"),
        ("[" * 100_000, "This is not JSON"),
        ('{"default": "</textarea><script>"}', "default"),
    ):
        answer = admin.post(place, policy=wrong)
        assert answer.status_code == 400 and problem in html.unescape(answer.text)
        assert "<script>" not in answer.text
        assert html.escape(wrong[:50], quote=False) in answer.text.replace("&#34;", '"')
    good, wrong = '{"default": "7d"}', '{"default": "7"}'
    for fields, marked in (
        ({"policy": good, "policy_b": wrong, "action": "try"}, "policy_b"),
        ({"policy": wrong}, "policy"),
    ):
        answer = admin.post(place, **fields)
        assert answer.status_code == 400 and "has no unit" in answer.text
        assert re.findall(r'<textarea id="(\w+)"[^>]* aria-invalid', answer.text) == [marked]
    assert lake.retention.get() is None

    answer = admin.post(place, policy='{"default": "7d", "branches": {"mian": "3d"}}')
    assert "matches no branch" in answer.text and "mian" in answer.text
    answer = admin.post(place, policy='{"default": "9d"}')
    assert answer.status_code == 303
    found = lake.retention.get()
    assert found is not None and found.default is not None
    assert found.default.keep_within == timedelta(days=9)
    shown = reader.get(place).text
    assert '"9d"' in html.unescape(shown) and "readonly" in shown
    assert admin.post(f"{place}/unset").status_code == 303
    assert lake.retention.get() is None


def test_bringing_back(store: Store, browsers: Browsers, clock: ManualClock) -> None:
    lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    branch = lake.branches.create("dev", "main")
    lake.tags.create("v1", "main")
    project = lake.projects.create("project")
    collection = lake.collections.create(project.project_id, "collection")
    lake.branches.delete("dev")
    lake.tags.delete("v1")
    lake.collections.delete(collection.collection_id)
    lake.projects.delete(project.project_id)
    lake.branches.create("dev", "main")
    clock.advance(timedelta(days=2))
    writer, reader = browsers(Role.WRITER), browsers(Role.READER)
    place = "/repositories/lake/trash"
    page = text_of(writer.get(place).text)
    assert page.count("5 days left") == 4
    assert "Restore" not in re.sub("(?s)<head>.*</head>", "", reader.get(place).text)

    answer = writer.post(f"{place}/branch/{branch.ref_id}/restore")
    assert answer.status_code == 409 and "There is a branch" in text_of(answer.text)
    writer.post(f"{place}/branch/{branch.ref_id}/restore", unique="yes")
    writer.post(f"{place}/project/{project.project_id}/restore")
    done = writer.post(f"{place}/collection/{collection.collection_id}/restore")
    assert done.headers["location"] == "/ui/repositories/lake/trash?notice=restored"
    assert [each.name for each in lake.branches.list()] == ["dev", "dev-2", "main"]
    assert lake.collections.get(collection.collection_id).state is LifecycleState.PERSISTENT
    assert writer.post(f"{place}/nothing/x/restore").status_code == 404

    store.catalog.delete("lake")
    admin = browsers()
    assert "lake" in admin.get("/trash").text
    answer = admin.post(f"/trash/{lake.info.repository_id}/restore")
    assert answer.headers["location"] == "/ui/repositories/lake?notice=restored"
    assert store.repository("lake").info.repository_id == lake.info.repository_id


def test_a_purge_is_confirmed(store: Store, browsers: Browsers) -> None:
    lake = store.create_repository("lake")
    lake.objects.put("main", "secret", b"secret")
    lake.objects.put("main", "kept", b"kept")
    lake.commits.commit("main", "oops")
    admin, place = browsers(), "/repositories/lake/purges"
    named = {"paths": "main:secret", "reason": "gave a <name> away", "all_history": "yes"}
    for fields, problem in (
        ({**named, "reason": " "}, "needs a reason"),
        ({**named, "paths": "main"}, "REF:PATH"),
        ({**named, "paths": "main:nothing"}, "nothing"),
        ({**named, "action": "purge"}, "Nothing was changed"),
        ({**named, "action": "purge", "confirmation": "main"}, "Nothing was changed"),
    ):
        answer = admin.post(place, **fields)
        assert 400 <= answer.status_code < 500 and problem in html.unescape(answer.text), fields
        assert fields["paths"] in answer.text, "what was written stays in the form"
    assert "Nothing was purged" in admin.get(place).text

    planned = admin.post(place, **named)
    assert planned.status_code == 303
    shown = planned.headers["location"].removeprefix("/ui").partition("?")[0]
    assert "Carry it out" in admin.get(shown).text
    assert admin.get(f"{shown}/progress").json()["state"] == "planned"
    assert lake.objects.open("main", "kept") is not None
    refused = admin.post(f"{shown}/resume", confirmation="nothing")
    assert refused.status_code == 400
    assert admin.post(f"{shown}/resume", confirmation="lake").status_code == 303
    done = admin.get(shown).text
    assert "badge done" in done and "gave a &lt;name&gt; away" in done
    assert admin.post(f"{shown}/resume", confirmation="lake").status_code == 409
    assert admin.get(shown.replace("lake", "pond")).status_code == 404
    assert [row for row in rows_of(admin.get(place).text) if "done" in row]


def test_a_purge_that_keeps_what_others_need(
    store: Store, browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a storage that keeps versions."""
    kept = Retained("versions", "the bucket keeps versions")
    monkeypatch.setattr(LocalStorage, "retained", lambda _self: kept)
    lake = store.create_repository("lake")
    for name in ("alone", "shared"):
        lake.objects.put("main", name, name.encode())
    first = lake.commits.commit("main", "both").commit_id
    lake.objects.delete("main", "alone")
    lake.commits.commit("main", "one")
    admin, place = browsers(), "/repositories/lake/purges"
    named = {"commits": first, "reason": "a mistake", "keep_shared": "yes"}
    refused = admin.post(place, **named, action="purge", confirmation="main")
    assert 'name="keep_shared" value="yes" checked' in refused.text
    for more, is_asked in (({"delete_versions": "yes"}, True), ({}, False)):
        planned = admin.post(place, **named, **more)
        shown = planned.headers["location"].removeprefix("/ui").partition("?")[0]
        text = text_of(admin.get(shown).text)
        assert "kept for the data that needs them" in text
        assert ("The storage keeps versions" in text) is not is_asked
        assert ("Versions deleted too" in text) is is_asked
    assert admin.post(f"{shown}/resume", confirmation="lake").status_code == 303
    done = admin.get(shown).text
    assert "Kept for other data 6 B 1 object" in text_of(done) and "badge done" in done
    assert b"".join(lake.objects.stream("main", "shared")) == b"shared"


def test_pages_count_the_same_commits(admin: Browser, lake: Lake) -> None:
    """The contents of collections are no commits of the history, on any page."""
    overview = text_of(admin.get(PLACE).text)
    known = re.search(
        r"Commits (\d+) (\d+ commits kept, 0 expire next, \d+ quarantined or gone)", overview
    )
    assert known is not None
    policy = text_of(admin.get(f"{PLACE}/policy").text)
    assert known[2] in policy
    assert f"{known[1]} commits by date" in text_of(admin.get(f"{PLACE}/commits").text)
    assert "(dangling)" not in overview and "(dangling)" not in policy
    run = text_of(admin.get(f"{PLACE}/runs/{lake.planned}").text)
    assert "(collections) contents that collections need 4 0" in run


def test_a_plan_that_names_nothing_offers_no_sweep(store: Store, browsers: Browsers) -> None:
    lake = store.create_repository("lake")
    run = collector_of(store, lake).plan().run_id
    page = browsers().get(f"/repositories/lake/runs/{run}").text
    assert "Nothing is to be deleted" in page
    assert "/sweep" not in page and "/undo" not in page and "/candidates" not in page


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    """A plan above the allowed share leads to the box that allows it. Nothing is deleted before."""
    with new_store(tmp_path, grace=timedelta(0)) as store:
        lake = store.create_repository("lake")
        leave_garbage(lake, branch="main")
        made = collector_of(store, lake, allow_share=False).plan()
        assert made.state == "refused", made
        place = f"/repositories/lake/runs/{made.run_id}"
        with browsing(store) as browsers:
            admin = browsers()
            page = admin.get(place).text
            assert 'href="#sweep"' in page and 'id="sweep" open>' in page
            assert 'name="allow_share"' in page
            assert "This needs the role admin" in browsers(Role.READER).get(place).text
            undone = admin.post(f"{place}/undo")
            assert undone.status_code == 404 and "Sweep all the same" in undone.text


def test_each_refusal_leads_on(admin: Browser) -> None:
    for kind in ("plan_used", "plan_corrupt", "zero_refs", "clock_skew", "lost_commits"):
        for can_sweep in (False, True):
            advice = advice_of(kind, NAME, can_sweep=can_sweep)
            if advice.url.startswith("#"):
                assert can_sweep and advice.url == "#sweep", kind
            else:
                assert admin.get(advice.url.removeprefix("/ui")).status_code == 200, kind
    assert 'id="start" open' in admin.get(f"{PLACE}/runs?form=start").text

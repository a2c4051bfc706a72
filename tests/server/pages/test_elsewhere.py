"""Repositories outside of the store, which the settings name: their runs are shown and started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ebbtide.formats.icechunk.ids import id_text
from ebbtide.formats.icechunk.snapshots import CHUNKS_PREFIX
from ebbtide.formats.lakefs.repository import GRACE
from ebbtide.formats.notes import read_policy, write_policy
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.formats.icechunk.test_sessions import commit
from tests.formats.lakefs.world import DAY, LakefsWorld, open_lakefs_world
from tests.server.pages.conftest import RUN, Browser, Browsers, browsing
from tests.server.pages.test_pages import rows_of, text_of
from tests.support.icechunk import Contents, contents, create_repository
from tests.support.icechunk_lake import IcechunkLake
from tests.support.randomized import choose
from tests.support.server import eventually

LOOSE = 3
CHUNK_BYTES = 100


@dataclass
class Elsewhere:
    """An Icechunk repository with chunks to collect, and browsers of a server that names it."""

    path: Path
    browsers: Browsers
    store: Store
    loose: list[str]
    before: Contents

    @property
    def name(self) -> str:
        return f"icechunk:{self.path}"

    @property
    def place(self) -> str:
        return f"/repositories/{quote(self.name, safe='')}"

    @property
    def left(self) -> list[str]:
        return [each for each in self.loose if (self.path / each).exists()]


@pytest.fixture
def elsewhere(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Elsewhere]:
    """Of a version of Icechunk by chance, unless a test names one."""
    path = tmp_path / "weather"
    version = getattr(request, "param", None) or choose(request.node.nodeid, (1, 2))
    create_repository(path, version)
    loose = [f"{CHUNKS_PREFIX}{id_text(bytes([number]) * 12)}" for number in range(LOOSE)]
    (path / "chunks").mkdir(exist_ok=True)
    for each in loose:
        (path / each).write_bytes(b"x" * CHUNK_BYTES)
    IcechunkLake(path).age()
    settings = Settings(
        reclaim=False,
        spark_master="none",
        share_max=1.0,
        icechunk_grace=timedelta(hours=1),
        server_repositories=f"icechunk:{path} icechunk:{tmp_path}/other",
    )
    with (
        Store.init(tmp_path / "store", settings=settings) as store,
        browsing(store) as browsers,
    ):
        yield Elsewhere(path, browsers, store, loose, contents(path))


def started(browser: Browser, elsewhere: Elsewhere, place: str, **fields: str) -> str:
    """The run that a form begins or goes on with, when its job is over."""
    answer = browser.post(f"{elsewhere.place}/{place}", **fields)
    assert answer.status_code == 303, text_of(answer.text)
    found = RUN.search(answer.headers["location"])
    assert found is not None
    eventually(lambda: browser.get(f"{elsewhere.place}/runs/{found[1]}/progress").json()["ended"])
    return found[1]


def test_the_last_runs_of_all(elsewhere: Elsewhere) -> None:
    """One page has those of the store and those elsewhere; what failed comes first."""
    admin = elsewhere.browsers()
    elsewhere.store.create_repository("lake")
    run_id = started(admin, elsewhere, "runs", action="plan")
    assert 'href="/ui/runs"' in admin.get("").text
    page = admin.get("/runs").text
    other = elsewhere.name.replace("weather", "other")
    _, *rows = rows_of(page)
    assert rows[0].startswith(f"{other} not read ") and "other" in rows[0].split("read ")[1]
    assert rows[1] == "lake no run yet"
    assert re.fullmatch(
        rf"{elsewhere.name} planned .* UTC {LOOSE * CHUNK_BYTES} B 0 B 0 B", rows[2]
    )
    assert f'href="/ui{elsewhere.place}/runs/{run_id}"' in page
    assert "1 repository needs a look" in text_of(page)
    reader = elsewhere.browsers(Role.NONE)
    assert "no repository that you may read" in text_of(reader.get("/runs").text)


def test_from_a_plan_to_an_undo(elsewhere: Elsewhere) -> None:
    """All by pages: nothing is deleted that is needed, and what went comes back."""
    admin = elsewhere.browsers()
    assert f'href="/ui{elsewhere.place}/runs"' in admin.get("").text
    assert admin.get(elsewhere.place).headers["location"] == f"/ui{elsewhere.place}/runs"

    run_id = started(admin, elsewhere, "runs", action="plan")
    page = admin.get(f"{elsewhere.place}/runs/{run_id}").text
    assert f"{LOOSE} candidates: look at them" in text_of(page)
    rows = rows_of(admin.get(f"{elsewhere.place}/runs/{run_id}/candidates").text)[1:]
    assert {row.split()[0] for row in rows} == {*elsewhere.loose}
    charts = text_of(admin.get(f"{elsewhere.place}/runs/{run_id}/charts").text)
    assert "7 to 30 days" in charts and "chunk" in charts
    why = text_of(admin.get(f"{elsewhere.place}/explain", params={"what": "main"}).text)
    assert "In the history of" in why
    assert elsewhere.left == elsewhere.loose

    typed = {"confirmation": elsewhere.name, "quarantine": "7d"}
    assert started(admin, elsewhere, f"runs/{run_id}/sweep", **typed) == run_id
    assert elsewhere.left == []
    assert contents(elsewhere.path) == elsewhere.before
    gone = admin.get(f"{elsewhere.place}/explain", params={"what": elsewhere.loose[0]}).text
    assert "quarantined it" in text_of(gone)

    started(admin, elsewhere, f"runs/{run_id}/undo")
    assert elsewhere.left == elsewhere.loose
    assert "undone" in text_of(admin.get(f"{elsewhere.place}/runs").text)


def test_a_run_without_a_quarantine(elsewhere: Elsewhere) -> None:
    admin = elsewhere.browsers()
    run_id = started(admin, elsewhere, "runs", action="run", quarantine="none")
    assert elsewhere.left == []
    page = text_of(admin.get(f"{elsewhere.place}/runs/{run_id}").text)
    assert "swept" in page and "Undo" not in page


@pytest.mark.parametrize("elsewhere", [2], indirect=True)
def test_lost_commits_are_accepted_by_who_is_told_of_them(elsewhere: Elsewhere) -> None:
    """By the form that the refusal leads to, and by the API. No other form offers it."""
    admin, reader = elsewhere.browsers(), elsewhere.browsers(Role.READER)
    saved = (elsewhere.path / "repo").read_bytes()
    commit(elsewhere.path, 9)
    started(admin, elsewhere, "runs", action="run", quarantine="none")
    (elsewhere.path / "repo").write_bytes(saved)
    IcechunkLake(elsewhere.path).age()

    refused = started(admin, elsewhere, "runs", action="plan")
    page = admin.get(f"{elsewhere.place}/runs/{refused}").text
    assert "lack 1 commit that run" in text_of(page)
    assert "Restore the newer database" in text_of(page)
    leads = re.search(r'href="/ui(/[^"#]+runs\?form=accepting)#start"', page)
    assert leads is not None
    assert "needs the role admin" in text_of(reader.get(f"{elsewhere.place}/runs/{refused}").text)
    box = 'name="accept_lost_commits"'
    assert box in admin.get(leads[1]).text
    assert box not in admin.get(f"{elsewhere.place}/runs?form=start").text
    told = admin.post(
        f"{elsewhere.place}/runs", action="plan", grace="soon", accept_lost_commits="yes"
    )
    assert told.status_code == 400 and f'{box} value="yes" checked' in told.text

    accepted = started(admin, elsewhere, "runs", action="plan", accept_lost_commits="yes")
    assert "planned" in text_of(admin.get(f"{elsewhere.place}/runs/{accepted}").text)

    pair, http = elsewhere.store.keys.create(Role.ADMIN), elsewhere.browsers(None).http
    answer = http.post(
        f"/api/v1{elsewhere.place}/gc/runs",
        json={"dry_run": True, "accept_lost_commits": True},
        auth=(pair.key.access_key_id, pair.secret),
    )
    assert answer.status_code == 202, answer.text
    place = f"{elsewhere.place}/runs/{answer.json()['run_id']}"
    eventually(lambda: admin.get(f"{place}/progress").json()["ended"])
    assert "planned" in text_of(admin.get(place).text)


def test_only_what_the_settings_name(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Whoever has a key could read any directory otherwise. Of those that are named, one that is
    not there keeps nobody from the others."""
    reader = elsewhere.browsers(Role.READER)
    for other in (f"icechunk:{tmp_path}", f"icechunk:{elsewhere.path}/", "lakefs:x"):
        answer = reader.get(f"/repositories/{quote(other, safe='')}/runs")
        assert answer.status_code == 404
        assert "EBBTIDE_SERVER_REPOSITORIES does not name" in text_of(answer.text)
    assert reader.post(f"{elsewhere.place}/runs", action="plan").status_code == 403
    missing = reader.get(f"/repositories/{quote(f'icechunk:{tmp_path}/other', safe='')}/runs")
    assert missing.status_code in (404, 409) and "Icechunk" in text_of(missing.text)
    assert reader.get("").status_code == 200

    page = reader.get(f"{elsewhere.place}/runs").text
    (sections,) = re.findall(r'<nav class="sections".*?</nav>', page, re.DOTALL)
    assert re.findall(r">([^<]+)</a></li>", sections) == ["Runs", "Usage", "Explain"]
    for section in ("files", "commits", "refs", "collections", "policy", "trash"):
        assert reader.get(f"{elsewhere.place}/{section}").status_code == 404
    assert "has no policy" in text_of(reader.get(f"{elsewhere.place}/policy").text)
    assert "/policy" not in page
    assert "No repository has" in reader.get("?search=nothing").text
    assert elsewhere.name in reader.get("?search=weather").text


def test_what_a_delta_table_tells(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    for number in range(3):
        write_deltalake(str(path), pa.table({"id": [number]}), mode="overwrite")
    file = DeltaTable(str(path), version=0).file_uris()[0].rpartition("/")[2]
    write_policy(open_storage(str(path)), Policy.parse({"default": {"keep_last": 2}}))
    settings = Settings(
        reclaim=False, spark_master="none", server_repositories=f"delta:{path} delta:/no"
    )
    place = f"/repositories/{quote(f'delta:{path}', safe='')}/explain"
    with Store.init(tmp_path / "store", settings=settings) as store, browsing(store) as browsers:
        reader = browsers(Role.READER)
        found = text_of(reader.get(place, params={"what": file}).text)
        assert "version 0 needs it; version 1 (WRITE) does not" in found
        assert "the policy has not kept any of them since" in found
        commit = text_of(reader.get(place, params={"what": "0"}).text)
        assert "the policy has not kept it since" in commit


@dataclass
class Lake:
    """A repository of a lakeFS server, with two commits of `main` that are ten days apart, under
    lakeFS's rules of seven days."""

    world: LakefsWorld
    browsers: Browsers
    place: str = f"/repositories/{quote('lakefs:lake', safe='')}/policy"

    def written(self) -> object:
        found = read_policy(self.world.state.storage)
        return None if found is None else found.to_mapping()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    settings = Settings(reclaim=False, spark_master="none", server_repositories="lakefs:lake")
    with (
        open_lakefs_world() as world,
        Store.init(tmp_path / "store", settings=settings) as store,
        browsing(store) as browsers,
    ):
        for content in (b"old", b"new"):
            world.state.upload("main", "a", content)
            world.state.commit("main")
            world.grow_old(10 * DAY)
        monkeypatch.setattr(
            "ebbtide.formats.lakefs.scheme.LakefsScheme.open",
            lambda *_, **__: (world.repository(), GRACE),
        )
        yield Lake(world, browsers)


def test_the_policy_of_a_lakefs_repository(lake: Lake) -> None:
    """Shown, tried, set and dropped by pages; without one, lakeFS's own rules are shown, if any."""
    admin, reader = lake.browsers(), lake.browsers(Role.READER)
    assert reader.get(lake.place).status_code == 200
    assert reader.post(lake.place, policy='{"default": "1d"}').status_code == 403
    assert lake.written() is None
    page = admin.get(lake.place).text
    assert "lakeFS's own rules apply" in text_of(page).replace("&#39;", "'")
    assert "&#34;default&#34;: &#34;7d&#34;" in page
    assert "data-preview=" not in page, "each look makes the server write a list of refs"
    active = re.search(r"(\d+) commits? kept, (\d+) expires? next", text_of(page))
    assert active is not None and int(active[2]) > 0

    found = admin.post(f"{lake.place}/preview", policy='{"default": "90d"}').json()["html"]
    rows = {row.split()[0]: row.split()[1:3] for row in rows_of(found)[1:3]}
    assert rows["Present"] == [active[1], active[2]]
    assert rows["A"] == [str(int(active[1]) + int(active[2])), "0"]
    assert lake.written() is None, "nothing is set by looking"

    assert admin.post(lake.place, policy='{"default": "90d"}').status_code == 303
    assert lake.written() == {"mode": "age", "default": "90d", "tags": "keep"}
    page = text_of(admin.get(lake.place).text)
    assert "0 expire next" in page and "No policy is set here" not in page
    answer = admin.post(lake.place, policy='{"default": "90d", "branches": {"tmp-*": "1d"}}')
    assert "matches no branch" in text_of(answer.text)

    assert admin.post(f"{lake.place}/unset").status_code == 303
    assert lake.written() is None

    lake.world.state.rules = None
    page = text_of(admin.get(lake.place).text)
    assert "everything is kept, and runs are refused" in page
    assert admin.post(lake.place, policy='{"default": "30d"}').status_code == 303
    assert "runs are refused" not in text_of(admin.get(lake.place).text)

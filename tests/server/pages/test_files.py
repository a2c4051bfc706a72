"""Repositories, files, commits, branches and tags, made and deleted on the pages."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.uploads import FIELD_BYTES_MAX
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.server.pages.conftest import ORIGIN, Browser, Browsers
from tests.server.pages.test_pages import all_pages, rows_of, text_of
from tests.support.clock import ManualClock
from tests.support.lake import HOSTILE

PLACE = "/repositories/lake"
FILES = f"{PLACE}/files"


@pytest.fixture
def lake(store: Store) -> Repository:
    return store.create_repository("lake", storage_url=f"memory:{new_id()}")


def upload(
    browser: Browser,
    filename: str,
    content: bytes,
    *,
    origin: str = ORIGIN["Origin"],
    **fields: str,
) -> httpx.Response:
    """As the form sends it: the fields first, then the file."""
    data = {"form_token": browser.token(), "branch": "main"} | fields
    files = {"content": (filename, content, "text/csv")}
    headers = {"Origin": origin}
    return browser.http.post(f"/ui{FILES}/upload", data=data, files=files, headers=headers)


def paths(lake: Repository, ref: str = "main") -> list[str]:
    return [entry.path for entry in lake.objects.walk(ref)]


def test_a_file_is_uploaded(lake: Repository, writer: Browser) -> None:
    for size in (0, 10, 3 * 1024 * 1024):
        content = (bytes(range(256)) * (size // 256 + 1))[:size]
        done = upload(writer, "größe 1.csv", content, prefix="raw/")
        assert done.status_code == 303, done.text
        assert done.headers["location"].endswith("/files?ref=main&prefix=raw%2F&notice=uploaded")
        entry = lake.objects.stat("main", "raw/größe 1.csv")
        assert entry.content_type == "text/csv"
        assert lake.objects.get("main", entry.path) == content
    assert upload(writer, "x", b"2", prefix="raw/", path="other/y").status_code == 303
    assert paths(lake) == ["other/y", "raw/größe 1.csv"]


def test_an_upload_needs_the_token_before_the_file(lake: Repository, writer: Browser) -> None:
    """Nothing is taken before it is known that the form is one of this login's."""
    for token in ("", "0" * 64, writer.token()[::-1]):
        refused = upload(writer, "x", b"x", form_token=token)
        assert refused.status_code == 403 and "request_forged" in refused.text
    token = writer.token()
    fields: Any = {"branch": (None, "main"), "content": ("x", b"x"), "form_token": (None, token)}
    late = writer.http.post(f"/ui{FILES}/upload", files=fields, headers=ORIGIN)
    assert late.status_code == 403 and "request_forged" in late.text
    assert upload(writer, "x", b"x", origin="http://evil").status_code == 403
    assert paths(lake) == []


def test_what_is_wrong_with_an_upload_is_said(lake: Repository, writer: Browser) -> None:
    for filename, fields, problem in (
        ("", {}, "Choose a file"),
        ("x", {"path": "a" * 1025}, "is no path"),
        ("x", {"branch": "nothing"}, "nothing"),
        ("x", {"reason": "z" * (FIELD_BYTES_MAX + 1)}, "too long"),
        ("x", {"path": "a\0b"}, "zero byte"),
    ):
        answer = upload(writer, filename, b"x", **fields)
        assert 400 <= answer.status_code < 500 and problem in html.unescape(answer.text), fields
    plain = writer.post(f"{FILES}/upload", branch="main")
    assert plain.status_code == 400 and "Choose a file" in plain.text
    assert upload(writer, "C:\\dir\\%22a%22.csv", b"").status_code == 303
    assert paths(lake) == ['"a".csv']


def test_files_are_deleted_and_committed(lake: Repository, writer: Browser) -> None:
    for path in ("a/1", "a/2", "b", HOSTILE):
        lake.objects.put("main", path, path.encode())
    empty = writer.post(f"{FILES}/commit", branch="main", message=" ")
    assert empty.status_code == 400 and "needs a message" in empty.text
    done = writer.post(f"{FILES}/commit", branch="main", message="four")
    assert done.status_code == 303
    head = lake.commits.get("main")
    assert (head.message, head.committer) == ("four", "<writer>")
    again = writer.post(f"{FILES}/commit", branch="main", message="four")
    assert again.status_code == 400 and "Nothing is staged" in again.text

    assert writer.post(f"{FILES}/delete", branch="main", prefix="a/", path="a/1").status_code == 303
    gone = writer.post(f"{FILES}/delete", branch="main", prefix="a/", path="a/1")
    assert gone.status_code == 404 and "There is no object" in gone.text
    shown = writer.get(f"{FILES}?prefix=a/").text
    assert [row.split()[0] for row in rows_of(shown)[1:]] == ["2"]
    assert "removed a/1" in text_of(shown)
    assert "removed" not in writer.get(f"{FILES}?ref=main~0").text, "the commit itself"
    top = writer.get(FILES).text
    # A slash in a name makes a directory of what is before it.
    names = [row.removesuffix(" Explain Delete") for row in rows_of(top)[1:]]
    assert [name.split()[0] for name in names] == [HOSTILE.partition("/")[0] + "/", "a/", "b"]
    assert HOSTILE not in top


def test_odd_paths_have_links_of_their_own(lake: Repository, writer: Browser) -> None:
    """Each row's links and form name the path that the row shows."""
    odd = ("/lead", "./x", "../up", "a/../b", "a//b", "t\tab", "line\nfeed", "trail/", "..", "%2e")
    for path in odd:
        lake.objects.put("main", path, path.encode())
    lake.commits.commit("main", "odd")
    found: set[str] = set()
    waiting = [FILES]
    while waiting:
        page = writer.get(waiting.pop())
        assert page.status_code == 200
        for link in re.findall(r'<th scope="row".*?href="/ui(/[^"]*files[^"]*)"', page.text):
            waiting.append(html.unescape(link))
        for link in re.findall(r'href="/ui(/[^"]*explain[^"]*)"', page.text):
            (path,) = parse_qs(urlsplit(html.unescape(link)).query).get("path", [""])
            if path:
                found.add(path)
                assert writer.get(html.unescape(link)).status_code == 200
        assert "/ui/ui/" not in page.text
    assert found == set(odd)
    for path in odd:
        assert writer.post(f"{FILES}/delete", branch="main", path=path).status_code == 303
    assert paths(lake) == []


def test_who_looks_is_offered_no_change(lake: Repository, browsers: Browsers) -> None:
    lake.objects.put("main", "a", b"a")
    shown = browsers(Role.READER).get(FILES).text
    assert "1 change on main not committed yet" in text_of(shown)
    main = shown.partition("<main")[2].partition("</main>")[0]
    assert "<form" not in main.replace('<form class="filter"', "")


def test_directories_come_in_pages(
    lake: Repository, writer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.server.pages.files.PAGE_ROWS", 5)
    for number in range(13):
        lake.objects.put("main", f"d/{number:03d}", b"")
    shown = list(all_pages(writer, f"{FILES}?prefix=d/"))
    assert len(shown) == 3 and all("and more" in page for page in shown)
    found = [row.split()[0] for page in shown for row in rows_of(page)[1:]]
    assert found == [f"{number:03d}" for number in range(13)]


def test_branches_and_tags(lake: Repository, writer: Browser, clock: ManualClock) -> None:
    lake.objects.put("main", "a", b"a")
    lake.commits.commit("main", "one")
    place = f"{PLACE}/refs"
    assert writer.post(place, kind="branch", name="team/x", source="main").status_code == 303
    for link in re.findall(r'href="/ui(/[^"]*team[^"]*)"', writer.get(place).text):
        assert writer.get(html.unescape(link)).status_code == 200, link
    assert writer.get(f"{PLACE}/compare?left=main&right=team/x").status_code == 200
    assert writer.post(f"{place}/delete", kind="branch", name="team/x").status_code == 303
    made = writer.post(place, kind="branch", name="try", expires_in="3d")
    assert made.headers["location"].endswith("/refs?kind=branch&notice=ref_made")
    branch = lake.branches.get("try")
    assert branch.expires_at == clock.now + timedelta(days=3)
    assert writer.post(place, kind="tag", name="v1", source="try").status_code == 303
    assert lake.tags.get("v1").commit_id == branch.commit_id
    for fields, status, problem in (
        ({"kind": "branch", "name": "try"}, 409, "try"),
        ({"kind": "branch", "name": "a b"}, 400, "a b"),
        ({"kind": "tag", "name": "v2", "source": "nothing"}, 404, "nothing"),
        ({"kind": "tag", "name": "v2", "expires_in": "3"}, 400, "has no unit"),
        ({"kind": "twig", "name": "v2"}, 400, "branch or tag"),
    ):
        answer = writer.post(place, **fields)
        assert answer.status_code == status and problem in html.unescape(answer.text), fields
        assert 'id="problem"' in answer.text
    assert writer.post(f"{place}/delete", kind="branch", name="try").status_code == 303
    assert lake.branches.get(branch.ref_id, include_expired=True).state is LifecycleState.TRASHED
    assert writer.post(f"{place}/delete", kind="tag", name="v1").status_code == 303
    protected = writer.post(f"{place}/delete", kind="branch", name="main")
    assert protected.status_code == 403 and 'id="problem"' in protected.text
    assert [each.name for each in lake.branches.list()] == ["main"]


def test_repositories_are_made(store: Store, browsers: Browsers) -> None:
    admin = browsers()
    place = f"memory:{new_id()}"
    for fields, status, problem in (
        ({"name": "a b"}, 400, "a b"),
        ({"name": "pond", "storage": "relative/place"}, 400, "is not a storage location"),
        ({"name": "pond", "storage": place}, 400, "is not a storage location"),
        ({"name": "pond", "default_branch": "a..b"}, 400, "a..b"),
    ):
        answer = admin.post("", **fields)
        assert answer.status_code == status and problem in html.unescape(answer.text), fields
        assert f'value="{fields["name"]}"' in answer.text, "what was written stays in the form"
    assert store.catalog.page() == []
    assert "Make a repository" not in browsers(Role.WRITER).get("").text
    made = admin.post("", name="pond", default_branch="trunk")
    assert made.headers["location"] == "/ui/repositories/pond/files?notice=repository_made"
    assert store.repository("pond").info.default_branch == "trunk"
    assert "trunk has no files yet" in text_of(admin.get("/repositories/pond/files").text)
    assert admin.post("", name="pond").status_code == 409

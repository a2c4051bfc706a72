"""Commits, comparisons, merges, and the forms for collections, holds and protected branches."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest

from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.server.pages.diffs import LINES_SHOWN_MAX
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.server.pages.conftest import PLACE, Browser, Browsers, Lake
from tests.server.pages.test_pages import all_pages, rows_of, text_of
from tests.support.lake import HOSTILE, NAME

COMPARE = "/repositories/lake/compare"


@pytest.fixture
def repository(store: Store) -> Repository:
    """A repository whose branches `main` and `dev` both changed `both`."""
    made = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    made.objects.put("main", "both", b"one\ntwo\nthree\n")
    made.objects.put("main", "old", b"x" * 40_000)
    made.commits.commit("main", "base")
    made.branches.create("dev", "main")
    made.objects.put("main", "both", b"one\nTWO\nthree\n")
    made.commits.commit("main", "ours")
    made.objects.put("dev", "both", b"one\nzwei\nthree\n")
    made.objects.put("dev", "new/file", f"{HOSTILE}\n".encode())
    made.objects.put("dev", "binary", b"\0\1")
    made.objects.delete("dev", "old")
    made.commits.commit("dev", "theirs\n\nand why", metadata={"ticket": "<7>"})
    return made


def changes_of(page: str) -> list[str]:
    """The rows of the tables on a page. A side that does not have the file is a hyphen."""
    return [row.replace("\u2013", "-") for row in rows_of(page)]


def diffs_of(page: str) -> list[str]:
    found = re.findall(r'<pre class="diff">(.*?)</pre>', page, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", each)) for each in found]


def test_a_commit_and_its_changes(repository: Repository, writer: Browser) -> None:
    record = repository.commits.get("dev")
    page = writer.get(f"/repositories/lake/commits/{record.commit_id}").text
    assert changes_of(page)[1:] == [
        "binary added - 2 B",
        "both changed 14 B 15 B",
        "new/file added - 26 B",
        "old removed 39.1 KiB -",
    ]
    lines = diffs_of(page)
    assert lines[0].splitlines() == ["@@ -1,3 +1,3 @@", " one", "-two", "+zwei", " three"]
    assert lines[1].splitlines()[1] == f"+{HOSTILE}" and HOSTILE not in page
    assert len(lines) == 2, "a binary file and a large one have no lines"
    text = text_of(page)
    assert "and why" in text and "ticket <7>" in text and "kept" in text
    parent = record.parent_ids[0]
    assert f'href="/ui/repositories/lake/commits/{parent}"' in page
    graph = writer.get("/repositories/lake/commits?at=dev").text
    assert f'href="/ui/repositories/lake/commits/{record.commit_id}"' in graph
    assert '<option value="dev">branch</option>' in graph
    assert writer.get("/repositories/lake/commits/nothing").status_code == 404


def test_parents_of_a_merge(repository: Repository, writer: Browser) -> None:
    merged = repository.commits.merge("dev", "main", strategy="dest-wins")
    place = f"/repositories/lake/commits/{merged.commit_id}"
    for query, paths in (("", ["binary", "new/file", "old"]), ("?parent=2", ["both"])):
        rows = rows_of(writer.get(place + query).text)[1:]
        assert [row.split()[0] for row in rows] == paths
    for wrong in ("0", "3", "x"):
        assert writer.get(f"{place}?parent={wrong}").status_code == 400
    first = repository.commits.log("main")[-1]
    assert "first commit" in writer.get(f"/repositories/lake/commits/{first.commit_id}").text


@pytest.mark.xdist_group("pages")
def test_expired_commits_have_pages(lake: Lake) -> None:
    """Their differences are known, and their files cannot be read."""
    reader = lake.browsers(Role.READER)
    pages = all_pages(reader, f"{PLACE}/commits")
    page = next(each for each in pages if "commit gone" in each)
    found = re.search(r'<li class="commit gone" id="c-([0-9a-f]+)"', page)
    assert found is not None
    shown = reader.get(f"{PLACE}/commits/{found[1]}")
    assert shown.status_code == 200
    assert f"run {lake.swept} deleted its data" in shown.text
    assert "Files at this commit" not in shown.text
    assert any(" added " in row for row in rows_of(shown.text))
    first = lake.store.repository(NAME).commits.log("main")[-2]
    assert HOSTILE not in reader.get(f"{PLACE}/commits/{first.commit_id}").text


def test_comparing(repository: Repository, writer: Browser) -> None:
    assert writer.get(COMPARE).status_code == 200
    since = writer.get(f"{COMPARE}?left=main&right=dev").text
    rows = changes_of(since)
    assert "both keeps 14 B of main takes 15 B of dev" in rows
    assert "both conflict 14 B 15 B" in rows and "old removed 39.1 KiB -" in rows
    everything = writer.get(f"{COMPARE}?left=dev&right=main&mode=all").text
    assert "old added - 39.1 KiB" in changes_of(everything) and "Merge main" not in everything
    lines = diffs_of(writer.get(f"{COMPARE}?left=main&right=dev&path=both").text)
    assert "-TWO" in lines[0] and "+zwei" in lines[0]
    for path, problem in (("old", "too large"), ("binary", "is no text")):
        page = text_of(writer.get(f"{COMPARE}?left=main&right=dev&path={path}").text)
        assert "no text, or too large" in page, problem
    same = writer.get(f"{COMPARE}?left=main&right=dev&path=nothing")
    assert same.status_code == 404 and "is the same on both sides" in html.unescape(same.text)
    wrong = writer.get(f"{COMPARE}?left=main&right=nothing")
    assert wrong.status_code == 404 and "Not done" in wrong.text
    repository.objects.put("dev", "both", b"one\nzwei\nthree")
    repository.commits.commit("dev", "no line feed")
    ended = writer.get(f"{COMPARE}?left=dev~1&right=dev&path=both").text
    assert "The lines are the same" in ended and diffs_of(ended) == []
    assert "Nothing differs" in writer.get(f"{COMPARE}?left=main&right=main").text


def test_long_differences_are_cut(repository: Repository, writer: Browser) -> None:
    for step in range(2):
        text = "".join(f"{step} {line}\n" for line in range(900))
        repository.objects.put("main", "long", text.encode())
        repository.commits.commit("main", f"step {step}")
    page = writer.get(f"{COMPARE}?left=main~1&right=main&path=long").text
    assert f"Only the first {LINES_SHOWN_MAX} lines are shown" in page
    assert len(diffs_of(page)[0].splitlines()) == LINES_SHOWN_MAX


def test_a_merge_with_conflicts(
    repository: Repository, writer: Browser, browsers: Browsers
) -> None:
    both = {"left": "main", "right": "dev"}
    place = f"{COMPARE}?left=main&right=dev"
    assert "/compare/merge" in writer.get(place).text
    assert "/compare/merge" not in browsers(Role.READER).get(place).text
    repository.tags.create("v1", "main")
    assert "/compare/merge" not in writer.get(f"{COMPARE}?left=v1&right=dev").text
    before = repository.commits.resolve("main")
    refused = writer.post(f"{COMPARE}/merge", **both)
    assert refused.status_code == 409 and "in different ways" in refused.text
    assert "both keeps 14 B of main takes 15 B of dev" in rows_of(refused.text)
    assert repository.commits.resolve("main") == before
    assert writer.post(f"{COMPARE}/merge", **both, strategy="wild").status_code == 400
    done = writer.post(f"{COMPARE}/merge", **both, strategy="source-wins", message="all of it")
    assert done.headers["location"] == "/ui/repositories/lake/commits?at=main&notice=merged"
    head = repository.commits.get("main")
    assert (head.message, head.committer) == ("all of it", "<writer>")
    assert repository.objects.get("main", "both") == b"one\nzwei\nthree\n"
    again = writer.post(f"{COMPARE}/merge", **both)
    assert again.status_code == 400 and "has all of" in again.text


def test_a_deleted_path_in_conflict(repository: Repository, writer: Browser) -> None:
    repository.objects.put("main", "old", b"changed")
    repository.commits.commit("main", "changed what dev deleted")
    for sides, expected in (
        ("left=main&right=dev", "old keeps 7 B of main is deleted"),
        ("left=dev&right=main", "old stays deleted takes 7 B of main"),
    ):
        assert expected in rows_of(writer.get(f"{COMPARE}?{sides}").text)


def test_projects_and_collections_are_made(repository: Repository, browsers: Browsers) -> None:
    place, writer = "/repositories/lake/collections", browsers(Role.WRITER)
    assert "Make a project" in writer.get(place).text
    done = writer.post(place, kind="project", name="genomes", project="")
    assert done.headers["location"] == f"/ui{place}?notice=project_made"
    project = repository.projects.find("genomes")
    inside = {"project": project.project_id}
    asked = {"kind": "collection", "name": "c", "ref": "dev", "prefix": "new/", **inside}
    made = writer.post(place, expires_in="3d", **asked)
    assert made.headers["location"].endswith("notice=collection_made")
    (found,) = repository.collections.page(project.project_id, amount=2)
    assert (found.name, found.file_count) == ("c", 1) and found.expires_at is not None
    assert found.expires_at - found.created_at == timedelta(days=3)
    files = repository.collections.files(found.collection_id)
    assert [entry.path for entry in files.entries] == ["new/file"]
    for name, directory in (("slashless", "new"), ("border", "ne")):
        asked = {"kind": "collection", "name": name, "ref": "dev", "prefix": directory, **inside}
        assert writer.post(place, **asked).status_code == 303
    listed = repository.collections.page(project.project_id, amount=9)
    assert {each.name: each.file_count for each in listed} == {"c": 1, "slashless": 1, "border": 0}
    for fields, problem in (
        ({"kind": "collection", "name": "c", **inside}, "There is a collection"),
        ({"kind": "collection", "name": "d", "project": ""}, "inside a project"),
        ({"kind": "heap", "name": "d"}, "Kind is project or collection"),
        ({"kind": "project", "name": "a/b"}, "is no name"),
        ({"kind": "project", "name": "p", "expires_in": "7"}, "has no unit"),
    ):
        refused = writer.post(place, **fields)
        assert 400 <= refused.status_code < 500 and problem in html.unescape(refused.text), fields
    gone = {"kind": "collection", "item_id": found.collection_id, **inside}
    assert "/collections/delete" not in browsers(Role.READER).get(place).text
    assert writer.post(f"{place}/delete", **gone).status_code == 303
    shown = repository.collections.get(found.collection_id, include_expired=True)
    assert shown.state is LifecycleState.TRASHED
    again = writer.post(f"{place}/delete", **gone)
    assert again.status_code in (404, 409) and "Not done" in again.text
    ended = {"kind": "project", "item_id": project.project_id, "project": ""}
    assert writer.post(f"{place}/delete", **ended).status_code == 303
    assert "/collections/delete" not in writer.get(f"{place}?project={project.project_id}").text


ODD = '"><script>alert(1)</script>'


def test_holds(store: Store, browsers: Browsers, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = store.create_repository("lake")
    lake.objects.put("main", "a", b"a")
    commit_id = lake.commits.commit("main", "First").commit_id
    admin, place = browsers(), "/repositories/lake/holds"
    assert "No commit is held" in admin.get(place).text
    for fields, status, problem in (
        ({"commit": "main", "reason": " "}, 400, "write why the commit is kept"),
        ({"commit": "nothing", "reason": "audit"}, 404, "nothing"),
    ):
        answer = admin.post(place, **fields)
        assert answer.status_code == status and problem in html.unescape(answer.text)
        assert f'value="{fields["commit"]}"' in answer.text, "what was written stays in the form"
    assert lake.retention.holds() == []

    assert admin.post(place, commit="main", reason=ODD).status_code == 303
    (hold,) = lake.retention.holds()
    assert (hold.commit_id, hold.reason) == (commit_id, ODD)
    page = admin.get(place).text
    assert ODD not in page
    (row,) = rows_of(page)[1:]
    assert "First" in row and ODD in row and "Remove" in row

    lake.retention.set({"default": "7d", "holds": {commit_id: "the policy says so"}})
    reader = browsers(Role.READER)
    rows = rows_of(reader.get(place).text)
    assert "the policy says so" in rows[-1] and not any("Remove" in row for row in rows)

    assert admin.post(f"{place}/remove", commit=commit_id).status_code == 303
    assert lake.retention.holds() == []
    again = admin.post(f"{place}/remove", commit=commit_id)
    assert again.status_code == 404 and "there is no hold" in text_of(again.text).lower()

    lake.retention.set({"default": "7d"})
    monkeypatch.setattr("ebbtide.server.pages.holds.PAGE_ROWS", 2)
    for number in range(3):
        lake.objects.put("main", "a", str(number).encode())
        lake.retention.hold(lake.commits.commit("main", "c").commit_id, f"reason {number}")
    assert [len(rows_of(page)[1:]) for page in all_pages(admin, place)] == [2, 1]


def test_protection(store: Store, browsers: Browsers) -> None:
    lake = store.create_repository("lake")
    for number in range(7):
        lake.branches.create(f"release/{number}", "main")
    admin, place = browsers(), "/repositories/lake/protection"
    assert "No branch is protected" in admin.get(place).text
    empty = admin.post(place, pattern=" ")
    assert empty.status_code == 400 and "is no pattern for branches" in html.unescape(empty.text)
    for pattern in ("release/*", ODD, "release/*"):
        assert admin.post(place, pattern=pattern).status_code == 303
    page = admin.get(place).text
    assert ODD not in page
    first, second = rows_of(page)[1:]
    assert "release/0, release/1" in first and first.split(" Remove")[0].endswith("and 2 more")
    assert ODD in second and "none" in second
    assert "Remove" not in text_of(browsers(Role.WRITER).get(place).text)

    assert admin.post(f"{place}/remove", pattern=ODD).status_code == 303
    assert lake.protection.get().patterns == ("release/*",)
    assert admin.post(f"{place}/remove", pattern=ODD).status_code == 404

"""Holds and rules for protected branches, on their pages."""

from __future__ import annotations

import html

import pytest

from ebbtide.store.access.keys import Role
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import Browsers
from tests.server.pages.test_pages import all_pages, rows_of, text_of

ODD = '"><script>alert(1)</script>'


def test_holds(store: Store, browsers: Browsers) -> None:
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


def test_many_holds_are_cut_into_pages(
    store: Store, browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.server.pages.holds.PAGE_ROWS", 2)
    lake = store.create_repository("lake")
    for number in range(3):
        lake.objects.put("main", "a", str(number).encode())
        lake.retention.hold(lake.commits.commit("main", "c").commit_id, f"reason {number}")
    assert [
        len(rows_of(page)[1:]) for page in all_pages(browsers(), "/repositories/lake/holds")
    ] == [2, 1]


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
    assert lake.protection.get().patterns == ("release/*", ODD)
    page = admin.get(place).text
    assert ODD not in page
    first, second = rows_of(page)[1:]
    assert "release/0, release/1" in first and first.split(" Remove")[0].endswith("and 2 more")
    assert ODD in second and "none" in second
    rows = rows_of(browsers(Role.WRITER).get(place).text)
    assert not any("Remove" in row for row in rows)

    assert admin.post(f"{place}/remove", pattern=ODD).status_code == 303
    assert lake.protection.get().patterns == ("release/*",)
    assert admin.post(f"{place}/remove", pattern=ODD).status_code == 404

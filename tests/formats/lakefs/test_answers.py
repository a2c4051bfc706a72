"""What becomes of a server's answers that are no answers: errors, silence, and nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest

from ebbtide.errors import Failed, NotFound, UnknownRepository
from ebbtide.formats.lakefs import server as answers
from ebbtide.formats.lakefs.server import Account, LakefsServer
from tests.support.answers import Answer
from tests.support.answers import answering as answers_of
from tests.support.errors import raises

Ask = Callable[[LakefsServer], Any]
ASKED: dict[str, Ask] = {
    "repository": lambda server: server.repository(),
    "rules": lambda server: server.rules(),
    "dump": lambda server: server.dump(),
    "branches": lambda server: server.branches(),
    "tags": lambda server: server.tags(),
    "commit": lambda server: server.commit("main"),
    "uncommitted": lambda server: server.uncommitted(),
    "address": lambda server: server.address_at("main", "a"),
    "view": lambda server: list(server.view("main")),
}


class Answering:
    """A server that gives every request the same answer, or none until it is told to."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.pages: list[bytes] = []
        """The answers to the next requests. The last one answers all later requests too."""
        self.content_type = "application/json"
        self.silent = False
        self.woken = threading.Event()
        self.endpoint = ""

    def give(self, _method: str, _path: str) -> Answer:
        if self.silent:
            self.woken.wait(30)
        if self.pages:
            self.body = self.pages.pop(0)
        return self.status, self.body, {"Content-Type": self.content_type}

    def lake(self) -> LakefsServer:
        return LakefsServer(Account(self.endpoint, "key", "secret"), "lake")


@pytest.fixture
def answering() -> Iterator[Answering]:
    opened = Answering()
    with answers_of(opened.give) as opened.endpoint:
        yield opened
        opened.woken.set()


def _fails(answering: Answering, subtests: pytest.Subtests, said: object = None) -> list[Failed]:
    """What each call raises where none has an answer."""
    found: list[Failed] = []
    for name, ask in ASKED.items():
        with subtests.test(ask=name, said=said), pytest.raises(Failed) as failed:
            ask(answering.lake())
        found.append(failed.value)
    assert {each.kind for each in found} == {"lakefs_error"}
    return found


def test_an_error_is_told_with_its_status(answering: Answering, subtests: pytest.Subtests) -> None:
    repository = {"id": "lake", "creation_date": 1, "default_branch": "main"}
    answering.body = json.dumps(repository | {"storage_namespace": "s3://lake/x"}).encode()
    assert answering.lake().repository().namespace == "s3://lake/x/"
    answering.body = b'{"message": "not now"}'
    for status in (401, 403, 503):
        answering.status = status
        for failed in _fails(answering, subtests, status):
            assert str(status) in failed.message
            assert "not now" in failed.message
            assert ("check its keys" in failed.message) == (status in (401, 403))


def test_who_says_nothing_is_not_waited_for(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setitem(answers.WAITS, "_request_timeout", (1.0, 0.1))
    answering.silent = True
    for failed in _fails(answering, subtests):
        assert "does not answer" in failed.message


def test_nonsense_is_no_empty_answer(answering: Answering, subtests: pytest.Subtests) -> None:
    for body in (b"[]", b'{"results": 1}', b'{"run_id": "", "gc_uncommitted_location": ""}', b""):
        for status in (200, 201):
            answering.status, answering.body = status, body
            _fails(answering, subtests, (body, status))
    answering.content_type = "text/html; charset=utf-8"
    answering.status, answering.body = 200, b"<!DOCTYPE html><html><body>Sign in</body></html>"
    _fails(answering, subtests, "a page of a proxy")


def test_what_may_be_missing_and_what_may_not(answering: Answering) -> None:
    answering.status, answering.body = 404, b'{"message": "gone"}'
    lake = answering.lake()
    for ask, kind, of in (
        (lake.repository, "repository_not_found", UnknownRepository),
        (lambda: lake.commit("x"), "commit_not_found", NotFound),
        (lambda: lake.address_at("main", "a"), "object_not_found", NotFound),
    ):
        with raises(kind, of=of):
            ask()
    assert lake.rules() is None
    for fail in (lake.branches, lake.tags, lake.uncommitted, lake.dump):
        with pytest.raises(Failed, match="404"):
            fail()


OBJECT: Final = {
    "path_type": "object",
    "physical_address": "s3://lake/x/data/a",
    "checksum": "1",
    "mtime": 1,
}
LISTS: Final[dict[str, Ask]] = {name: ASKED[name] for name in ("branches", "tags", "view")}


def _page(names: Sequence[str], has_more: object, offset: object, counted: int = -1) -> bytes:
    """A page of branches, tags and objects at once: a client takes the fields that it knows."""
    results = [{"id": name, "commit_id": "1", "path": name, **OBJECT} for name in names]
    paging = {"has_more": has_more, "max_per_page": 1000, "next_offset": offset}
    paging["results"] = len(names) if counted < 0 else counted
    return json.dumps({"results": results, "pagination": paging}).encode()


PAGES: Final[dict[str, list[bytes]]] = {
    "no offset": [_page("ab", True, "")],
    "an offset of null": [_page("ab", True, None)],
    "the same page again": [_page("ab", True, "b"), _page("ab", True, "b")],
    "pages in a circle": [_page(name, True, name) for name in "aba"],
    "fewer than it counts": [_page("ab", False, "", 3)],
    "none of those it counts": [_page("", False, "", 3)],
    "the last page, with an offset": [_page("ab", False, "b")],
    "more as text": [_page("ab", "false", "")],
    "results as text": [_page("", False, "").replace(b"[]", b'""')],
    "results of null": [_page("", False, "").replace(b"[]", b"null")],
    "half": [_page("ab", True, "b"), _page("cd", False, "")[:40]],
    "a page of a proxy": [_page("ab", True, "b"), b"<html></html>"],
    "no pages": [b'{"results": []}'],
}


@pytest.mark.parametrize("name", LISTS)
def test_all_pages_are_one_list_and_one_that_is_cut_off_is_an_error(
    answering: Answering, name: str, subtests: pytest.Subtests
) -> None:
    answering.pages = [_page("a", True, "a"), _page("b", True, "b"), _page("", False, "")]
    assert [*dict(LISTS[name](answering.lake()))] == ["a", "b"]
    for wrong, pages in PAGES.items():
        answering.pages = [*pages]
        with subtests.test(pages=wrong), raises("lakefs_error", of=Failed):
            LISTS[name](answering.lake())


def _uncommitted(run: str, token: str | None) -> bytes:
    place = "s3://lake/x/_lakefs/retention/gc/uncommitted/1/uncommitted"
    answer = {"run_id": run, "gc_uncommitted_location": place, "continuation_token": token}
    return json.dumps(answer).encode()


def test_uncommitted_objects_are_of_one_run_and_end(answering: Answering) -> None:
    answering.status = 201
    answering.pages = [_uncommitted("1", each) for each in ("a", "b", None)]
    assert len(answering.lake().uncommitted()) == 3
    answering.pages = [_uncommitted("1", "a"), _uncommitted("1", "a")]
    with pytest.raises(Failed, match="again"):
        answering.lake().uncommitted()


def test_rules_of_another_kind_are_no_rules(
    answering: Answering, subtests: pytest.Subtests
) -> None:
    branches: list[object] = ["", [{"branch_id": "main", "retention_days": "7"}]]
    branches.append([{"branch_id": 1, "retention_days": 7}])
    rules = [{"default_retention_days": 7, "branches": each} for each in branches]
    rules += [{"default_retention_days": days, "branches": []} for days in (1.5, True, "7")]
    for body in rules:
        answering.body = json.dumps(body).encode()
        with subtests.test(body=body), raises("lakefs_error", of=Failed):
            answering.lake().rules()

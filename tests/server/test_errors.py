"""Errors as answers: one shape, the right status, and never a defect for bad input."""

from __future__ import annotations

import json
from collections import Counter

import httpx
import lakefs
import pytest

from ebbtide.errors import KINDS
from ebbtide.server.errors import STATUS, STATUSES
from tests.support.server import Server


@pytest.fixture
def untouched(server: Server) -> str:
    """A repository that stays empty, since whoever uses it is refused."""
    with server.http() as http:
        http.post("/repositories", json={"name": "untouched", "storage_namespace": "local://u"})
    return "untouched"


def test_every_kind_has_one_status() -> None:
    counted = Counter(kind for kinds in STATUSES.values() for kind in kinds)
    assert set(counted) == set(KINDS)
    assert set(counted.values()) == {1}
    assert STATUS["commit_expired"] == 410


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("GET", "/repositories/no", None, 404, "repository_not_found"),
        ("GET", "/nothing", None, 404, "route_not_found"),
        ("PATCH", "/repositories", None, 405, "route_not_found"),
        ("GET", "/repositories?amount=x", None, 400, "invalid_argument"),
        ("GET", "/repositories?amount=-2", None, 400, "invalid_argument"),
        ("GET", "/repositories?prefix=%00", None, 400, "invalid_argument"),
        ("GET", "/repositories/a%00b", None, 400, "invalid_argument"),
        ("POST", "/repositories", "{", 400, "invalid_argument"),
        ("POST", "/repositories", "[]", 400, "invalid_argument"),
        ("POST", "/repositories", '{"name": "ab", "storage_namespace": "local://ab"}', 400, None),
        ("POST", "/repositories", '{"name": "abc", "storage_namespace": "nfs://x"}', 400, None),
        (
            "POST",
            "/repositories",
            '{"name": "abc", "storage_namespace": "local://.."}',
            400,
            None,
        ),
        ("POST", "/repositories", '{"name": "abc", "storage_namespace": "mem://x"}', 400, None),
        *(
            (
                "POST",
                "/repositories",
                json.dumps({"name": "abc", "storage_namespace": at}),
                400,
                None,
            )
            for at in ("local://a/../b", "local://a//b", "local:///a", "local://a/.b")
        ),
        ("GET", "{r}/branches/no", None, 404, "branch_not_found"),
        ("GET", "{r}/tags/no", None, 404, "tag_not_found"),
        ("GET", "{r}/commits/no", None, 404, "ref_not_found"),
        ("GET", "{r}/commits/ma%20in", None, 400, "invalid_argument"),
        ("GET", "{r}/commits/main~9", None, 404, "commit_not_found"),
        ("GET", "{r}/refs/main/objects?path=no", None, 404, "object_not_found"),
        ("GET", "{r}/refs/main/objects", None, 400, "invalid_argument"),
        ("GET", "{r}/refs/main/commits?since=yesterday", None, 400, "invalid_argument"),
        ("GET", "{r}/refs/main/commits?since=2020-01-01T00:00:00", None, 400, "invalid_date"),
        ("GET", "{r}/refs/main/commits?since=9999-12-31T23:59:59-12:00", None, 400, "invalid_date"),
        (
            "GET",
            "{r}/branches?expires_after=0001-01-01T00:00:00%2B12:00",
            None,
            400,
            "invalid_date",
        ),
        ("GET", "{r}/branches?expires_before=9999-12-31T23:59:59-12:00", None, 400, "invalid_date"),
        ("POST", "{r}/branches", '{"name": "a b", "source": "main"}', 400, "invalid_name"),
        ("POST", "{r}/branches", '{"name": "main", "source": "main"}', 409, "branch_exists"),
        ("POST", "{r}/branches", '{"name": "\\ud800", "source": "main"}', 400, None),
        ("DELETE", "{r}/branches/main", None, 403, "branch_protected"),
        ("POST", "{r}/branches/main/commits", '{"message": "m"}', 400, "nothing_to_commit"),
        (
            "POST",
            "{r}/branches/main/commits",
            '{"message": "m", "date": 99999999999, "allow_empty": true}',
            400,
            "invalid_date",
        ),
        ("POST", "{r}/branches/main/commits", '{"message": "m", "date": 1e300}', 400, None),
        ("PUT", "{r}/branches/main", '{"type": "object"}', 400, "invalid_argument"),
        ("PUT", "{r}/branches/main", '{"type": "all"}', 400, "invalid_argument"),
        ("POST", "{r}/branches/main/revert", '{"ref": "main"}', 400, "invalid_argument"),
        ("POST", "{r}/branches/main/cherry-pick", '{"ref": "main"}', 400, "invalid_argument"),
        ("POST", "{r}/refs/main/merge/main", "{}", 400, "nothing_to_merge"),
        ("POST", "{r}/branches/main/objects?path=", "x", 400, "invalid_path"),
        ("POST", "{r}/branches/main/objects?path=" + "x" * 1025, "x", 400, "invalid_path"),
        ("POST", "{r}/branches/no/objects?path=a", "x", 404, "branch_not_found"),
        ("DELETE", "{r}/branches/no/objects?path=no", None, 404, "branch_not_found"),
        ("DELETE", "{r}/branches/main/objects?path=", None, 400, "invalid_path"),
        (
            "POST",
            "{r}/branches/main/objects/delete",
            json.dumps({"paths": ["x"] * 1001}),
            400,
            "invalid_argument",
        ),
        (
            "POST",
            "/repositories?bare=true",
            '{"name": "abc", "storage_namespace": "local://abc"}',
            400,
            "invalid_argument",
        ),
        *(
            (
                "POST",
                "/repositories",
                json.dumps({"name": "abc", "storage_namespace": "local://abc", **option}),
                400,
                "invalid_argument",
            )
            for option in ({"read_only": True}, {"storage_id": "other"})
        ),
        (
            "POST",
            "{r}/branches/main/objects?path=a&storageClass=GLACIER",
            "x",
            400,
            "invalid_argument",
        ),
        ("POST", "/statistics", '{"events": [{"class": "", "name": "x", "count": 1}]}', 400, None),
        (
            "POST",
            "/statistics",
            '{"events": [{"class": "a", "name": "x", "count": -1}]}',
            400,
            None,
        ),
        (
            "PUT",
            "{r}/branches/main/objects?path=a",
            '{"physical_address": "file:///etc/passwd", "checksum": "", "size_bytes": 1}',
            403,
            "import_forbidden",
        ),
        (
            "PUT",
            "{r}/branches/main/staging/backing?path=a",
            '{"staging": {"physical_address": "s3://x/y"}, "checksum": "", "size_bytes": 1}',
            400,
            "invalid_address",
        ),
        ("GET", "{r}/settings/gc_rules", None, 404, "policy_not_found"),
        (
            "PUT",
            "{r}/settings/gc_rules",
            '{"default_retention_days": 0, "branches": []}',
            400,
            "invalid_policy",
        ),
        ("PUT", "{r}/settings/retention", '{"policy": {}}', 400, "invalid_policy"),
        ("GET", "{r}/gc/prepare_commits/status?id=../x", None, 404, "task_not_found"),
        ("POST", "{r}/gc/prepare_uncommited", '{"continuation_token": "x"}', 400, None),
        ("GET", "{r}/gc/runs/no", None, 404, "run_not_found"),
        ("GET", "{r}/explain", None, 400, "invalid_argument"),
        ("GET", "{r}/explain?ref=main&commit=main", None, 400, "invalid_argument"),
        ("GET", "{r}/explain?address=x&path=a", None, 400, "invalid_argument"),
        ("GET", "{r}/explain?address=../x", None, 400, "invalid_address"),
        ("GET", "{r}/explain?address=x", None, 404, "object_not_found"),
        ("GET", "{r}/explain?ref=no", None, 404, "ref_not_found"),
        ("GET", "{r}/explain?ref=main&path=no", None, 404, "object_not_found"),
    ],
)
def test_bad_requests(
    server: Server,
    untouched: str,
    method: str,
    path: str,
    body: str | None,
    status: int,
    kind: str | None,
) -> None:
    place = path.replace("{r}", f"/repositories/{untouched}")
    headers = {} if body is None else {"Content-Type": "application/json"}
    with server.http() as http:
        answer = http.request(method, place, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["message"]
    assert answer.json()["kind"] == (kind or answer.json()["kind"])


def test_bodies_have_a_limit(http: httpx.Client, lake: lakefs.Repository) -> None:
    """Whether the length is told beforehand or not."""
    place = f"/repositories/{lake.id}/branches"
    large = b'{"name": "' + b"x" * (17 * 2**20) + b'"}'
    headers = {"Content-Type": "application/json"}
    answer = http.post(place, content=large, headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")
    pieces = (large[start : start + 2**20] for start in range(0, len(large), 2**20))
    answer = http.post(place, content=pieces, headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, '{"name":' * 100_000, '{"name": ' + "9" * 10_000 + "}", "\ufeff{}", "\x00"],
    ids=["lists", "mappings", "a number", "a mark", "a zero"],
)
def test_bodies_that_no_parser_likes(
    http: httpx.Client, lake: lakefs.Repository, body: str
) -> None:
    answer = http.post(
        f"/repositories/{lake.id}/branches",
        content=body.encode(),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400, answer.text


def test_headers_have_a_limit(plain: Server) -> None:
    with plain.http() as client:
        answer = client.get("/repositories", headers={"X-Long": "x" * 100_000})
    assert (answer.status_code, answer.json()["kind"]) == (431, "headers_too_large")


def test_an_unknown_path_is_no_reason_for_a_new_figure(plain: Server) -> None:
    with plain.http("reader") as client:
        client.get("/nothing/at/all")
        figures = client.get("/metrics").text
    assert 'route="none"' in figures
    assert "at/all" not in figures

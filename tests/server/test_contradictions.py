"""A request that says one thing twice is refused, naming it, and changes nothing."""

from __future__ import annotations

from typing import Any

import httpx
import lakefs
import pytest


def put(http: httpx.Client, repo: str, place: str, text: str) -> httpx.Response:
    return http.put(
        f"/repositories/{repo}/settings/{place}",
        content=text,
        headers={"Content-Type": "application/json"},
    )


@pytest.mark.parametrize(
    ("place", "text", "named"),
    [
        ("retention", '{"policy": {"branches": {"main": "keep", "main": "1d"}}}', "'main'"),
        ("retention", '{"policy": {"default": "9d"}, "policy": {"default": "1d"}}', "'policy'"),
        (
            "gc_rules",
            '{"default_retention_days": 9, "branches": [{"branch_id": "main", "retention_days": 9},'
            ' {"branch_id": "main", "retention_days": 1}]}',
            "'main'",
        ),
    ],
)
def test_a_rule_twice(
    http: httpx.Client, lake: lakefs.Repository, place: str, text: str, named: str
) -> None:
    answer = put(http, lake.id, place, text)
    assert answer.status_code == 400, answer.text
    message: Any = answer.json()["message"]
    assert named in message and "keep one of them" in message
    assert http.get(f"/repositories/{lake.id}/settings/{place}").status_code == 404

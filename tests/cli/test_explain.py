"""`explain`: what people and programs get to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide, Write
from tests.cli.test_gc import SHORT
from tests.formats.icechunk.test_explaining import commit
from tests.support.icechunk import SPEC_VERSIONS, create_repository


def test_what_a_branch_shows(lake: Ebbtide, write: Write) -> None:
    head = write(a="1")
    found = lake("explain", "lake", "main", "a", "--json").document
    assert (found["what"], found["state"], found["keeper_count"]) == ("address", "kept", 1)
    keeper = found["keepers"][0]
    assert (keeper["commit_id"], keeper["refs"]) == (head, ["branch main"])
    assert lake("explain", "lake", found["address"], "--json").document == found
    shown = lake("explain", "lake", "main", "a").out
    assert f"commit {head[:10]}" in shown
    assert "never collectable while nothing changes: head of branch main" in shown

    by_ref = lake("explain", "lake", "main", "--json").document
    assert (by_ref["what"], by_ref["commit_id"], by_ref["state"]) == ("commit", head, "kept")
    assert lake("explain", "lake", head[:8], "--json").document == by_ref
    shown = lake("explain", "lake", head).out
    assert "head of branch main" in shown
    assert "never" in shown


def test_what_is_staged(lake: Ebbtide, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    lake("fs", "put", "lake", "main", tmp_path / "file", "x")
    assert "branch main, path x" in lake("explain", "lake", "main", "x").out


def test_before_and_after_a_run(lake: Ebbtide, expired: str) -> None:
    before = lake("explain", "lake", expired, "a", "--grace", "1s", "--json").document
    assert (before["state"], before["past_holder_count"]) == ("unneeded", 1)
    assert before["collectable_at"] is not None
    shown = lake("explain", "lake", expired, "a").out
    assert "nothing keeps it" in shown
    assert "collectable from" in shown

    run_id = lake("gc", "run", "lake", *SHORT, "--yes", "--quarantine", "none", "--json").document[
        "run_id"
    ]

    after = lake("explain", "lake", before["address"], "--json").document
    assert (after["state"], after["went"]["run_id"]) == ("gone", run_id)
    assert [row["commit_id"] for row in after["went"]["commits"]] == [expired]
    shown = lake("explain", "lake", expired, "a").out
    assert f"run {run_id} deleted it" in shown
    assert "keep_last 1" in shown
    assert expired[:10] in shown
    assert f"by run {run_id}" in lake("explain", "lake", expired).out


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("lake", "nobody"), 1, "ref_not_found"),
        (("lake", "main", "nothing"), 1, "object_not_found"),
        (("lake", "data/" + "0" * 32 + "/" + "1" * 32), 1, "object_not_found"),
        (("lake", "main", "x" * 1025), 2, "invalid_path"),
        (("sea", "main"), 1, "repository_not_found"),
    ],
)
def test_what_is_not_there(lake: Ebbtide, arguments: tuple[str, ...], code: int, kind: str) -> None:
    assert lake("explain", *arguments, "--json", code=code).error_kind == kind


def test_an_icechunk_repository(ebbtide: Ebbtide, tmp_path: Path) -> None:
    head = commit(create_repository(tmp_path / "ice", SPEC_VERSIONS[-1]), "main", "a")
    where = f"icechunk:{tmp_path / 'ice'}"
    chunk = next((tmp_path / "ice" / "chunks").iterdir()).name
    found = ebbtide("explain", where, f"chunks/{chunk}", "--json").document
    assert (found["kind"], found["state"]) == ("chunk", "kept")
    assert found["keepers"][0]["commit_id"] == head
    assert "head of branch main" in ebbtide("explain", where, head).out
    refused = ebbtide("explain", where, "main", "a", "--json", code=2)
    assert refused.error_kind == "invalid_argument"

"""`promises`: how long the store's promises last, whatever the environment says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Ebbtide

DEFAULTS = {"lease_ttl": "1h", "trash_time": "7d", "upload_ttl": "1h", "prepare_ttl": "6h"}


def test_they_are_shown_and_changed(lake: Ebbtide, typing: Callable[[str], None]) -> None:
    assert lake.json("promises") == DEFAULTS
    longer = lake("promises --trash-time 30d")
    assert "trash_time   30d" in longer.out
    assert longer.err == ""
    typing("n\n")
    declined = lake("promises --trash-time 1d --upload-ttl 2h")
    assert "trash_time 30d -> 1d" in declined.err
    assert "nothing was changed" in declined.err
    assert lake.json("promises") == DEFAULTS | {"trash_time": "30d"}
    shorter = lake("promises --trash-time 1d --upload-ttl 2h --yes --json")
    assert shorter.document == DEFAULTS | {"trash_time": "1d", "upload_ttl": "2h"}
    assert "for 1 day" in delete_a_branch(lake)


def delete_a_branch(lake: Ebbtide) -> str:
    lake("branch create lake dev")
    return lake("branch delete lake dev").out


def test_what_they_cannot_be_is_refused(lake: Ebbtide) -> None:
    for option, period, kind in (
        ("--lease-ttl", "3", "invalid_duration"),
        ("--upload-ttl", "0s", "invalid_setting"),
    ):
        lake.refuses(kind, "promises", option, period, "--yes", code=2)
    assert lake.json("promises") == DEFAULTS


def test_an_environment_that_says_otherwise_is_told_so(
    lake: Ebbtide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_TRASH_TIME", "1d")
    monkeypatch.setenv("EBBTIDE_LEASE_TTL", "1h")
    told = lake("branch list lake")
    assert "EBBTIDE_TRASH_TIME is 1d, but the store promises 7d" in told.err
    assert "ebbtide promises --trash-time 1d" in told.err
    assert "LEASE_TTL" not in told.err
    lake("promises --trash-time 1d --yes")
    assert lake("branch list lake").err == ""

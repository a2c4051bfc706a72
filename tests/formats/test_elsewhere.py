"""Names of repositories that are not of the store: what is said where one cannot be opened."""

from __future__ import annotations

import sys

import pytest

from ebbtide.errors import Failed, InvalidInput
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.schemes import always_quarantined, is_elsewhere, scheme_of
from ebbtide.gc.options import ASKED_PERIOD, parse_quarantine
from ebbtide.settings import Settings
from tests.formats.lakefs.world import open_lakefs_world
from tests.support.errors import raises

LAKEFS = {
    "lakefs_endpoint": "http://lakefs.test",
    "lakefs_access_key_id": "key",
    "lakefs_secret_access_key": "secret",
}


def opened(name: str, settings: Settings, *, quiet: bool = False) -> RepositoryFormat:
    scheme = scheme_of(name)
    assert scheme is not None
    return scheme.open(name, settings, quiet=quiet)[0]


def test_names() -> None:
    assert is_elsewhere("icechunk:/data/x")
    assert is_elsewhere("lakefs:x")
    assert not is_elsewhere("lake")
    assert not is_elsewhere("icechunk")
    assert not is_elsewhere("paper:x")


@pytest.mark.parametrize("missing", LAKEFS)
def test_a_server_and_its_keys_must_be_named(missing: str) -> None:
    settings = Settings(**LAKEFS | {missing: None})  # whatever the environment has
    with pytest.raises(InvalidInput, match=f"EBBTIDE_{missing.upper()} is not set"):
        opened("lakefs:x", settings)


@pytest.mark.parametrize("missing", ["lakefs_sdk", "google_crc32c", "google.protobuf"])
def test_without_the_packages_of_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with raises("extra_missing", "pip install 'google-crc32c", of=Failed):
        opened("lakefs:x", Settings(**LAKEFS))


def test_no_repository_of_a_server_is_quiet() -> None:
    with pytest.raises(InvalidInput, match="only for Icechunk"):
        opened("lakefs:x", Settings(**LAKEFS), quiet=True)


def test_sweeps_of_a_server_go_to_a_quarantine() -> None:
    assert always_quarantined("lake") is None
    with open_lakefs_world() as world:
        found = world.repository()
        assert parse_quarantine(always_quarantined("lakefs:x"), found) == ASKED_PERIOD
        assert parse_quarantine("none", found) is None

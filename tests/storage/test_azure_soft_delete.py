"""What an account of Azure says of its soft delete, on a server of its own: the setting is of the
whole account.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.gc.costs import warnings_of
from ebbtide.ids import new_id
from ebbtide.storage import Retained, open_storage
from tests.support.azurite import CONTAINER, find_azurite, set_soft_delete, start_azurite
from tests.support.requirements import require_or_skip


def new_url() -> str:
    """Of a new prefix: a process keeps the client of each URL, with its credentials."""
    return f"az://{CONTAINER}/{new_id()}"


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    if find_azurite() is None:
        require_or_skip("azure", "no azurite-blob on PATH or in .azurite: npm's package azurite")
    reading, writing = os.pipe()
    server = start_azurite(tmp_path, reading)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield server.port
    os.close(writing)
    os.close(reading)
    server.keeper.wait()


def test_soft_delete_is_read_and_said(port: int) -> None:
    found = open_storage(new_url()).retained()
    assert found.state == "unknown"
    assert found.reason.startswith("soft delete is off")
    set_soft_delete(port, days=5)
    found = open_storage(new_url()).retained()
    assert found == Retained("soft_delete", "soft delete is on, for 5 days")
    (warning,) = warnings_of(found)
    assert "for 5 days" in warning
    assert "until their time is over" in warning


def test_a_wrong_key_is_no_error(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    del port
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    found = open_storage(new_url()).retained()
    assert found.state == "unknown"
    assert "403" in found.reason


def test_without_an_account_key_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a role, or a token for one container."""
    for name in [each for each in os.environ if each.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2021-08-06&sig=c2ln")
    wanted = Retained("unknown", "its soft delete can be read only with an account key")
    assert open_storage(new_url()).retained() == wanted

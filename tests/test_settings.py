"""Settings: defaults, the environment, what is refused, and that the documentation has all."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.settings import Settings, list_settings
from tests.support.documents import with_whole_items

DOCUMENT = Path(__file__).parents[1] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in list_settings():
        monkeypatch.delenv(setting.variable, raising=False)


def test_environment_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_GRACE", "1d12h")
    monkeypatch.setenv("EBBTIDE_STORE", "/srv/store")
    monkeypatch.setenv("EBBTIDE_TRASH_TIME", "")
    url = "postgresql://u:hunter2@host/db"
    settings = Settings(lease_ttl=timedelta(0), store=Path("/other"), database_url=url)
    assert "hunter2" not in repr(settings)
    assert settings.grace == timedelta(hours=36)
    assert settings.store == Path("/other")
    assert settings.lease_ttl == timedelta(0)
    assert settings.trash_time == timedelta(days=7), "an empty variable is none"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("EBBTIDE_GRACE", "24", "has no unit: write a number with a unit"),
        ("EBBTIDE_RUN_HEARTBEAT", "0s", "longer than zero"),
        ("EBBTIDE_SHARE_MAX", "1.5", "write a number between 0 and 1"),
        ("EBBTIDE_SLICE_OBJECTS_MAX", "0", "write a whole number"),
        ("EBBTIDE_SLICE_OBJECTS_MAX", "9" * 500 + "x", "write a whole number"),
    ],
)
def test_bad_values_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as caught:
        Settings()
    assert caught.value.kind == "invalid_setting"
    assert variable in caught.value.message
    assert says in caught.value.message
    assert len(caught.value.message) < 300


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no setting 'gracce'"):
        Settings(gracce="1d")


def test_documentation_lists_exactly_the_settings() -> None:
    items = re.findall(
        r"^- `(EBBTIDE_\w+)`(?: \((.*?)\))?: (.*)$", with_whole_items(DOCUMENT), re.M
    )
    assert items == [
        (each.variable, f"`{each.default}`" if each.default else "", each.help)
        for each in list_settings()
    ]

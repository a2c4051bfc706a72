"""Prices: the file, its errors, and amounts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.prices import GIB, Prices, read_prices
from ebbtide.settings import Settings

TOML = """
currency = "EUR"
[storage]
default = 0.02
COLD = 0.004
[requests]
copy = 0.005
delete = 0
"""


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    found = read_prices(tmp_path / "a.toml")
    assert found == Prices("EUR", {"default": 0.02, "COLD": 0.004}, {"copy": 0.005, "delete": 0.0})
    document = {
        "currency": "EUR",
        "storage": {"default": 0.02, "COLD": 0.004},
        "requests": {"copy": 0.005, "delete": 0},
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert read_prices(tmp_path / "a.json") == found


def test_amounts() -> None:
    prices = Prices("EUR", {"default": 0.02, "COLD": 0.004}, {"copy": 0.005, "delete": 0.5})
    assert prices.month({"": GIB, "COLD": 10 * GIB, "OTHER": GIB}) == pytest.approx(0.08)
    assert prices.month_of(None) is None
    assert prices.sweep(2_500, quarantine=False) == pytest.approx(3 * 0.5 / 1000)
    assert prices.sweep(2_500, quarantine=True) == pytest.approx(6 * 0.5 / 1000 + 2.5 * 0.005)
    assert prices.sweep(0, quarantine=True) == 0
    assert prices.asked({"get": 1}) is None
    assert Prices(storage={"COLD": 1.0}).month({"": 1}) is None
    assert Prices(storage={"COLD": 1.0}).month({"": 0, "COLD": GIB}) == 1.0


def test_amounts_for_people() -> None:
    prices = Prices("EUR")
    shown = [prices.text(each) for each in (None, 0, 0.001, 1234.5, -2.0)]
    assert shown == ["-", "EUR 0.00", "EUR <0.01", "EUR 1,234.50", "-EUR 2.00"]
    assert Prices().text(2.5) == "2.50"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "is not TOML"),
        ("{", "is not JSON"),
        ("[storage]\ndefault = -1", "storage.'default': '-1' is not a price"),
        ("[storage]\ndefault = true", "storage.'default': 'True' is not a price"),
        ("[storage]\ndefault = nan", "is not a price"),
        ("[requests]\ncopies = 1", "requests.'copies': no such kind"),
        ("storage = 3", "storage: write a table"),
        ("price = 3", "unknown key 'price'"),
        ("currency = 3", "currency: write a short text"),
    ],
)
def test_bad_files(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "prices").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_prices(tmp_path / "prices")
    assert caught.value.kind == "invalid_setting"
    assert told in caught.value.message
    assert "EBBTIDE_PRICES" in caught.value.message


def test_settings(tmp_path: Path) -> None:
    assert Prices.of(Settings()) is None
    found = Prices.of(Settings(price_gb_month=0.023))
    assert found is not None
    assert found.month_of(1_000_000_000) == pytest.approx(0.023)
    (tmp_path / "a.toml").write_text(TOML)
    both = Settings(price_gb_month=9, prices=tmp_path / "a.toml")
    assert Prices.of(both) == read_prices(tmp_path / "a.toml")
    with pytest.raises(InvalidInput) as caught:
        Prices.of(Settings(prices=tmp_path / "nothing"))
    assert "cannot be read" in caught.value.message

"""What bytes cost or save a month, on the pages of a server with prices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.errors import InvalidInput
from ebbtide.prices import GIB
from ebbtide.server.app import create_app
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.server.pages.conftest import PLACE, Browser, browsing
from tests.server.pages.test_pages import rows_of, text_of
from tests.server.pages.test_trying import looked
from tests.support.lake import NAME, collect
from tests.support.server import eventually

AMOUNT = r"EUR ([\d,.]+)"
SIZE = r"([\d.,]+) KiB"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A KiB costs a euro a month, so that each amount can be compared with its size."""
    prices = tmp_path / "prices.toml"
    prices.write_text(f'currency = "EUR"\n[storage]\ndefault = {GIB / 1024}\n')
    none = timedelta(0)
    settings = Settings(
        prices=prices,
        reclaim=False,
        schedules=False,
        spark_master="none",
        lease_ttl=none,
        grace=none,
    )
    with Store.init(tmp_path / "store", settings=settings) as store:
        yield store


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_amounts_stand_beside_their_sizes(store: Store) -> None:
    lake = store.create_repository(NAME)
    lake.branches.create("dev", "main")
    for size in (30_000, 50_000, 80_000):
        lake.objects.put("main", "a", b"x" * size)
        lake.commits.commit("main", "change")
    lake.retention.set({"default": {"keep_last": 1}})
    swept, planned = collect(store, lake)
    with browsing(store) as browsers:
        admin = browsers()
        figures = {
            "/totals": ("costs", "saves"),
            PLACE: ("costs", "saves", "saves"),
            f"{PLACE}/runs/{swept}": ("", "saves"),
            f"{PLACE}/runs/{planned}": ("",),
        }
        for place, words in figures.items():
            shown = text_of(admin.get(place).text.split('class="figures"')[1].split("</dl>")[0])
            found = re.findall(rf"{SIZE}(?:(?! KiB ).)*? ?(costs|saves|) {AMOUNT} a month", shown)
            assert [word for _, word, _ in found] == list(words), shown
            for size, _, amount in found:
                assert number(amount) == pytest.approx(number(size), abs=0.06)
        (row,) = [row for row in rows_of(admin.get("").text) if row.startswith(NAME)]
        told = re.search(rf"{SIZE} ?, saves {AMOUNT} a month", row)
        assert told is not None, row
        assert number(told[2]) == pytest.approx(number(told[1]), abs=0.06)
        (row,) = [row for row in rows_of(admin.get(f"{PLACE}/runs/trend").text) if " swept " in row]
        assert re.search(r" 78\.\d KiB EUR 78\.\d\d ", row), "what was freed"
        check_looks(admin)


def check_looks(admin: Browser) -> None:
    """A try, the curve and the usage have the currency, too."""
    tried = looked(admin, admin.post(f"{PLACE}/policy", action="try", policy="30d").text)
    assert re.search(rf"Present .*{AMOUNT}$", rows_of(tried.json()["html"])[1])
    curve = admin.post(f"{PLACE}/policy/curve").headers["location"].removeprefix("/ui")
    drawn = looked(admin, admin.get(curve).text).json()["html"]
    row = next(row for row in rows_of(drawn) if row.startswith("30d "))
    kept, costs, deleted, saves = re.findall(r"(?:EUR )?([\d.]+)(?: KiB)?", row[4:])[:4]
    assert number(costs) == pytest.approx(number(kept), abs=0.06)
    assert number(saves) == pytest.approx(number(deleted), abs=0.06) and number(saves) > 100
    admin.post(f"{PLACE}/usage")
    place, asked = f"{PLACE}/usage", {"Accept": "application/json"}
    eventually(lambda: admin.get(place, headers=asked).json()["ended"])
    page = admin.get(place).text
    assert re.search(rf"Would be deleted {SIZE} \d+ files, saves {AMOUNT} a month", text_of(page))
    (main,) = [row for row in rows_of(page) if row.startswith("branch main ")]
    alone = re.match(rf"branch main {SIZE} \d+ {AMOUNT} ", main)
    assert alone is not None and number(alone[2]) == pytest.approx(number(alone[1]), abs=0.06)


def test_without_a_price_nothing_is_said(tmp_path: Path) -> None:
    """And a file that is wrong keeps the server from starting."""
    with Store.init(tmp_path / "store", settings=Settings(reclaim=False)) as plain:
        plain.create_repository(NAME)
        with browsing(plain) as browsers:
            assert " a month" not in text_of(browsers().get(PLACE).text)
    wrong = tmp_path / "prices.toml"
    wrong.write_text("currency = 3")
    with (
        Store.open(tmp_path / "store", settings=Settings(reclaim=False, prices=wrong)) as store,
        pytest.raises(InvalidInput, match="EBBTIDE_PRICES"),
    ):
        create_app(store)

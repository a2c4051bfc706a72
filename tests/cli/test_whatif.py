"""`what-if`: policies as the command line takes them, and what is shown of each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.cli.conftest import Ebbtide, Write

DAILY = '{"default": {"keep_last": 1}}'


@pytest.fixture
def history(lake: Ebbtide, write: Write) -> tuple[str, ...]:
    """`lake` with three commits, each of which writes `a` anew; their ids."""
    lake("promises --lease-ttl 0s --yes")
    days = ((1, "first"), (2, "second!"), (3, "third"))
    ids = tuple(write("--date", f"2020-01-0{day}T00:00:00Z", a=text) for day, text in days)
    lake("retention set lake --default keep_last:2")
    return ids


def test_policies_side_by_side(
    lake: Ebbtide, history: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_GRACE", "0s")
    monkeypatch.setenv("EBBTIDE_PRICE_GB_MONTH", "1e9")
    file = tmp_path / "keep.json"
    file.write_text('{"default": "keep"}')
    asked = ("what-if", "lake", DAILY, "--policy", str(file))
    found = lake.json(*asked)
    assert [each["name"] for each in found["policies"]] == ["present", DAILY, str(file)]
    present, shorter, longer = found["policies"]
    assert [each["candidate_bytes"] for each in (present, shorter, longer)] == [5, 12, 0]
    assert [each["more_bytes"] for each in (present, shorter, longer)] == [0, 7, -5]
    assert [each["money_month"] for each in (present, shorter, longer)] == [5.0, 12.0, 0.0]
    assert [lost["commit_id"] for lost in shorter["lost"]] == [history[1]]

    shown = lake(*asked).out
    assert "saves a month" in shown
    assert DAILY in shown
    assert "-5 B" in shown
    assert "2020-01-03 00:00" in shown
    assert lake.json("retention show lake")["policy"]["default"] == {"keep_last": 2}
    assert lake.json("gc runs lake") == {"runs": []}


@pytest.mark.usefixtures("history")
def test_no_price_no_money(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    found = lake.json("what-if lake --policy", DAILY)
    assert found["price_gb_month"] is None
    assert {each["money_month"] for each in found["policies"]} == {None}
    assert "month" not in lake("what-if lake --policy", DAILY).out
    monkeypatch.setenv("EBBTIDE_PRICE_GB_MONTH", "much")
    bad = lake.refuses("invalid_setting", "repo list", code=2)
    assert "write a number, such as 0.023" in bad.err


def test_what_cannot_be_asked(lake: Ebbtide) -> None:
    for words, kind in (
        ((), "invalid_argument"),
        (("{",), "invalid_policy"),
        (("--policy", "nothing.json"), "invalid_argument"),
    ):
        lake.refuses(kind, "what-if lake", *words, code=2)
    told = lake.refuses("invalid_argument", "what-if icechunk:/nowhere --curve", code=2).err
    assert "give a POLICY" in told


def test_a_warning_of_all_policies_is_said_once(ebbtide: Ebbtide, tmp_path: Path) -> None:
    table = tmp_path / "sales"
    write_deltalake(str(table), pa.table({"day": [1]}))
    said = ebbtide("what-if", f"delta:{table}", "--policy", "keep_last:1", "--policy", "1d").err
    assert said.count("shallow clones") == 1
    assert "warning: shallow clones" in said

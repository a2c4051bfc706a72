"""`usage`, and `what-if --curve`: figures of a store that is worked out by hand, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ebbtide, Write

PRICES = 'currency = "EUR"\n[storage]\ndefault = 1073741824\n[requests]\ncopy = 1000\n'


@pytest.fixture
def history(lake: Ebbtide, write: Write, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """`lake` with three commits, each of which writes `a` anew, and a tag on the second; their
    ids."""
    monkeypatch.setenv("EBBTIDE_GRACE", "0s")
    lake("promises --lease-ttl 0s --yes")
    days = ((1, "first"), (2, "second!"), (3, "third"))
    ids = tuple(write("--date", f"2020-01-0{day}T00:00:00Z", a=text) for day, text in days)
    lake("tag create lake v1", ids[1])
    lake("retention set lake --default keep_last:1")
    return ids


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One EUR for a byte and month, and for a copy."""
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    monkeypatch.setenv("EBBTIDE_PRICES", str(file))
    return file


@pytest.mark.usefixtures("history", "prices")
def test_a_tag_holds_its_own_file_alone(lake: Ebbtide) -> None:
    found = lake.json("usage lake")
    holders = {f"{each['kind']} {each['name']}": each for each in found["holders"]}
    assert holders["tag v1"]["alone"]["bytes_total"] == 7
    assert holders["tag v1"]["alone_money_month"] == 7.0
    assert found["unheld"]["would_be_deleted"] == {"objects": 1, "bytes_total": 5}
    own = [found["unheld"]["own_files"], found["unheld"]["foreign_files"]]
    parts = [each["alone"] for each in (*found["holders"], found["other_holders"])]
    parts += [found["unheld"]["would_be_deleted"], found["unheld"]["younger_than_grace"], *own]
    parts += [*found["together"], found["other_sets"]]
    assert sum(each["bytes_total"] for each in parts) == found["listed"]["bytes_total"]
    assert sum(each["objects"] for each in parts) == found["listed"]["objects"]
    shown = lake("usage lake").out
    assert "tag v1" in shown
    assert "EUR 7.00" in shown
    assert "together: branch main, tag v1" in shown
    lake("tag delete lake v1")
    assert "tag v1 (in the trash)" in lake("usage lake").out


@pytest.mark.usefixtures("history")
def test_others_are_one_line(lake: Ebbtide) -> None:
    found = lake.json("usage lake --top 1")
    assert len(found["holders"]) == 1
    assert found["other_holders"]["holder_count"] >= 1
    assert "other holder" in lake("usage lake --top 1").out
    assert found["prices"] is None
    assert "a month" not in lake("usage lake").out


@pytest.mark.usefixtures("history", "prices")
def test_the_curve(lake: Ebbtide) -> None:
    found = lake.json("what-if lake --curve")
    counts = {each["label"]: each for each in found["points"] if each["axis"] == "count"}
    assert counts["1"]["is_present"]
    assert [counts[n]["candidate_bytes"] for n in ("1", "2", "3")] == [5, 5, 0]
    assert [counts[n]["regained_count"] for n in ("1", "2", "3")] == [0, 0, 1]
    assert [counts[n]["saves_month"] for n in ("1", "3")] == [5.0, 0.0]
    assert counts["1"]["quarantine_cost"] is None, "the file has no price of deletes"
    shown = lake("what-if lake --curve").out
    assert "1 *" in shown
    assert "EUR 5.00" in shown
    assert "730d" in shown
    policy = '{"default": {"keep_last": 3}}'
    other = lake.json("what-if lake --policy", policy)["policies"][1]
    assert other["candidate_bytes"] == counts["3"]["candidate_bytes"]


@pytest.mark.usefixtures("history", "prices")
def test_plans_have_amounts(lake: Ebbtide) -> None:
    shown = lake("gc plan lake --grace 0s --unsafe").out
    assert "a sweep saves EUR 5.00 a month" in shown
    found = lake.json("gc show lake latest")
    assert found["money"] == {
        "currency": "EUR",
        "saves_month": 5.0,
        "sweep_cost": None,
        "quarantine_cost": None,
    }


def test_what_cannot_be_asked(lake: Ebbtide, prices: Path) -> None:
    lake.refuses("invalid_argument", "what-if lake", code=2)
    lake.refuses("invalid_argument", "what-if lake --curve --policy {}", code=2)
    lake.refuses("invalid_argument", "what-if lake --rule main --policy {}", code=2)
    lake.refuses("invalid_argument", "usage lake --top 0", code=2)
    prices.write_text("[storage]\ndefault = 'much'")
    told = lake.refuses("invalid_setting", "usage lake", code=2).err
    assert "storage.'default'" in told


@pytest.mark.usefixtures("history")
def test_the_curve_counts_files_that_a_plan_leaves_out(
    lake: Ebbtide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_GRACE", "1d")
    assert lake.json("gc plan lake")["young_slices"] > 0
    found, usage = lake.json("what-if lake --curve"), lake.json("usage lake")
    own = usage["unheld"]["own_files"]
    for name in ("objects", "bytes_total"):
        assert found["listed"][name] == usage["listed"][name] - own[name]
    assert {each["kept_count"] for each in found["points"]} == {found["listed"]["objects"]}

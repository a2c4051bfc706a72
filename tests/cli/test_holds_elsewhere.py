"""`hold` on repositories outside the store: the holds lie beside the repository."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ebbtide.formats.holds import ADDRESS, with_restored
from tests.cli.conftest import Ebbtide
from tests.cli.test_lakefs_policies import NAME, world
from tests.formats.lakefs.world import LakefsWorld
from tests.support.icechunk_lake import candidates

__all__ = ["world"]
RUN = "--yes --grace 0s --unsafe --quarantine none --allow-share"


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table of four versions, each of which has one file of its own."""
    path = tmp_path / "lake/db/orders"
    path.mkdir(parents=True)
    for number in range(4):
        write_deltalake(str(path), pa.table({"id": [number]}), mode="overwrite")
    return path


def rows(path: Path, version: int) -> list[int]:
    table = DeltaTable(str(path), version=version).to_pyarrow_table()
    return [int(row["id"]) for row in table.to_pylist()]


def test_a_held_version_of_a_table_stays_until_it_is_released(
    orders: Path, ebbtide: Ebbtide
) -> None:
    name = f"delta:{orders}"
    made = ebbtide(f"hold add {name} 0 --reason", "audit of 2026").out
    assert f"commit 0 is held until 'ebbtide hold remove {name} 0'" in made
    assert ebbtide.json(f"hold add {name} table")["commit_id"] == "3"
    held = ebbtide.json(f"hold list {name}")["holds"]
    assert [(each["commit_id"], each["reason"]) for each in held] == [
        ("0", "audit of 2026"),
        ("3", ""),
    ]
    assert held[0]["created_at"] <= held[1]["created_at"]
    assert "audit of 2026" in ebbtide(f"hold list {name}").out
    # Twice: a policy is set as a whole, and changes no hold.
    for rule in ("keep_last:2", "keep_last:1"):
        ebbtide(f"retention set {name} --default {rule}")
    assert "held: audit of 2026" in ebbtide(f"retention show {name} --commits").out
    ebbtide(f"gc run {name} {RUN}")
    assert (rows(orders, 0), rows(orders, 3)) == ([0], [3])
    with pytest.raises(Exception, match=r"(?i)not found|no such file"):
        rows(orders, 1)
    # The name of the branch is that of another version by then.
    write_deltalake(str(orders), pa.table({"id": [4]}), mode="overwrite")
    for version in ("0", "3"):
        assert ebbtide.json(f"hold remove {name} {version}")["held"] is False
    assert "no holds" in ebbtide(f"hold list {name}").out
    assert ebbtide.json(f"gc run {name} {RUN}")["deleted_count"] == 2


def test_without_a_policy_the_tables_own_rule_applies_beside_the_hold(
    orders: Path, ebbtide: Ebbtide
) -> None:
    name = f"delta:{orders}"
    before = ebbtide.json(f"retention show {name}")["policy"]
    ebbtide(f"hold add {name} 1")
    shown = ebbtide.json(f"retention show {name} --commits")
    assert shown["policy"] == before
    reasons = {each["commit_id"]: each["reason"] for each in shown["commits"]}
    assert reasons["1"].startswith("held")
    found = ebbtide.json("what-if", name, "--policy", '{"default": {"keep_last": 1}}')
    assert found["policies"][-1]["expired_count"] == 2, "all but the newest and the held one"


def test_an_expired_version_is_held_only_while_its_files_are_there(
    orders: Path, ebbtide: Ebbtide
) -> None:
    name = f"delta:{orders}"
    ebbtide(f"retention set {name} --default keep_last:1")
    ebbtide(f"hold add {name} 0")
    run = ebbtide.json(f"gc run {name} {RUN.replace('none', '7d')}")
    assert run["deleted_count"] + run["quarantined_count"] == 2
    said = ebbtide.refuses("commit_expired", f"hold add {name} 1", code=1)
    assert "undo the run" in str(said)
    assert [each["commit_id"] for each in ebbtide.json(f"hold list {name}")["holds"]] == ["0"]
    ebbtide(f"gc undo {name} {run['run_id']}")
    ebbtide(f"hold add {name} 1")
    assert rows(orders, 1) == [1]


def test_a_new_policy_tells_which_holds_it_drops(
    orders: Path, ebbtide: Ebbtide, tmp_path: Path
) -> None:
    """Holds of the former policy's file; those of `hold add` stay."""
    name, file = f"delta:{orders}", tmp_path / "policy.json"
    file.write_text('{"default": {"keep_last": 1}, "holds": {"0": "audit", "1": "audit"}}')
    ebbtide(f"retention set {name} {file}")
    ebbtide(f"hold add {name} 2")
    file.write_text('{"default": {"keep_last": 1}, "holds": ["1"]}')
    said = ebbtide(f"retention set {name} {file}").err
    assert "the hold on commit '0' of the previous policy is dropped" in said
    assert said.count("the hold on") == 1
    said = ebbtide(f"retention set {name} --default keep_last:1").err
    assert "the hold on commit '1' of the previous policy is dropped" in said
    assert said.count("the hold on") == 1
    assert len(ebbtide.json(f"hold list {name}")["holds"]) == 1


def test_a_hold_names_the_table_among_several(orders: Path, ebbtide: Ebbtide) -> None:
    name = f"delta:{orders.parent.parent}/**"
    ebbtide(f"hold add {name} 0:db/orders")
    assert "commit 2:db/orders is held" in ebbtide(f"hold add {name} 2:db/orders").out
    ebbtide(f"retention set {name} --default keep_last:1")
    ebbtide(f"gc run {name} {RUN}")
    assert [rows(orders, each) for each in (0, 2, 3)] == [[0], [2], [3]]
    assert "not held any more" in ebbtide(f"hold remove {name} 0:db/orders").out


def test_holds_that_cannot_be(orders: Path, ebbtide: Ebbtide, tmp_path: Path) -> None:
    name = f"delta:{orders}"
    ebbtide.refuses("ref_not_found", f"hold add {name} 9", code=1)
    ebbtide.refuses("hold_not_found", f"hold remove {name} 2", code=1)
    for other in (f"icechunk:{tmp_path}/ice", "iceberg:prod"):
        said = ebbtide.refuses("invalid_argument", f"hold add {other} main", code=2)
        assert "tags keep what a hold would" in str(said)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"0": "audit"}',
        '{"0": {"reason": "audit", "created_at": "2026-11-01T00:00:00"}}',
        '{"0": {"reason": null, "created_at": "2026-11-01T00:00:00Z"}}',
        '{"0": {"created_at": "2026-11-01T00:00:00Z"}}',
        "[" * 100_000,
    ],
)
def test_damaged_holds_are_refused(text: str, orders: Path, ebbtide: Ebbtide) -> None:
    """A date without a zone, for one, and JSON that is too deep."""
    name = f"delta:{orders}"
    (orders / ADDRESS).parent.mkdir()
    (orders / ADDRESS).write_text(text)
    ebbtide.refuses("plan_corrupt", f"hold list {name}", code=3)
    ebbtide.refuses("plan_corrupt", f"gc run {name} {RUN}", code=3)


def test_a_released_version_need_not_exist(orders: Path, ebbtide: Ebbtide) -> None:
    """Delta's cleanup of the log may have been there."""
    name = f"delta:{orders}"
    ebbtide(f"hold add {name} 0")
    DeltaTable(str(orders)).create_checkpoint()
    (orders / "_delta_log" / f"{0:020d}.json").unlink()
    assert "held, but not in this repository" in ebbtide(f"retention show {name}").err
    ebbtide(f"hold remove {name} 0")
    assert ebbtide.json(f"hold list {name}")["holds"] == []


def test_a_commit_of_lakefs_is_held(world: LakefsWorld, ebbtide: Ebbtide) -> None:
    gone = candidates(world.collector().plan())
    assert gone, "by lakeFS's rules"
    shown = ebbtide.json("retention show", NAME, "--commits")["commits"]
    old = [each["commit_id"] for each in shown if not each["kept"]]
    for commit in old:
        assert ebbtide.json("hold add", NAME, commit)["commit_id"] == commit
    assert not candidates(world.collector().plan())
    for commit in old:
        assert commit in ebbtide("hold list", NAME).out
        ebbtide("hold remove", NAME, commit)
    assert candidates(world.collector().plan()) == gone


def test_a_hold_of_a_user_outlives_that_of_an_undo() -> None:
    end = datetime.now(UTC) + timedelta(days=1)
    restored = {"1": end, "2": end, "forgotten": end}
    holds, ends = with_restored({"1": "audit"}, restored, ("1", "2"))
    assert holds == {"1": "audit", "2": "restored by an undo"}
    assert ends == {"2": end}

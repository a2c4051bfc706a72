"""Tables that PyIceberg writes: what goes and what stays, alone and where tables share files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from ebbtide.audit.verify import verify
from ebbtide.errors import EbbtideError, Gone, InvalidInput, NotFound, Refused, UnknownRepository
from ebbtide.formats.base import Slices
from ebbtide.formats.capabilities import lost_of
from ebbtide.formats.iceberg.expiries import RECORDS_PREFIX
from ebbtide.formats.iceberg.expiring import SqlCommit
from ebbtide.formats.iceberg.layout import IcebergLayout
from ebbtide.formats.iceberg.places import Places, parse_aliases
from ebbtide.formats.iceberg.scheme import open_iceberg
from ebbtide.retention import Policy
from ebbtide.settings import Settings
from tests.formats.iceberg.histories import litter
from tests.formats.iceberg.warehouse import NAME, Warehouse, request, rows


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Warehouse]:
    with closing(Warehouse(tmp_path)) as made:
        yield made


def refused(lake: Warehouse, within: str = "") -> str:
    report = lake.collector(within).plan()
    assert report.error is not None
    return str(report.error["kind"])


def refused_to_open(lake: Warehouse) -> str:
    with pytest.raises(EbbtideError) as found:
        lake.open()
    return found.value.kind


def test_what_dead_writers_left_goes_and_comes_back(lake: Warehouse) -> None:
    table = lake.table("events")
    table.append(rows(1, 2))
    table.append(rows(3))
    left = litter(lake, table, 7)
    lake.age()
    young = litter(lake, table, 8)
    own = {"events/README.txt", "events/data/_temporary/0/00000-0-part.parquet"}
    for each in own | {"events/data/part-00000-0a-c000.snappy.parquet"}:
        (lake.path / each).parent.mkdir(parents=True, exist_ok=True)
        (lake.path / each).write_bytes(b"mine")
    lake.age(but=f"{UUID(int=8)}")
    before, contents = lake.files(), lake.contents()
    assert lake.planned() == left
    report = lake.swept(quarantine=timedelta(days=7))
    assert lake.files() == before - left
    assert young <= lake.files()
    assert lake.contents() == contents
    collector = lake.collector()
    assert not verify(collector, report.run_id).difference_count
    assert collector.undo(report.run_id).state == "undone"
    assert lake.files() == before
    lake.swept()
    assert lake.files() == before - left


def test_a_name_restricts_what_goes_and_not_what_is_needed(lake: Warehouse) -> None:
    """Twins, nested tables, shared folders, and files that another table has."""
    outer, inner = lake.table("outer"), lake.table("inner", location="outer/nested")
    outer.append(rows(1))
    inner.append(rows(2))
    twin = lake.catalog.register_table("db.twin", outer.metadata_location)
    outer.append(rows(3))
    twin.append(rows(4))
    shared = lake.table("shared", location="outer")
    shared.append(rows(5))
    adopted = lake.table("adopted")
    [file] = [each.file.file_path for each in inner.scan().plan_files()]
    adopted.add_files([file])
    inner.delete("id == 2")
    expired = inner.metadata.snapshots[0].snapshot_id
    inner.maintenance.expire_snapshots().by_id(expired).commit()
    left = litter(lake, outer, 1) | litter(lake, inner, 2)
    other = litter(lake, adopted, 3)
    lake.age()
    gone = {each for each in lake.files() if str(expired) in each}
    contents = lake.contents()
    within_outer = lake.planned("db.outer")
    assert left | gone <= within_outer
    assert not within_outer & (lake.needed() | other)
    assert lake.planned("db.inner") == {e for e in within_outer if e.startswith("outer/nested/")}
    lake.swept()
    assert lake.contents() == contents
    with pytest.raises(UnknownRepository, match="no table"):
        lake.open("db.nothing")


def test_a_foreign_table_refuses(lake: Warehouse, tmp_path: Path) -> None:
    """Another catalog has a table in the same folder, or the same table."""
    mine = lake.table("mine")
    mine.append(rows(1))
    (tmp_path / "other").mkdir()
    with closing(Warehouse(tmp_path / "other")) as theirs:
        check_two_catalogs(lake, theirs, mine)


def test_catalogs_that_are_named_together(lake: Warehouse, tmp_path: Path) -> None:
    """Each protects the other's files, from then on also if somebody forgets one of them."""
    mine = lake.table("mine")
    mine.append(rows(1))
    left = litter(lake, mine, 1)
    lake.age()
    alone = lake.swept(quarantine=timedelta(days=7))
    (tmp_path / "other").mkdir()
    lake.others["other"] = f"sqlite:///{tmp_path}/other/catalog.db"
    with closing(Warehouse(tmp_path / "other", name="other")) as theirs:
        theirs.path = lake.path
        assert refused_to_open(lake) == "repository_not_found"
        twin = theirs.catalog.register_table("db.twin", mine.metadata_location)
        twin.append(rows(2))
        theirs.table("theirs", location="mine").append(rows(3))
        assert lake.collector().undo(alone.run_id).state == "undone"
        lake.age()
        assert lake.planned("db.mine") == left
        lake.swept()
        assert len(theirs.contents()) == 3
    lake.others.clear()
    assert refused_to_open(lake) == "foreign_table"


def test_a_catalog_with_a_dot_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.formats.iceberg.warehouse.NAME", "lake.db")
    with closing(Warehouse(tmp_path, name="lake.db")) as lake:
        table, other = lake.table("events"), lake.table("others")
        table.append(rows(1))
        left, _ = litter(lake, table, 1), litter(lake, other, 2)
        lake.age()
        assert lake.planned("db.events") == left


def test_a_catalog_that_is_named_twice_counts_once(lake: Warehouse) -> None:
    lake.table("mine").append(rows(1))
    lake.others[NAME] = lake.uri
    with lake.open().reading(datetime.now(UTC)) as reading:
        assert [ref.name for ref in reading.roots().refs] == ["db.mine@main"]


@pytest.mark.parametrize("name", ["", "+", f"{NAME}+", f"{NAME}++{NAME}", f"+{NAME}"])
def test_a_name_without_a_catalog(name: str) -> None:
    with pytest.raises(InvalidInput) as found:
        open_iceberg(f"iceberg:{name}", Settings())
    assert found.value.kind == "invalid_argument"


def check_two_catalogs(lake: Warehouse, theirs: Warehouse, mine: Table) -> None:
    theirs.path = lake.path
    theirs.table("theirs", location="mine").append(rows(2))
    lake.age()
    assert refused(lake) == "foreign_table"
    theirs.catalog.drop_table("db.theirs")
    for each in lake.files() - lake.needed():
        (lake.path / each).unlink()
    twin = theirs.catalog.register_table("db.twin", mine.metadata_location)
    twin.append(rows(3))
    twin.append(rows(4))
    mine.append(rows(5))
    lake.age()
    assert refused(lake) == "foreign_table"


def test_a_name_that_was_left_as_it_was(lake: Warehouse) -> None:
    """It has the log of that time. Between that and the log of the other name, nothing tells where
    metadata files come from: they refuse no run."""
    table = lake.table("events", **{"write.metadata.previous-versions-max": "2"})
    for number in range(3):
        table.append(rows(number))
    lake.catalog.register_table("db.left", table.metadata_location)
    for number in range(5):
        table.append(rows(number))
    lake.age()
    lake.swept()
    assert lake.files() == lake.needed()


def test_what_owners_forbid(lake: Warehouse) -> None:
    """`gc.enabled=false` refuses the table, and is left out of a wider name with a word."""
    kept = lake.table("kept", **{"gc.enabled": "false"})
    kept.append(rows(1))
    lake.table("other").append(rows(2))
    left = litter(lake, lake.catalog.load_table("db.other"), 1)
    litter(lake, kept, 2)
    lake.age()
    assert refused(lake, "db.kept") == "repository_readonly"
    report = lake.collector().plan()
    assert lake.planned() == left
    assert any("db.kept" in each for each in report.warnings)
    lake.table("within", location="kept/within").append(rows(3))
    assert refused(lake) == "repository_readonly"


def test_a_file_that_is_needed_by_now_leaves_its_batch(lake: Warehouse) -> None:
    """A writer adds an old file after the recheck: between two batches, and after the last."""
    table = lake.table("events")
    table.append(rows(1))
    orphan = f"events/data/00000-0-{UUID(int=1)}.parquet"
    [file] = [each.file.file_path for each in table.scan().plan_files()]
    shutil.copyfile(file.removeprefix("file://"), lake.path / orphan)
    lake.age()
    repository = lake.open()
    with repository.reading(datetime.now(UTC)):
        guard = repository.guard((), ())
    other = "events/data/other.parquet"
    assert not guard(pa.array([orphan, other]))
    table.add_files([f"file://{lake.path}/{orphan}"])
    snapshot = table.refresh().metadata.current_snapshot_id
    assert guard(pa.array([orphan, other])) == {orphan: f"{snapshot}:db.events"}
    assert lost_of(repository, repository.guard((), ())) is None
    (lake.path / orphan).unlink()
    assert orphan in (lost_of(repository, repository.guard((), ())) or "")
    assert refused(lake) == "missing_object"


@pytest.mark.parametrize("damage", ["list", "swapped", "manifest", "metadata", "gone", "version"])
def test_what_cannot_be_read_refuses(lake: Warehouse, damage: str) -> None:
    """And names the table or the file."""
    table = lake.table("events")
    table.append(rows(1, 2, 3))
    first = table.current_snapshot()
    table.append(rows(4))
    lake.age()
    snapshot = table.current_snapshot()
    assert first is not None
    assert snapshot is not None
    manifest = snapshot.manifests(table.io)[0].manifest_path
    path, kind = {
        "list": (snapshot.manifest_list, "corrupt_tree"),
        "swapped": (snapshot.manifest_list, "corrupt_tree"),
        "manifest": (manifest, "corrupt_node"),
        "gone": (manifest, "missing_node"),
        "metadata": (table.metadata_location, "corrupt_tree"),
        "version": (table.metadata_location, "unknown_format_version"),
    }[damage]
    file = Path(path.removeprefix("file://"))
    collector = lake.collector()
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "swapped":  # for the list of another snapshot
        shutil.copyfile(first.manifest_list.removeprefix("file://"), file)
    elif damage == "version":
        file.write_bytes(data.replace(b'"format-version":2', b'"format-version":4'))
    else:
        file.write_bytes(data[: len(data) // 2])
    if damage in ("metadata", "version"):
        # A warehouse that was opened before has read the file.
        with pytest.raises(Refused, match="events") as raised:
            lake.open()
        assert raised.value.kind == kind
        return
    report = collector.plan()
    assert report.error is not None
    assert report.error["kind"] == kind
    assert file.name in report.error["message"]


def test_spellings_of_the_root() -> None:
    places = Places("s3://lake/wh", parse_aliases("s3://old/=s3://lake/wh/old/"))
    assert places.address("s3a://lake/wh/t/data/a%20b//c") == "t/data/a%20b//c"
    assert places.address("s3n://lake/wh/x") == "x"
    assert places.address("s3://old/t/x") == "old/t/x"
    assert places.address("s3://lake/why/x") == "s3://lake/why/x"
    for spelled in ("oss://lake/wh/t/x", "t/data/x"):
        with pytest.raises(Refused, match="EBBTIDE_ICEBERG_ALIASES"):
            places.address(spelled)
    local = Places("file:///data/wh")
    for spelled in ("file:/data/wh/t/x", "/data/wh/t//x", "file:///data/wh/t/x"):
        assert local.address(spelled) == "t/x"
    with pytest.raises(Refused, match="hdfs://name:8020/data/wh/="):
        local.address("hdfs://name:8020/data/wh/t/x")
    with pytest.raises(InvalidInput, match="PREFIX=URL"):
        parse_aliases("s3://old=s3://new/")


def test_expiry_keeps_what_rules_or_policy_keep(lake: Warehouse) -> None:
    """Nothing is lost that the metadata had, and a run frees the files of the others."""
    table = lake.table("events", **{"history.expire.max-snapshot-age-ms": "0"})
    for number in range(4):
        table.append(rows(number))
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    table.manage_snapshots().create_tag(ids[0], "first").commit()
    contents = lake.contents()
    repository = lake.open()
    _, expiry = repository.plan_expiry(request(rule={"keep_last": 2}))
    assert expiry.released == {f"{ids[1]}:db.events"}
    _, expiry = repository.plan_expiry(request())
    assert expiry.released == {f"{each}:db.events" for each in ids[1:3]}
    assert lake.expire(request())[1].released == expiry.released
    assert repository.plan_expiry(request())[1].is_empty
    table = table.refresh()
    assert [each.snapshot_id for each in table.metadata.snapshots] == [ids[0], ids[3]]
    assert [each.snapshot_id for each in table.metadata.snapshot_log] == [ids[3]]
    assert table.metadata.refs.keys() == {"main", "first"}
    lake.age()
    assert {each for each in lake.planned() if "snap-" in each} == {
        each for each in lake.files() if any(f"snap-{one}-" in each for one in ids[1:3])
    }
    lake.swept()
    kept = {("db.events", each) for each in (ids[0], ids[3])}
    assert lake.contents() == {key: contents[key] for key in kept}
    table.append(rows(9))


def test_a_policy_counts_a_history_that_was_thinned_as_one_line(lake: Warehouse) -> None:
    table = lake.table("events", **{"history.expire.max-snapshot-age-ms": "0"})
    for number in range(5):
        table.append(rows(number))
    ids = [f"{each.snapshot_id}:db.events" for each in table.metadata.snapshots]
    policy = {"default": {"keep_last": 1}, "holds": dict.fromkeys((ids[1], ids[3]), "an audit")}
    repository = lake.open()
    _, expiry = lake.expire(request(policy=Policy.parse(policy)))
    assert expiry.released == {ids[0], ids[2]}
    _, expiry = repository.plan_expiry(request(rule={"keep_last": 3}))
    assert not expiry.released
    _, expiry = lake.expire(request(rule={"keep_last": 2}))
    assert expiry.released == {ids[1]}


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_undone_expiry_lists_its_snapshots_again(lake: Warehouse, version: str) -> None:
    """If their files are there. They stay, whatever the next expiry does."""
    properties = {"history.expire.max-snapshot-age-ms": "0", "format-version": version}
    table = lake.table("events", **properties)
    for number in range(3):
        table.append(rows(number))
    data = {each.file.file_path.removeprefix("file://") for each in table.scan().plan_files()}
    table.overwrite(rows(9))
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    manage = table.manage_snapshots().create_tag(ids[0], "old", max_ref_age_ms=1)
    manage.create_tag(ids[1], "kept").commit()
    table.refresh()
    contents, before = lake.contents(), table.metadata
    lake.expire(request())
    assert lake.tables()[0].metadata.refs.keys() == {"main", "kept"}
    lake.age()
    report = lake.swept(quarantine=timedelta(days=7))
    [only] = [each for each in map(Path, data) if not each.exists()]
    with pytest.raises(Refused, match="undo that run first"):
        lake.undo_expiry()
    assert lake.collector().undo(report.run_id).state == "undone"
    only.rename(only.with_suffix(".away"))
    with pytest.raises(Refused, match=only.name):
        lake.undo_expiry()
    only.with_suffix(".away").rename(only)
    assert lake.undo_expiry() == {"db.events": [ids[0], *ids[2:4]]}
    assert lake.undo_expiry() == {"db.events": []}
    after = lake.tables()[0].metadata
    assert after.snapshots == before.snapshots
    tags = {f"ebbtide-undo-{each}" for each in ids[2:4]}
    assert after.refs.keys() == {"main", "kept", "old"} | tags
    assert lake.contents() == contents
    lake.expire(request())
    assert ids[2] in {each.snapshot_id for each in lake.tables()[0].metadata.snapshots}
    with pytest.raises(NotFound, match="no record"):
        lake.undo_expiry("0" * 32)


def test_undoing_an_expiry_whose_tag_lost_its_snapshot_later(lake: Warehouse) -> None:
    """The first expiry drops a tag of a snapshot that another tag keeps until the second."""
    table = lake.table("events", **{"history.expire.max-snapshot-age-ms": "0"})
    for number in range(2):
        table.append(rows(number))
    first = table.metadata.snapshots[0].snapshot_id
    manage = table.manage_snapshots().create_tag(first, "old", max_ref_age_ms=1)
    manage.create_tag(first, "kept").commit()
    lake.expire(request())
    [record] = (lake.path / RECORDS_PREFIX).rglob("*.json")
    one = record.name.partition(".")[0]
    lake.tables()[0].manage_snapshots().remove_tag("kept").commit()
    lake.expire(request())
    before = lake.tables()[0].metadata
    with pytest.raises(Gone, match=f"old .* {first}.* undo that one first"):
        lake.undo_expiry(one)
    assert lake.tables()[0].metadata == before
    assert lake.undo_expiry() == {"db.events": [first]}
    lake.undo_expiry(one)
    assert lake.tables()[0].metadata.refs["old"].snapshot_id == first


def test_files_outside_the_root_are_looked_for(lake: Warehouse, tmp_path: Path) -> None:
    """Through links, too."""
    table = lake.table("events")
    table.append(rows(1))
    [file] = [each.file.file_path for each in table.scan().plan_files()]
    (tmp_path / "real dir").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real dir")
    away = tmp_path / "linked" / "a%20b c.parquet"
    shutil.copyfile(file.removeprefix("file://"), away)
    table.add_files([f"file://{away}"])
    lake.age()
    assert not lake.planned()
    away.unlink()
    assert refused(lake) == "missing_object"


def test_a_needed_file_in_quarantine_comes_back(lake: Warehouse) -> None:
    """A writer added it after the last check of the sweep. The next run restores it."""
    table = lake.table("events")
    table.append(rows(1))
    [file] = [each.file.file_path for each in table.scan().plan_files()]
    orphan = lake.path / f"events/data/00000-0-{UUID(int=1)}.parquet"
    shutil.copyfile(file.removeprefix("file://"), orphan)
    lake.age()
    lake.swept(quarantine=timedelta(days=7))
    shutil.copyfile(file.removeprefix("file://"), orphan)
    table.add_files([f"file://{orphan}"])
    orphan.unlink()
    report = lake.swept()
    assert orphan.exists()
    assert any(orphan.name in each for each in report.warnings)
    orphan.unlink()
    shutil.rmtree(lake.path / "_ebbtide")
    assert refused(lake) == "missing_object"


def test_files_of_other_tables_are_not_this_ones(lake: Warehouse) -> None:
    """Whatever lists them: an inventory has all of the warehouse."""
    lake.table("mine").append(rows(1))
    lake.table("theirs").append(rows(2))
    layout = lake.open("db.mine").layout
    addresses = pa.array(sorted(lake.files()), pa.string())
    inside = [each.startswith("mine/") for each in sorted(lake.files())]
    assert [kind != "foreign" for kind in layout.classify(addresses).to_pylist()] == inside
    slices = Slices(cutoff=datetime.now(UTC), now=datetime.now(UTC))
    assert layout.left_out(addresses, slices).to_pylist() == [not each for each in inside]
    for each in lake.files():
        if each.startswith("theirs/data"):
            (lake.path / each).unlink()
    lake.age()
    assert not lake.planned("db.mine")


def test_a_ref_that_is_set_during_an_expiry_stays(
    lake: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decision and the change of the pointer somebody tags a snapshot."""
    table = lake.table("events", **{"history.expire.max-snapshot-age-ms": "0"})
    for number in range(3):
        table.append(rows(number))
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    remove, calls = SqlCommit.remove, list[bool]()

    def late(self: SqlCommit, *arguments: object) -> bool:
        if not calls:
            table.manage_snapshots().create_tag(ids[0], "late").commit()
        calls.append(remove(self, *arguments))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(SqlCommit, "remove", late)
    _, expiry = lake.expire(request())
    assert calls == [False, True]
    assert expiry.released == {f"{ids[1]}:db.events"}
    assert table.refresh().metadata.refs["late"].snapshot_id == ids[0]


def test_names_that_no_writer_makes_are_foreign() -> None:
    layout = IcebergLayout(Places("file:///wh"), ("t/",))
    token = UUID(int=5)
    kinds = {
        f"t/data/a=1/00000-1-{token}-0-00001.parquet": "data",
        f"t/data/_col=1/00000-1-{token}-0-00001-deletes.puffin": "data",
        f"t/data/20250102_101112_00001_abcde-{token}.orc": "data",
        f"t/data/part-00000-{token}-c000.snappy.parquet": "foreign",
        f"t/data/_tmp/00000-1-{token}-0-00001.parquet": "foreign",
        f"t/data/.hidden/00000-1-{token}-0-00001.parquet": "foreign",
        "t/data/eq-deletes.parquet": "foreign",
        f"t/metadata/00003-{token}.gz.metadata.json": "metadata",
        f"t/metadata/00003-{token}.metadata.json.gz": "metadata",
        f"t/metadata/snap-12-1-{token}.avro": "manifest_list",
        f"t/metadata/{token}-m12.avro": "manifest",
        f"t/metadata/optimized-m-{token}.avro": "manifest",
        f"t/metadata/12-{token}.stats": "statistics",
        "t/metadata/version-hint.text": "system",
        f"t/metadata/0123-0-1-7-{'a' * 32}.avro": "foreign",
        "_ebbtide/gc/EPOCH": "system",
    }
    assert layout.classify(pa.array(kinds)).to_pylist() == [*kinds.values()]

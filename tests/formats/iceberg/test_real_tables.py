"""Tables that Iceberg's own programs wrote, with what must go and what stays, by the case."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest

from ebbtide.formats.iceberg.rules import kept_by_rules
from ebbtide.formats.iceberg.tables import TableStates
from ebbtide.model import EPOCH
from tests.formats.iceberg.warehouse import Warehouse
from tests.support.fixtures import FIXTURES_VARIABLE
from tests.support.requirements import require_or_skip

CASES: Final = (
    "py_add_files",
    "py_branches",
    "py_twice",
    "spark_locations",
    "spark_shared",
    "spark_stats",
    "spark_v1",
    "spark_v2_deletes",
    "spark_v3_dv",
    "spark_wap",
)
_OLD: Final = ("file:///ebbtide-fixtures/iceberg/", "file:/ebbtide-fixtures/iceberg/")
_YOUNG: Final = "dead0006"


class Case:
    """A case in a warehouse of its own. The paths within its metadata are those of that place."""

    def __init__(self, name: str, path: Path) -> None:
        directory = os.environ.get(FIXTURES_VARIABLE)
        source = Path(directory or "/nowhere") / "iceberg"
        if not (source / f"{name}.json").exists():
            require_or_skip("fixtures", f"{FIXTURES_VARIABLE} names no directory with iceberg/")
        self.facts: dict[str, Any] = json.loads((source / f"{name}.json").read_text())
        self.lake = Warehouse(path)
        for folder in self.facts["folders"]:
            shutil.copytree(source / "tables" / folder, self.lake.path / folder)
        lengths: dict[str, int] = {}
        for each in sorted(self.lake.path.rglob("*"), key=lambda each: each.name[:5] == "snap-"):
            if each.suffix == ".avro" or ".metadata.json" in each.name:
                self._move(each, lengths)
        self.lake.age(but=_YOUNG)
        for table, known in self.facts["tables"].items():
            location = f"file://{self.lake.path}/{known['metadata_location']}"
            self.lake.catalog.register_table(f"db.{table}", location)

    def _move(self, file: Path, lengths: dict[str, int]) -> None:
        """Changes the paths in a metadata file, a list or a manifest."""
        data = file.read_bytes()
        if file.suffix == ".avro":
            data = self._moved_avro(data, lengths)
            lengths[f"file://{file}"] = len(data)
        else:
            text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            moved = json.dumps(self._moved(json.loads(text), lengths)).encode()
            data = gzip.compress(moved) if text is not data else moved
        file.write_bytes(data)

    def _moved_avro(self, data: bytes, lengths: dict[str, int]) -> bytes:
        reader = fastavro.reader(BytesIO(data))
        found = [self._moved(each, lengths) for each in reader]
        kept = {k: v for k, v in reader.metadata.items() if k not in ("avro.schema", "avro.codec")}
        out = BytesIO()
        schema = json.loads(reader.metadata["avro.schema"])
        codec = reader.metadata.get("avro.codec", "null")
        fastavro.writer(out, schema, found, codec=codec, metadata=kept)
        return out.getvalue()

    def _moved(self, value: Any, lengths: dict[str, int]) -> Any:
        if isinstance(value, str):
            old = next((each for each in _OLD if value.startswith(each)), None)
            return value if old is None else f"file://{self.lake.path}/{value.removeprefix(old)}"
        if isinstance(value, list):
            return [self._moved(each, lengths) for each in value]
        if not isinstance(value, dict):
            return value
        moved = {key: self._moved(each, lengths) for key, each in value.items()}
        if moved.get("manifest_path") in lengths:
            moved["manifest_length"] = lengths[moved["manifest_path"]]
        return moved

    def read(self) -> TableStates:
        return self.lake.open()._warehouse.read()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made = Case(request.param, tmp_path)
    with closing(made.lake):
        yield made


def test_what_is_orphaned_goes_and_all_else_stays(case: Case) -> None:
    lake, expected = case.lake, set(case.facts["orphan"])
    if case.facts["case"] == "spark_shared":
        report = lake.collector().plan()
        assert report.error is not None
        assert report.error["kind"] == "repository_readonly"
        return
    before = lake.files()
    live = {each for table in case.facts["tables"].values() for each in table["live"]}
    assert lake.planned() == expected
    report = lake.swept(quarantine=timedelta(days=7))
    assert lake.files() == before - expected
    assert live <= lake.files()
    assert lake.collector().undo(report.run_id).state == "undone"
    assert lake.files() == before
    lake.swept()
    assert lake.files() == before - expected


def test_the_live_files_are_those_of_the_case(case: Case) -> None:
    """By table: the metadata, and what each snapshot has."""
    tables, repository = case.read(), case.lake.open()
    for name, facts in case.facts["tables"].items():
        own = TableStates(tables.pointers, {name: tables.metadata[f"db.{name}"]})
        named = dict(repository._warehouse.added(own, frozenset()))
        assert named.keys() == facts["live"].keys()


def test_rules_expire_what_iceberg_expires(case: Case) -> None:
    for name, table in case.facts["tables"].items():
        facts, found = table["expire"], case.read().metadata[f"db.{name}"]
        now, bound = (
            EPOCH + timedelta(milliseconds=facts[key]) for key in ("now_ms", "older_than_ms")
        )
        kept = kept_by_rules(found, now=now, older_than=bound)
        assert found.snapshots.keys() - kept.snapshots == {*facts["expired"]}
        assert {*kept.dropped_refs} == {*facts["refs_dropped"]}

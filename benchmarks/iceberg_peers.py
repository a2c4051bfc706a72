"""The peers of `benchmarks.iceberg`, each as a program of its own.

    PYTHON benchmarks/iceberg_peers.py procedures WAREHOUSE URI TABLE JARS    only lists orphans
    PYTHON benchmarks/iceberg_peers.py maintain WAREHOUSE URI TABLE JARS      expires and deletes
    python -m benchmarks.iceberg_peers script WAREHOUSE URI TABLE             only lists orphans

The first two are Spark's procedures, in an environment with a PySpark of its own. The script is
what a user of PyIceberg would write: it reads all manifests into a set, and walks through the
table's folder. All print the orphans that they found, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

GRACE: Final = timedelta(days=3)
SNAPSHOT_AGE: Final = timedelta(days=5)
MEMORY: Final = "1g"
CATALOG: Final = "benchmark"


def session(warehouse: str, uri: str, jars: str) -> Any:  # a SparkSession
    """Starts Spark with the catalog. `jars` are paths with colons between them."""
    from pyspark.sql import SparkSession

    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.driver.extraClassPath": jars,
        "spark.driver.memory": MEMORY,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": "jdbc:sqlite:" + uri.removeprefix("sqlite:///"),
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"file://{warehouse}",
    }
    builder: Any = SparkSession.builder
    builder = builder.master("local[*]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def procedures(warehouse: str, uri: str, table: str, jars: str, *, deletes: bool) -> list[str]:
    """Lists orphans with Spark's procedure. With `deletes`, expires all snapshots but the newest
    one before, and deletes the files of both. Returns the orphans."""
    spark = session(warehouse, uri, jars)
    now = datetime.now(UTC)

    def call(procedure: str, older: timedelta, rest: str) -> list[Any]:
        date = f"{now - older:%Y-%m-%d %H:%M:%S}"
        text = f"CALL {CATALOG}.system.{procedure}(table => '{CATALOG}.{table}', "
        rows: list[Any] = spark.sql(f"{text}older_than => TIMESTAMP '{date}', {rest})").collect()
        return rows

    if deletes:
        call("expire_snapshots", SNAPSHOT_AGE, "retain_last => 1")
    found = call("remove_orphan_files", GRACE, f"dry_run => {str(not deletes).lower()}")
    spark.stop()
    return [row[0] for row in found]


def script(warehouse: str, uri: str, table: str) -> list[str]:
    """Lists orphans: all that lies in the table's folder, but for what its metadata names."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(CATALOG, uri=uri, warehouse=f"file://{warehouse}")
    loaded = catalog.load_table(table)
    live = {
        loaded.metadata_location,
        *(each.metadata_file for each in loaded.metadata.metadata_log),
    }
    manifests = {}
    for snapshot in loaded.metadata.snapshots:
        live.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(loaded.io):
            manifests[manifest.manifest_path] = manifest
    for path, manifest in manifests.items():
        live.add(path)
        for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=True):
            live.add(entry.data_file.file_path)
    limit = time.time() - GRACE.total_seconds()
    found, waiting = [], [loaded.location().removeprefix("file://")]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for each in entries:
                if each.is_dir(follow_symlinks=False):
                    waiting.append(each.path)
                elif f"file://{each.path}" not in live and each.stat().st_mtime < limit:
                    found.append(each.path)
    catalog.close()
    return found


def main(arguments: list[str] | None = None) -> None:
    """Runs the chosen peer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["procedures", "maintain", "script"])
    parser.add_argument("warehouse")
    parser.add_argument("uri")
    parser.add_argument("table")
    parser.add_argument("jars", nargs="?", default="")
    given = parser.parse_args(arguments)
    place = (given.warehouse, given.uri, given.table)
    if given.what == "script":
        found = script(*place)
    else:
        found = procedures(*place, given.jars, deletes=given.what == "maintain")
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

"""What a table asks of its readers and writers: features, and properties that decide about files.

A run deletes files, so that it must know every feature of both lists, whether or not the feature
seems to matter. Source: Delta Transaction Log Protocol, "Table Features" and "Valid Feature Names".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ebbtide.errors import InvalidInput, Refused
from ebbtide.formats.delta.places import DamagedLogError

READER_MAX, WRITER_MAX = 3, 7
KNOWN: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("columnMapping", "identityColumns", "deletionVectors", "rowTracking", "timestampNtz"),
        *("domainMetadata", "v2Checkpoint", "icebergCompatV1", "icebergCompatV2", "clustering"),
        *(
            "vacuumProtocolCheck",
            "inCommitTimestamp",
            "allowColumnDefaults",
            "checkpointProtection",
        ),
        *("typeWidening", "typeWidening-preview", "variantType", "variantType-preview"),
        *("variantShredding", "variantShredding-preview", "materializePartitionColumns"),
    }
)
_FORBIDDEN: Final = ("delta.coordinatedCommits.", "delta.redirect")
"""Properties of tables whose newest commits, or whose files, are not where this log is."""
_RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_RETENTION: Final = "delta.logRetentionDuration"
_CLEANUP: Final = "delta.enableExpiredLogCleanup"
_UNIFORM: Final = "delta.universalFormat.enabledFormats"
_PHYSICAL: Final = "delta.columnMapping.physicalName"
_UNITS: Final = frozenset(["microsecond", "millisecond", "second", "minute", "hour", "day", "week"])
_INTERVAL: Final = re.compile(r"(?:interval\s+)?((?:[0-9]+\s+[a-z]+\s*)+)")


def check_protocol(where: str, protocol: Mapping[str, Any]) -> None:
    """Raises Refused `unknown_format_version` if a table needs anything that this program does not
    know. `where` names the table and its version. Raises DamagedLogError."""
    needs = []
    for name, most in (("minReaderVersion", READER_MAX), ("minWriterVersion", WRITER_MAX)):
        version = protocol.get(name)
        if not isinstance(version, int):
            raise DamagedLogError(f"the protocol has no {name}")
        if version > most:
            needs.append(f"{name} {version}")
    for name in ("readerFeatures", "writerFeatures"):
        features = protocol.get(name)
        if features is None:
            continue
        if not isinstance(features, list) or not all(isinstance(f, str) for f in features):
            raise DamagedLogError(f"the protocol's {name} are no list of names")
        needs += [f"feature {each}" for each in sorted({*features} - KNOWN)]
    if needs:
        raise Refused(
            "unknown_format_version",
            f"{where} needs {', '.join(dict.fromkeys(needs))}, which this program does not know: "
            "files that seem to be needed by nobody may be needed. Use a newer version of this "
            "program, or another one for this table",
        )


@dataclass(frozen=True, slots=True)
class DeltaMetadata:
    """The metadata of one version: the columns that partition it, by all of their names, and its
    properties."""

    partition_columns: frozenset[str]
    properties: Mapping[str, str]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> DeltaMetadata:
        """Reads the action `metaData`. Raises DamagedLogError."""
        columns, properties = found.get("partitionColumns") or [], found.get("configuration") or {}
        if not isinstance(columns, list) or not isinstance(properties, dict):
            raise DamagedLogError("the metadata has columns or properties of another type")
        names = {str(each) for each in columns}
        physical = set(_physical_names(found.get("schemaString"), names))
        texts = {str(name): str(value) for name, value in properties.items()}
        return cls(frozenset(names | physical), texts)

    def check(self, where: str) -> None:
        """Raises Refused `unknown_format_version` if another place than the log has the newest
        versions, or the files."""
        for name in self.properties:
            if name.startswith(_FORBIDDEN):
                raise Refused(
                    "unknown_format_version",
                    f"{where} sets {name}: another place than this log says which files the table "
                    "needs. Collect it with the program that manages it",
                )

    @property
    def has_iceberg(self) -> bool:
        """Whether the table has Iceberg's metadata in its folder `metadata/`, too (UniForm)."""
        return "iceberg" in self.properties.get(_UNIFORM, "").lower()

    @property
    def retention(self) -> timedelta:
        """How long the table keeps removed files. Raises InvalidInput `invalid_policy`."""
        return parse_interval(self.properties.get(_RETENTION, "interval 1 week"), _RETENTION)

    @property
    def log_retention(self) -> timedelta | None:
        """How long the table keeps its log; None if it keeps all of it. Raises InvalidInput
        `invalid_policy`."""
        if self.properties.get(_CLEANUP, "true").lower() == "false":
            return None
        text = self.properties.get(LOG_RETENTION, "interval 30 days")
        return parse_interval(text, LOG_RETENTION)


def _physical_names(schema: Any, names: set[str]) -> Iterator[str]:
    """Yields the physical names of columns, which name the folders of partitions."""
    if schema is None:
        return
    try:
        for each in json.loads(schema)["fields"]:
            physical = (each.get("metadata") or {}).get(_PHYSICAL)
            if each["name"] in names and isinstance(physical, str):
                yield physical
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedLogError(f"the schema cannot be read: {error}") from error


def parse_interval(text: str, name: str) -> timedelta:
    """Returns the length of an interval such as `interval 1 week`. Raises InvalidInput
    `invalid_policy`, naming the property."""
    match = _INTERVAL.fullmatch(text.strip().lower().replace("'", ""))
    parts = match[1].split() if match is not None else []
    found = timedelta()
    try:
        for count, unit in zip(parts[::2], parts[1::2], strict=True):
            name_of_unit = unit.removesuffix("s")
            if name_of_unit not in _UNITS:
                raise ValueError(unit)
            found += timedelta(**{f"{name_of_unit}s": int(count)})
        if not parts:
            raise ValueError(text)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "invalid_policy",
            f"the table's property {name} is {text[:100]!r}, which is no length of time: set it as "
            "in 'interval 7 days', or give a policy",
        ) from None
    return found

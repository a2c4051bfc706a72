"""The plan of a purge: what is named and which objects that is, on storage before anything goes.

```
<purge_id>/plan.json            what is named, figures, the checksum of each part and of itself
<purge_id>/objects/             each address with size, checksum and paths (OBJECTS_SCHEMA)
<purge_id>/references.parquet   what is in the way (REFERENCES_SCHEMA), if anything is
<purge_id>/deleted/             the same as objects/, with what became of each (DELETED_SCHEMA)
<purge_id>/record-1.json        the signed record; one more for each time it was resumed
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema, texts
from ebbtide.errors import Refused
from ebbtide.formats.base import Identity
from ebbtide.gc.parts import Part, PartRows, read_part
from ebbtide.gc.runs import RunFolder, checksum_of
from ebbtide.purge.naming import Named
from ebbtide.purge.objects import OBJECTS_SCHEMA
from ebbtide.purge.references import Reference, count_by_kind, to_table

PLAN_FILE: Final = "plan.json"
REFERENCES_FILE: Final = "references.parquet"
FORMAT_VERSION: Final = 1
ROWS_PER_PART: Final = 10_000
"""So many addresses are deleted between two records of what became of them."""
REFERENCES_SHOWN: Final = 20

DELETED_SCHEMA: Final = pa.schema(
    [*OBJECTS_SCHEMA, *make_schema(("outcome", pa.string()), ("error", pa.string()))]
)
"""`outcome` is `deleted`, `missing` or `failed`; `error` says why one failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """What goes. `parts` have its objects. `references` are the first things that were in the way,
    `reference_counts` all of them by kind. `foreign_count` counts files that stay in a repository
    that is purged as a whole, since they look like nobody's."""

    purge_id: str
    identity: Identity
    storage_url: str
    planned_at: datetime
    whole: bool
    named: Named
    parts: tuple[Part, ...]
    foreign_count: int = 0
    references: tuple[Reference, ...] = ()
    reference_counts: Mapping[str, int]

    @property
    def object_count(self) -> int:
        """How many objects go."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes_total(self) -> int:
        """Their sizes together."""
        return sum(part.bytes_total for part in self.parts)

    @property
    def reference_count(self) -> int:
        """How much is in the way."""
        return sum(self.reference_counts.values())

    def to_json(self) -> dict[str, Any]:
        """Without the checksum."""
        return {
            "format": FORMAT_VERSION,
            "purge_id": self.purge_id,
            "format_name": self.identity.format_name,
            "store_id": self.identity.store_id,
            "repository_id": self.identity.repository_id,
            "repository_name": self.identity.repository_name,
            "storage_url": self.storage_url,
            "planned_at": self.planned_at.isoformat(),
            "whole": self.whole,
            "named": self.named.to_json(),
            "parts": [part.to_json() for part in self.parts],
            "foreign_count": self.foreign_count,
            "references": [reference.to_json() for reference in self.references],
            "reference_counts": dict(self.reference_counts),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PurgePlan:
        """What `to_json` gave. KeyError, TypeError or ValueError when it is something else."""
        return cls(
            purge_id=content["purge_id"],
            identity=Identity(
                content["format_name"],
                content["store_id"],
                content["repository_id"],
                content["repository_name"],
            ),
            storage_url=content["storage_url"],
            planned_at=datetime.fromisoformat(content["planned_at"]),
            whole=content["whole"],
            named=Named.from_json(content["named"]),
            parts=tuple(map(Part.from_json, content["parts"])),
            foreign_count=content["foreign_count"],
            references=tuple(
                Reference(
                    each["kind"],
                    each["id"],
                    tuple(each["names"]),
                    each["entry_count"],
                    tuple(each["examples"]),
                )
                for each in content["references"]
            ),
            reference_counts=content["reference_counts"],
        )

    def with_references(self, found: list[Reference]) -> PurgePlan:
        """This plan, with what is in its way."""
        return replace(
            self,
            references=tuple(found[:REFERENCES_SHOWN]),
            reference_counts=count_by_kind(found),
        )


def write_objects(
    folder: RunFolder, tables: Iterable[pa.Table], *, stem: str = "objects/part"
) -> list[Part]:
    """Write objects (tables of OBJECTS_SCHEMA) as parts of a bounded size."""
    answer = PartRows()
    number = 0
    for table in tables:
        for start in range(0, table.num_rows, ROWS_PER_PART):
            piece = table.slice(start, ROWS_PER_PART)
            answer.wrote(folder, f"{stem}-{number:05d}.parquet", piece, durable=True)
            number += 1
    return answer.parts()


def read_objects(folder: RunFolder, parts: Iterable[Part]) -> Iterator[pa.Table]:
    """The objects (OBJECTS_SCHEMA), part by part. Refused `plan_corrupt`."""
    for part in parts:
        assert part.name is not None
        yield read_part(folder, part.name, part.checksum).cast(OBJECTS_SCHEMA)


def write_plan(folder: RunFolder, plan: PurgePlan, found: list[Reference]) -> str:
    """Write the plan, and all that is in its way; its checksum."""
    PartRows().wrote(folder, REFERENCES_FILE, to_table(found), durable=True)
    content = plan.to_json()
    checksum = checksum_of(content)
    folder.put_json(PLAN_FILE, content | {"checksum": checksum})
    return checksum


def read_plan(folder: RunFolder, checksum: str) -> PurgePlan:
    """The plan whose checksum the database has. Refused `plan_missing` or `plan_corrupt`."""
    content = folder.get_json(PLAN_FILE)
    if content is None:
        raise Refused("plan_missing", f"{folder.path}/{PLAN_FILE} is not there: restore it")
    try:
        if content.get("checksum") != checksum or checksum_of(content) != checksum:
            raise ValueError("its checksum is not the one recorded")
        return PurgePlan.from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            "plan_corrupt", f"{folder.path}/{PLAN_FILE} is not as it was written: {error}"
        ) from error


def outcome_counts(table: pa.Table) -> dict[str, int]:
    """Rows of DELETED_SCHEMA by outcome."""
    return dict(Counter(texts(table.column("outcome"))))

"""Documents of things: their fields, and the JSON that is made from a declaration."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from ebbtide.documents import (
    HIDDEN,
    INLINE,
    document_of,
    documented,
    in_document,
    instant,
    is_documented,
    named,
    parts_of,
    things,
)
from ebbtide.model import Hold
from ebbtide.purge.plan import PurgeFigures, PurgeReport
from ebbtide.purge.references import Reference
from ebbtide.purge.verifying import Difference, PurgeFindings
from ebbtide.server.api.answers import model_of, plain
from ebbtide.store.access.access_keys import AccessKey, Grant
from ebbtide.store.access.signed_tokens import Rotation
from ebbtide.store.collections.projects import Project
from ebbtide.store.collections.queries import VersionRow
from ebbtide.store.collections.reading import Collection
from ebbtide.store.content.entries import Entry
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.purge_records import PurgeRow
from ebbtide.store.refs.refs import Branch, Tag
from ebbtide.store.repositories.catalog import Catalogued
from ebbtide.store.schedules import Schedule, ScheduledRun
from tests.support.randomized import examples, randomized

ITEM: Final = "name description properties created_at modified_at expires_at ends_at state"
VERSION: Final = "version content_hash file_count size_bytes"
PURGE: Final = (
    "purge_id repository_id repository state request record_path record_sha256 started_at "
    "closed_at finished_at error"
)
FIELDS: Final[dict[type, str]] = {
    AccessKey: "access_key_id role name created_at revoked_at",
    Branch: "ref_id name commit_id created_at expires_at state hidden",
    Catalogued: "repository_id name storage_url default_branch created_at expires_at state",
    Collection: f"collection_id project_id repository path replication_desired {VERSION} {ITEM}",
    CommitRecord: "commit_id parent_ids created_at written_at tree_id message committer metadata "
    "state run_id",
    Entry: "path address size_bytes checksum mtime content_type metadata",
    Grant: "access_key_id repository repository_id role",
    Hold: "commit_id reason created_at",
    Difference: "kind text",
    PurgeFigures: "object_count size_bytes foreign_count outcomes reference_count reference_counts "
    "references kept_count kept_bytes kept_reference_counts kept_references promised_until "
    "retained warnings",
    PurgeFindings: "purge_id verified address_count differences",
    PurgeRow: PURGE,
    Reference: "kind id names entry_count examples",
    Project: f"project_id parent_id repository path {ITEM}",
    Rotation: "key_id retired_ids verifying_ids retirable_at",
    Schedule: "repository cron timezone jitter_seconds enabled run set_by set_at next_due_at "
    "next_start_at started_count missed_count skipped_count last_run",
    ScheduledRun: "due_at started_at ended_at run_id outcome error",
    Tag: "ref_id name commit_id created_at expires_at state",
    VersionRow: f"collection_id name description properties modified_at {VERSION}",
}
FIELDS[PurgeReport] = f"{PURGE} {FIELDS[PurgeFigures]}"
"""What programs can rely on, and all that gets out. A new field is one more word here."""


def fields_of(thing: type) -> set[str]:
    found = set[str]()
    for name, attribute, is_inline in parts_of(thing):
        found |= fields_of(get_type_hints(thing)[attribute]) if is_inline else {name}
    return found


@pytest.mark.parametrize("thing", FIELDS, ids=lambda thing: thing.__name__)
def test_each_thing_has_these_fields(thing: type) -> None:
    assert fields_of(thing) == set(FIELDS[thing].split())


def test_no_thing_is_left_out() -> None:
    """What one has inline is declared too, and has no fields of its own here."""
    names = {each.__name__ for each in FIELDS} | {"RepositoryInfo"}
    assert {each.__name__ for each in things() if each.__module__.startswith("ebbtide.")} == names


class Colour(Enum):
    RED = "red"


@documented
@dataclass(frozen=True, slots=True)
class Small:
    at: datetime
    secret: str = field(metadata=HIDDEN)


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    small: Small
    inner: Small = field(metadata=INLINE)
    smalls: tuple[Small, ...]
    text: str | None
    colour: Colour
    free: dict[str, Any]
    other: int = field(metadata=named("number"))

    @property
    @in_document
    def double(self) -> int:
        """Twice the number."""
        return 2 * self.other

    @property
    def triple(self) -> int:
        """Three times the number."""
        return 3 * self.other


ZONES: Final = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))
INSTANTS: Final = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=ZONES)
TEXTS: Final = st.sampled_from(["", "a", "ü\n", "null", "2030-01-01"])
FREE: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
SMALL: Final = st.builds(Small, at=INSTANTS, secret=st.just("secret"))
LARGE: Final = st.builds(
    Large,
    small=SMALL,
    inner=SMALL,
    smalls=st.lists(SMALL, max_size=3).map(tuple),
    text=st.none() | TEXTS,
    colour=st.just(Colour.RED),
    free=st.dictionaries(TEXTS, FREE, max_size=3),
    other=st.integers(0, 2**40),
)


def as_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()[:-6] + "Z"


@randomized("properties of values")
@examples("properties of values")
@given(LARGE)
def test_a_document_is_what_its_declaration_says(thing: Large) -> None:
    """Written out from the definition: names, hidden fields, the fields of an inner thing."""
    expected = {
        "small": {"at": as_text(thing.small.at)},
        "at": as_text(thing.inner.at),
        "smalls": [{"at": as_text(each.at)} for each in thing.smalls],
        "text": thing.text,
        "colour": "red",
        "free": thing.free,
        "number": thing.other,
        "double": 2 * thing.other,
    }
    assert json.loads(json.dumps(document_of(thing))) == expected
    if thing.text is None:
        del expected["text"]
    assert document_of(thing, omit_none=True) == expected == json.loads(to_json(plain(thing)))
    model = model_of(Large)
    assert model is not None and set(model.model_fields) == {*expected, "text"}
    shown = model.model_validate_json(to_json(plain(thing))).model_dump(mode="json")
    assert shown.keys() == {*expected, "text"} and shown["smalls"] == expected["smalls"]


def test_what_was_not_declared_does_not_get_out() -> None:
    @dataclass(frozen=True, slots=True)
    class Pair(Small):
        """It has a document's fields, and was not declared itself."""

        more: str = "more"

    assert is_documented(Small) and not is_documented(Pair)
    for pair in (Pair(datetime.now(UTC), "secret"), object()):
        with pytest.raises(TypeError, match="has no document"):
            document_of(pair)
    assert instant(None) is None

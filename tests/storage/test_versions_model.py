"""The delete of versions on random histories of a bucket, against a slow model of S3's versions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Literal
from urllib.parse import quote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from ebbtide.storage import retained
from ebbtide.storage.requests import Bucket
from tests.support.dying import Died
from tests.support.randomized import randomized

KEYS = ("r/a", "r/a/b", "r/a0", "r/ab", "r/b c&d", "r/b c&d+", "s/a")
ADDRESSES = ("a", "ab", "b c&d", "absent")


@dataclass(frozen=True)
class Fake(Bucket):
    """A bucket as S3's documentation has it. `history` has the versions of each key, oldest first:
    id, and whether it is a delete marker. Some ids are `locked`."""

    random: random.Random = field(default_factory=random.Random)
    history: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    ids: count[int] = field(default_factory=count)
    fails: float = 0.0
    ends: float = 0.0
    writes: float = 0.0

    def change(self, key: str) -> None:
        is_marker = self.random.random() < 0.5
        version_id = f"v<{next(self.ids)}>"
        if not is_marker and self.random.random() < 0.1:
            self.locked.add(version_id)
        self.history.setdefault(key, []).append((version_id, is_marker))

    def is_hidden(self, key: str) -> bool:
        return key in self.history and self.history[key][-1][1]

    def ask(
        self,
        method: Literal["GET", "POST"],
        parameters: Mapping[str, str],
        *kinds: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = 5,
    ) -> ElementTree.Element:
        """Answers as S3, or fails before or after that."""
        del tries
        if self.random.random() < self.ends:
            raise Died
        if self.random.random() < self.fails:
            raise OSError("no answer")
        if "object-lock" in parameters:
            kind = "ObjectLockConfiguration"
            found = f"<{kind}><ObjectLockEnabled>Enabled</ObjectLockEnabled></{kind}>"
        elif method == "GET":
            found = self.listed(parameters)
        else:
            assert body is not None and headers is not None and headers["Content-MD5"]
            found = self.deleted(body)
        if self.random.random() < self.writes:
            self.change(self.random.choice(KEYS))
        answer = ElementTree.fromstring(found)
        assert answer.tag.rpartition("}")[2] in kinds
        return answer

    def headers_of(self, key: str, version_id: str) -> Mapping[str, str]:
        """A lock that ends some time, or no answer."""
        if self.random.random() < self.fails:
            raise OSError("no answer")
        assert version_id in self.locked, key
        return {
            "x-amz-object-lock-mode": "COMPLIANCE",
            "x-amz-object-lock-retain-until-date": "2999-01-01T00:00:00Z",
        }

    def listed(self, parameters: Mapping[str, str]) -> str:
        """A page of one to three entries."""
        rows = [
            (key, version_id, is_marker, place == 0)
            for key in sorted(self.history, key=str.encode)
            if key.startswith(parameters["prefix"])
            for place, (version_id, is_marker) in enumerate(reversed(self.history[key]))
        ]
        start = 0
        if "key-marker" in parameters:
            marker = (parameters["key-marker"], parameters["version-id-marker"])
            behind = [n for n, row in enumerate(rows) if row[:2] == marker]
            later = (n for n, row in enumerate(rows) if row[0].encode() > marker[0].encode())
            start = behind[0] + 1 if behind else next(later, len(rows))
        page = rows[start : start + self.random.randint(1, 3)]
        is_cut = start + len(page) < len(rows)
        entries = "".join(
            f"<{'DeleteMarker' if is_marker else 'Version'}><Key>{quote_plus(key)}</Key>"
            f"<VersionId>{escape(version_id)}</VersionId>"
            f"<IsLatest>{str(is_latest).lower()}</IsLatest>"
            f"</{'DeleteMarker' if is_marker else 'Version'}>"
            for key, version_id, is_marker, is_latest in page
        )
        after = (
            f"<NextVersionIdMarker>{escape(page[-1][1])}</NextVersionIdMarker>" if is_cut else ""
        )
        return (
            f'<ListVersionsResult xmlns="http://s3"><EncodingType>url</EncodingType>{entries}'
            f"{after}<IsTruncated>{str(is_cut).lower()}</IsTruncated></ListVersionsResult>"
        )

    def deleted(self, body: bytes) -> str:
        """Deletes in any order, and checks after each that no older version is the object."""
        objects = list(ElementTree.fromstring(body).iterfind("Object"))
        self.random.shuffle(objects)
        told = ""
        for each in objects:
            key, version_id = each.findtext("Key"), each.findtext("VersionId")
            assert key is not None and version_id is not None
            if version_id in self.locked:
                told += (
                    f"<Error><Key>{escape(key)}</Key><VersionId>{escape(version_id)}</VersionId>"
                    "<Code>AccessDenied</Code></Error>"
                )
                continue
            told += (
                f"<Deleted><Key>{escape(key)}</Key><VersionId>{escape(version_id)}</VersionId>"
                "</Deleted>"
            )
            was_hidden = self.is_hidden(key)
            assert was_hidden or self.history.get(key, [("", False)])[-1][0] != version_id, key
            left = [row for row in self.history.get(key, []) if row[0] != version_id]
            self.history[key] = left
            if not left:
                del self.history[key]
            assert not was_hidden or key not in self.history or self.is_hidden(key), key
        return f'<DeleteResult xmlns="http://s3">{told}</DeleteResult>'


@randomized("versions of buckets")
def test_exactly_the_versions_of_hidden_addresses_go(seed: int) -> None:
    bucket = Fake("bucket", (), random.Random(seed))
    for _ in range(bucket.random.randint(0, 30)):
        bucket.change(bucket.random.choice(KEYS))
    before = {key: list(rows) for key, rows in bucket.history.items()}
    found = retained.delete_versions(bucket, "r/", ADDRESSES)
    for address, outcome in zip(ADDRESSES, found, strict=True):
        rows = before.get(f"r/{address}", [])
        kept = [row for row in rows if row[0] in bucket.locked]
        assert outcome.address == address
        if not rows or not rows[-1][1]:
            expected, kept = "missing", rows
        else:
            expected = "failed" if kept else "deleted"
            kept = kept and [row for row in rows if row[1] or row in kept]
        assert outcome.outcome == expected
        assert bucket.history.pop(f"r/{address}", []) == kept
        before.pop(f"r/{address}", None)
    assert bucket.history == before


@randomized("versions of buckets")
def test_failures_ends_and_other_writers_lose_no_object(seed: int) -> None:
    """Objects that exist keep their versions, and a later attempt deletes the rest."""
    bucket = Fake("bucket", (), random.Random(seed), fails=0.2, ends=0.1, writes=0.3)
    for _ in range(bucket.random.randint(0, 30)):
        bucket.change(bucket.random.choice(KEYS))
    untouched = {key: list(bucket.history.get(key, [])) for key in KEYS}
    for _ in range(3):
        with suppress(Died):
            retained.delete_versions(bucket, "r/", ADDRESSES)
    for key in KEYS:
        now = bucket.history.get(key, [])
        if key.removeprefix("r/") not in ADDRESSES:
            assert now[: len(untouched[key])] == untouched[key]
    calm = Fake("bucket", (), bucket.random, bucket.history, set())
    retained.delete_versions(calm, "r/", ADDRESSES)
    for address in ADDRESSES:
        assert not calm.is_hidden(f"r/{address}")
    assert [name for page in retained.hidden(calm, "r/", "") for name in page] == [
        key.removeprefix("r/")
        for key in sorted(calm.history, key=str.encode)
        if key.startswith("r/") and calm.is_hidden(key)
    ]

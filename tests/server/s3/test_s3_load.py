"""Many clients of S3 at once, with a collector and the reclaimer beside them: nothing that was
confirmed is lost, and at the end no file is left that nothing needs."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from ebbtide.store.embedded import Store
from tests.server.s3.conftest import Client, s3_client
from tests.support.randomized import randomized
from tests.support.reachable import committed, staged_live, stored
from tests.support.server import eventually, short_leases

CLIENTS: Final = 4
BUCKET: Final = "lake"
BRANCHES: Final = ("main", "dev")
NAMES: Final = ("a", "b", "c/d", "ü")
REPOSITORY: Final = f"/repositories/{BUCKET}"


@dataclass
class User:
    """One client, which alone writes to the keys with its number."""

    number: int
    s3: Client
    http: httpx.Client
    rng: random.Random
    held: dict[str, bytes] = field(default_factory=dict)
    open: list[tuple[dict[str, str], dict[int, tuple[str, bytes]]]] = field(default_factory=list)
    """Uploads in parts: where each goes, and ETag and bytes of each part."""
    parts_sent: int = 0

    def work(self, ends_at: float) -> None:
        """Operations until the time is over."""
        acts = [self.put, self.begin, self.read] * 2 + [self.part] * 6 + [self.complete] * 3
        acts += [self.abort, self.copy, self.delete, self.commit, self.list]
        while time.monotonic() < ends_at:
            self.rng.choice(acts)()

    def key(self) -> str:
        return f"{self.rng.choice(BRANCHES)}/{self.number}/{self.rng.choice(NAMES)}"

    def data(self) -> bytes:
        size = self.rng.choice([0, 10, 1000, 70_000, 1_200_000])
        return self.rng.randbytes(10) + bytes(size)

    def put(self) -> None:
        key, data = self.key(), self.data()
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        self.held[key] = data

    def begin(self) -> None:
        key = self.key()
        made = self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)
        self.open.append(({"Bucket": BUCKET, "Key": key, "UploadId": made["UploadId"]}, {}))

    def part(self) -> None:
        if self.open:
            where, parts = self.rng.choice(self.open)
            number, data = self.rng.randint(1, 4), self.data()
            sent = self.s3.upload_part(**where, PartNumber=number, Body=data)
            parts[number] = (sent["ETag"], data)
            self.parts_sent += 1

    def complete(self) -> None:
        ready = [each for each in self.open if each[1]]
        if ready:
            where, parts = chosen = self.rng.choice(ready)
            self.open.remove(chosen)
            listed = [{"PartNumber": number, "ETag": parts[number][0]} for number in sorted(parts)]
            self.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
            self.held[where["Key"]] = b"".join(parts[number][1] for number in sorted(parts))

    def abort(self) -> None:
        if self.open:
            where, _ = self.open.pop()
            self.s3.abort_multipart_upload(**where)

    def copy(self) -> None:
        if not self.held:
            return
        source, target = self.rng.choice(sorted(self.held)), self.key()
        if source != target:
            self.s3.copy_object(Bucket=BUCKET, Key=target, CopySource=f"{BUCKET}/{source}")
            self.held[target] = self.held[source]

    def delete(self) -> None:
        key = self.key()
        self.s3.delete_object(Bucket=BUCKET, Key=key)
        self.held.pop(key, None)

    def commit(self) -> None:
        branch = self.rng.choice(BRANCHES)
        made = self.http.post(f"{REPOSITORY}/branches/{branch}/commits", json={"message": "m"})
        refusals = ("nothing_to_commit", "branch_moved")
        assert made.status_code == 201 or made.json()["kind"] in refusals

    def read(self) -> None:
        key = self.key()
        if key in self.held:
            found = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            assert found == self.held[key]

    def list(self) -> None:
        for branch in BRANCHES:
            prefix = f"{branch}/{self.number}/"
            found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
            assert {each["Key"]: each["Size"] for each in found} == {
                key: len(data) for key, data in self.held.items() if key.startswith(prefix)
            }

    def finish(self) -> None:
        """Aborts what is open, and reads everything back."""
        while self.open:
            self.abort()
        self.list()
        for key, data in self.held.items():
            assert self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == data


def collect(http: httpx.Client, mode: str, grace: str) -> None:
    """One run, to its end."""
    asked = {"mode": mode, "grace": grace, "unsafe": True, "allow_share": True}
    started = http.post(f"{REPOSITORY}/gc/runs", json=asked)
    assert started.status_code == 202, started.text
    run: dict[str, Any] = {}

    def has_ended() -> bool:
        run.update(http.get(f"{REPOSITORY}/gc/runs/{started.json()['run_id']}").json())
        return bool(run["state"] != "running")

    eventually(has_ended)
    assert run["state"] == "swept", run


@pytest.mark.drawn("databases under load")
@pytest.mark.twins
@randomized("S3 under load")
def test_nothing_is_lost_or_left(
    tmp_path: Path, server_kind: str, request: pytest.FixtureRequest, seed: int, seconds: float
) -> None:
    postgres = None if server_kind == "local" else str(request.getfixturevalue("postgres"))
    rng = random.Random(seed)
    settings = {"EBBTIDE_RECLAIM_INTERVAL": "1s", "EBBTIDE_SLICE_OBJECTS_MAX": "50"}
    with (
        short_leases(tmp_path / "store", postgres=postgres, **settings) as server,
        ExitStack() as stack,
    ):
        server.repository(BUCKET)
        http = [stack.enter_context(server.http()) for _ in range(CLIENTS + 1)]
        made = http[0].post(f"{REPOSITORY}/branches", json={"name": "dev", "source": "main"})
        assert made.status_code == 201
        policy = {"policy": {"default": {"keep_last": 10_000}}}
        assert http[0].put(f"{REPOSITORY}/settings/retention", json=policy).status_code == 200
        users = []
        for number in range(CLIENTS):
            s3 = stack.enter_context(closing(s3_client(server)))
            user_rng = random.Random(rng.getrandbits(32))
            users.append(User(number, s3, http[number + 1], user_rng))
        ends_at = time.monotonic() + seconds

        def collect_all_the_time() -> None:
            for mode in cycle(("incremental", "clean")):
                collect(http[0], mode, "1s")
                if time.monotonic() > ends_at:
                    return

        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            works = [pool.submit(user.work, ends_at) for user in users]
            works.append(pool.submit(collect_all_the_time))
            for each in works:
                each.result()
        for user in users:
            user.finish()
        assert any(user.parts_sent for user in users)
        with Store.open(server.directory, settings=server.settings) as store:
            lake = store.repository(BUCKET)

            def nothing_is_left() -> bool:
                collect(http[0], "clean", "0s")
                return stored(lake) <= committed(lake) | staged_live(lake)

            eventually(nothing_is_left)
            assert stored(lake) == committed(lake) | staged_live(lake)
        for user in users:
            user.finish()
    assert "Traceback" not in server.log, server.log
    assert " ERROR " not in server.log, server.log

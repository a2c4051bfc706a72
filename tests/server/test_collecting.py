"""Retention and collecting over HTTP: policies, lists for other collectors, runs as jobs."""

from __future__ import annotations

import csv
import io
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lakefs
import lakefs_sdk
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebbtide.arrow import texts
from ebbtide.errors import NotFound
from ebbtide.server.jobs import Jobs, Order
from ebbtide.settings import Settings
from ebbtide.storage import open_storage
from ebbtide.store.embedded import Store
from tests.server.test_client import put, sdk
from tests.support.server import Server, eventually, new_server, place_of

SOON = {"grace": "0s", "unsafe": True, "allow_share": True}


def place(lake: lakefs.Repository, path: str) -> str:
    return f"/repositories/{lake.id}/{path}"


def ended(http: httpx.Client, lake: lakefs.Repository, run_id: str) -> dict[str, Any]:
    """What became of a run, once it has ended."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(http.get(place(lake, f"gc/runs/{run_id}")).json())
        return bool(found["state"] != "running")

    eventually(look)
    return found


def leave_garbage(lake: lakefs.Repository) -> None:
    """One file is staged, and one that it has replaced is of no use."""
    for number in range(2):
        lake.branch("main").object("a").upload(str(number))


def read(url: str) -> bytes:
    storage, name = place_of(url)
    return storage.get(name)


def tables_below(url: str) -> Iterator[pa.Table]:
    """The Parquet files of a directory."""
    storage = open_storage(url.rstrip("/"))
    for batch in storage.list():
        for name in texts(batch.column("address")):
            assert name.endswith(".parquet")
            yield pq.read_table(io.BytesIO(storage.get(name)))


def test_rules_in_days(server: Server, repo: lakefs.Repository) -> None:
    api = sdk(server).repositories_api
    rules = lakefs_sdk.GarbageCollectionRules(
        default_retention_days=21,
        branches=[lakefs_sdk.GarbageCollectionRule(branch_id="main", retention_days=28)],
    )
    api.set_gc_rules(repo.id, rules)
    assert api.get_gc_rules(repo.id) == rules
    shown = server.command("retention", "show", repo.id, "--json")
    assert '"main": "28d"' in shown.stdout
    api.delete_gc_rules(repo.id)
    with pytest.raises(lakefs_sdk.ApiException) as caught:
        api.get_gc_rules(repo.id)
    assert caught.value.status == 404


def test_a_policy_that_days_cannot_express(http: httpx.Client, lake: lakefs.Repository) -> None:
    """It can be read and set at our own place, and is not overwritten by who cannot see it."""
    own, days = place(lake, "settings/retention"), place(lake, "settings/gc_rules")
    rules = {"default_retention_days": 1, "branches": []}
    for policy in (
        {"default": {"keep_last": 3}},
        {"default": "12h"},
        {"default": "keep"},
        {"branches": {"main": "7d"}},
        {"default": "7d", "branches": {"user-*": "3d"}},
        {"default": "7d", "tags": "30d"},
    ):
        answer = http.put(own, json={"policy": policy})
        assert answer.status_code == 200, answer.text
        assert http.get(own).json()["policy"] == answer.json()["policy"]
        for refused in (http.get(days), http.put(days, json=rules), http.delete(days)):
            assert (refused.status_code, refused.json()["kind"]) == (409, "policy_not_in_days")
        assert http.delete(own).status_code == 204
        assert http.put(days, json=rules).status_code == 204
        assert http.get(days).json() == rules


def test_a_rule_twice(http: httpx.Client, lake: lakefs.Repository) -> None:
    """A request that says one thing twice is refused, naming it, and changes nothing."""
    days = '{"branch_id": "main", "retention_days": 9}, {"branch_id": "main", "retention_days": 1}'
    for where, text, named in (
        ("retention", '{"policy": {"branches": {"main": "keep", "main": "1d"}}}', "'main'"),
        ("retention", '{"policy": {"default": "9d"}, "policy": {"default": "1d"}}', "'policy'"),
        ("gc_rules", f'{{"default_retention_days": 9, "branches": [{days}]}}', "'main'"),
    ):
        headers = {"Content-Type": "application/json"}
        answer = http.put(place(lake, f"settings/{where}"), content=text, headers=headers)
        assert answer.status_code == 400, answer.text
        message = answer.json()["message"]
        assert named in message and "keep one of them" in message
        assert http.get(place(lake, f"settings/{where}")).status_code == 404


def test_commits_for_other_collectors(server: Server, repo: lakefs.Repository) -> None:
    head = put(repo, a="1")
    api = sdk(server).internal_api
    prepared = api.prepare_garbage_collection_commits(repo.id)
    rows = list(csv.DictReader(io.StringIO(read(prepared.gc_commits_location).decode())))
    assert head in {row["commit_id"] for row in rows}
    assert {row["expired"] for row in rows} == {"false"}
    tree = next(row["metarange_id"] for row in rows if row["commit_id"] == head)
    assert tree == repo.commit(head).get_commit().meta_range_id
    task = api.prepare_garbage_collection_commits_async(repo.id).id
    eventually(lambda: api.prepare_garbage_collection_commits_status(repo.id, task).completed)
    state = api.prepare_garbage_collection_commits_status(repo.id, task)
    assert state.error is None
    assert state.result.run_id == task
    assert read(state.result.gc_commits_location)


def test_what_is_uncommitted_for_other_collectors(server: Server, repo: lakefs.Repository) -> None:
    stats = [repo.branch("main").object(name).upload(name).stat() for name in "abc"]
    api = sdk(server).internal_api
    found: set[str] = set()
    token, runs = None, set()
    while True:
        request = lakefs_sdk.PrepareGCUncommittedRequest(continuation_token=token)
        part = api.prepare_garbage_collection_uncommitted(
            repo.id, prepare_gc_uncommitted_request=request
        )
        runs.add(part.run_id)
        for table in tables_below(part.gc_uncommitted_location):
            assert table.column_names == ["physical_address", "creation_date"]
            found |= {str(address) for address in table.column(0).to_pylist()}
        token = part.continuation_token
        if not token:
            break
    assert len(runs) == 1
    assert found == {stat.physical_address.split(f"{repo.id}/")[1] for stat in stats}


@pytest.mark.twins
def test_a_run(server: Server, repo: lakefs.Repository) -> None:
    put(repo, a="old")
    put(repo, a="new")
    with server.http() as http:
        policy = {"policy": {"default": {"keep_last": 1}}}
        assert http.put(place(repo, "settings/retention"), json=policy).status_code == 200
        answer = http.post(place(repo, "gc/runs"), json=SOON)
        assert answer.status_code == 202, answer.text
        run = ended(http, repo, answer.json()["run_id"])
        assert run["state"] == "swept", run
        assert run["report"]["deleted_count"] >= 1
        assert {step["step"] for step in run["steps"]} >= {"list", "subtract", "fence"}
        assert all(step["ended"] for step in run["steps"])
        listed = http.get(place(repo, "gc/runs")).json()["results"]
        assert [each["run_id"] for each in listed] == [run["run_id"]]
        gone = http.get(place(repo, "refs/main~1/objects?path=a"))
        assert (gone.status_code, gone.json()["kind"]) == (410, "commit_expired")
        assert gone.json()["run_id"] == run["run_id"]
        assert http.get(place(repo, "refs/main/objects?path=a")).content == b"new"
        assert http.get(place(repo, "refs/main/commits")).json()["results"][1]["message"]
        again = http.post(place(repo, "gc/runs"), json=SOON | {"sweep": run["run_id"]})
        assert (again.status_code, again.json()["kind"]) == (409, "plan_used")


def test_a_run_comes_back(http: httpx.Client, lake: lakefs.Repository) -> None:
    leave_garbage(lake)
    run_id = http.post(place(lake, "gc/runs"), json=SOON | {"quarantine": "1d"}).json()["run_id"]
    run = ended(http, lake, run_id)
    assert (run["state"], run["report"]["quarantined_count"]) == ("swept", 1)
    for under, back in (("data/none", 0), (None, 1)):
        asked = http.post(place(lake, f"gc/runs/{run_id}/undo"), json={"under": under})
        assert asked.status_code == 202, asked.text
        run = ended(http, lake, run_id)
        assert run["report"]["quarantine"]["back_objects"] == back
    assert run["state"] == "undone"
    for action in ("undo", "purge"):
        again = http.post(place(lake, f"gc/runs/{run_id}/{action}"))
        assert (again.status_code, again.json()["kind"]) == (409, "plan_used")
    unknown = http.post(place(lake, f"gc/runs/{'0' * 32}/undo"))
    assert (unknown.status_code, unknown.json()["kind"]) == (404, "run_not_found")
    bad = http.post(place(lake, "gc/runs"), json=SOON | {"quarantine": "7"})
    assert bad.status_code == 400


def test_what_is_aside_is_purged(http: httpx.Client, lake: lakefs.Repository) -> None:
    leave_garbage(lake)
    run_id = http.post(place(lake, "gc/runs"), json=SOON | {"quarantine": "1d"}).json()["run_id"]
    ended(http, lake, run_id)
    assert http.post(place(lake, f"gc/runs/{run_id}/purge")).status_code == 202
    assert ended(http, lake, run_id)["report"]["quarantine"]["state"] == "purged"
    again = http.post(place(lake, f"gc/runs/{run_id}/undo"))
    assert (again.status_code, again.json()["kind"]) == (404, "not_quarantined")


def test_a_plan_that_is_swept_later(http: httpx.Client, lake: lakefs.Repository) -> None:
    leave_garbage(lake)
    planned = http.post(place(lake, "gc/runs"), json=SOON | {"dry_run": True, "mode": "clean"})
    run_id = planned.json()["run_id"]
    run = ended(http, lake, run_id)
    assert (run["state"], run["report"]["candidate_count"]) == ("planned", 1)
    swept = http.post(place(lake, "gc/runs"), json=SOON | {"sweep": run_id})
    assert swept.json()["run_id"] == run_id
    run = ended(http, lake, run_id)
    assert (run["state"], run["report"]["deleted_count"]) == ("swept", 1)
    unsafe = http.post(place(lake, "gc/runs"), json={"grace": "0s"})
    assert (unsafe.status_code, unsafe.json()["kind"]) == (400, "unsafe_grace")
    pages = [http.post(place(lake, "gc/runs"), json=SOON).json()["run_id"]]
    ended(http, lake, pages[0])
    first = http.get(place(lake, "gc/runs?amount=1")).json()
    assert [each["run_id"] for each in first["results"]] == pages
    offset = first["pagination"]["next_offset"]
    second = http.get(place(lake, f"gc/runs?amount=1&after={offset}")).json()
    assert [each["run_id"] for each in second["results"]] == [run_id]
    assert not second["pagination"]["has_more"]


def test_a_plan_that_somebody_else_sweeps(plain: Server, lake: lakefs.Repository) -> None:
    """A job that has ended is no news once others went on."""
    leave_garbage(lake)
    with plain.http() as http:
        started = http.post(place(lake, "gc/runs"), json=SOON | {"dry_run": True}).json()
        planned = ended(http, lake, started["run_id"])
        assert planned["state"] == "planned"
        options = ("--grace", "0s", "--unsafe", "--allow-share", "--quarantine", "none", "--yes")
        swept = plain.command("gc", "sweep", lake.id, started["run_id"], *options)
        assert swept.returncode == 0, swept
        run = http.get(place(lake, f"gc/runs/{started['run_id']}")).json()
    assert (run["state"], run["report"]["deleted_count"]) == ("swept", 1)
    assert run["steps"] == planned["steps"]


@pytest.mark.twins
def test_two_runs_at_a_time(server: Server, repo: lakefs.Repository) -> None:
    """The second is refused, wherever the first is at work."""
    put(repo, a="1")
    with server.http() as http:
        first = http.post(place(repo, "gc/runs"), json=SOON)
        assert first.status_code == 202
        second = http.post(place(repo, "gc/runs"), json=SOON)
        run = ended(http, repo, first.json()["run_id"])
        # The first may have come to its end before the second began.
        assert second.status_code in (202, 409), second.text
        if second.status_code == 409:
            assert second.json()["kind"] == "run_in_progress"
            assert len(http.get(place(repo, "gc/runs")).json()["results"]) == 1
        else:
            ended(http, repo, second.json()["run_id"])
        assert run["state"] == "swept", run


def test_a_run_outlives_no_server(tmp_path: Path) -> None:
    """However the server ends, what its run leaves is collected by the next."""
    # Its reclaimer would take the one file that the second run is to delete.
    server = new_server(tmp_path / "store", EBBTIDE_RECLAIM="false").start()
    lake = server.repository("lake")
    leave_garbage(lake)
    with server.http() as http:
        started = http.post("/repositories/lake/gc/runs", json=SOON | {"dry_run": True})
    assert started.status_code == 202, started.text
    server.stop(signal.SIGKILL)
    server.start(init=False)
    try:
        with server.http() as http:
            assert http.get("/repositories/lake/gc/runs").status_code == 200

            def starts() -> bool:
                # The killed server's run may be at its last step.
                nonlocal started
                started = http.post("/repositories/lake/gc/runs", json=SOON)
                return started.status_code == 202

            eventually(starts)
            run = ended(http, lake, started.json()["run_id"])
        assert run["state"] == "swept"
        deleted = run["report"]["deleted_kinds"]
        assert deleted.pop("object")["objects"] == 1
        # A writer that is killed may leave a file of which nobody has the name.
        assert set(deleted) <= {"temporary"}
        # The server that was started anew has another port.
        again = lakefs.Repository(lake.id, client=server.client())
        with again.branch("main").object("a").reader(mode="r") as reader:
            assert reader.read() == "1"
    finally:
        server.stop()


def test_jobs_of_what_is_not_there(tmp_path: Path) -> None:
    settings = Settings(spark_master="none")
    with Store.init(tmp_path / "store", settings=settings) as store:
        jobs = Jobs(lambda _count: None)
        order = Order(
            directory=store.directory, settings=settings, repository="no", repository_id="no"
        )
        with pytest.raises(NotFound, match="no repository"):
            jobs.start(order)
        assert jobs.of("no") == []
        jobs.close()


def test_explaining(server: Server, repo: lakefs.Repository) -> None:
    """As `ebbtide explain --json` prints it."""
    head = put(repo, a="1")
    with server.http() as http:
        by_path = http.get(place(repo, "explain?ref=main&path=a")).json()
        assert (by_path["what"], by_path["state"]) == ("address", "kept")
        assert [keeper["commit_id"] for keeper in by_path["keepers"]] == [head]
        assert http.get(place(repo, f"explain?address={by_path['address']}")).json() == by_path
        by_ref = http.get(place(repo, "explain?ref=main")).json()
        assert (by_ref["commit_id"], by_ref["reason"]) == (head, "head of branch main")
        assert http.get(place(repo, f"explain?commit={head}&limit=1")).json() == by_ref


def test_a_dump_by_lakefs_own_client(server: Server, repo: lakefs.Repository) -> None:
    client = server.client().sdk_client
    repo.branch("main").object("a").upload("1")
    head = repo.branch("main").commit("m").get_commit().id
    repo.tag("v1").create("main")
    task = client.repositories_api.dump_submit(repo.id)
    eventually(lambda: client.repositories_api.dump_status(repo.id, task.id).done)
    status = client.repositories_api.dump_status(repo.id, task.id)
    assert status.error is None
    assert status.refs == client.internal_api.dump_refs(repo.id)
    asked = lakefs_sdk.RefsRestore(**status.refs.to_dict())
    repo.tag("v1").delete()
    task = client.repositories_api.restore_submit(repo.id, asked)
    eventually(lambda: client.repositories_api.restore_status(repo.id, task.id).done)
    assert client.repositories_api.restore_status(repo.id, task.id).error is None
    assert repo.tag("v1").get_commit().id == head
    repo.tag("v1").delete()
    client.internal_api.restore_refs(repo.id, asked)
    assert repo.tag("v1").get_commit().id == head
    repo.branch("main").object("a").upload("2")
    repo.branch("main").commit("n")
    repo.tag("v1").delete()
    repo.tag("v1").create("main")
    with pytest.raises(lakefs_sdk.ApiException) as caught:
        client.internal_api.restore_refs(repo.id, asked)
    assert caught.value.status == 409

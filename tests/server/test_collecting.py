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
from tests.server.test_client import failed, put, sdk
from tests.support.collected import awaited, done, refused
from tests.support.server import Server, eventually, new_server, place_of

SOON = {"grace": "0s", "unsafe": True, "allow_share": True}


def place(lake: lakefs.Repository, path: str) -> str:
    return f"/repositories/{lake.id}/{path}"


def ended(http: httpx.Client, lake: lakefs.Repository, run_id: str) -> dict[str, Any]:
    return awaited(http, place(lake, f"gc/runs/{run_id}"))


def started(http: httpx.Client, lake: lakefs.Repository, **options: Any) -> dict[str, Any]:
    answer = done(http.post(place(lake, "gc/runs"), json=SOON | options), 202)
    return ended(http, lake, answer["run_id"])


def expire_older(http: httpx.Client, lake: lakefs.Repository) -> str:
    """Expires all commits but the newest, and runs. The run's id, which errors then name."""
    done(
        http.put(place(lake, "settings/retention"), json={"policy": {"default": {"keep_last": 1}}})
    )
    run = started(http, lake)
    assert run["state"] == "swept", run
    assert run["report"]["deleted_count"] > 0, run
    return str(run["run_id"])


def leave_garbage(lake: lakefs.Repository) -> None:
    """One file is staged, and one that it has replaced is of no use."""
    for number in range(2):
        lake.branch("main").object("a").upload(str(number))


def read(url: str) -> bytes:
    storage, name = place_of(url)
    return storage.get(name)


def tables_below(url: str) -> Iterator[pa.Table]:
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
    api.delete_gc_rules(repo.id)
    failed(404, lambda: api.get_gc_rules(repo.id))


def test_a_policy_that_days_cannot_express(http: httpx.Client, lake: lakefs.Repository) -> None:
    """It can be read and set at our own place, and is not overwritten by who cannot see it."""
    own, days = place(lake, "settings/retention"), place(lake, "settings/gc_rules")
    rules = {"default_retention_days": 1, "branches": []}
    for policy in (
        {"default": {"keep_last": 3}},
        {"branches": {"main": "7d"}},
        {"default": "7d", "branches": {"user-*": "3d"}},
        {"default": "7d", "tags": "30d"},
    ):
        answer = done(http.put(own, json={"policy": policy}))
        assert http.get(own).json()["policy"] == answer["policy"]
        for answered in (http.get(days), http.put(days, json=rules), http.delete(days)):
            refused(answered, 409, "policy_not_in_days")
        done(http.delete(own), 204)
    done(http.put(days, json=rules), 204)
    assert http.get(days).json() == rules


def test_a_rule_twice(http: httpx.Client, lake: lakefs.Repository) -> None:
    """A request that says one thing twice is refused, naming it, and changes nothing."""
    days = '{"branch_id": "main", "retention_days": 9}, {"branch_id": "main", "retention_days": 1}'
    for where, text, named in (
        ("retention", '{"policy": {"branches": {"main": "keep", "main": "1d"}}}', "'main'"),
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
    assert {row["expired"] for row in rows} == {"false"}
    (tree,) = (row["metarange_id"] for row in rows if row["commit_id"] == head)
    assert tree == repo.commit(head).get_commit().meta_range_id
    task = api.prepare_garbage_collection_commits_async(repo.id).id
    eventually(lambda: api.prepare_garbage_collection_commits_status(repo.id, task).completed)
    state = api.prepare_garbage_collection_commits_status(repo.id, task)
    assert (state.error, state.result.run_id) == (None, task)
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


def test_a_run(server: Server, repo: lakefs.Repository) -> None:
    put(repo, a="old")
    put(repo, a="new")
    with server.http() as http:
        run_id = expire_older(http, repo)
        run = http.get(place(repo, f"gc/runs/{run_id}")).json()
        assert {step["step"] for step in run["steps"]} >= {"list", "subtract", "fence"}
        assert all(step["ended"] for step in run["steps"])
        listed = http.get(place(repo, "gc/runs")).json()["results"]
        assert [each["run_id"] for each in listed] == [run["run_id"]]
        gone = refused(http.get(place(repo, "refs/main~1/objects?path=a")), 410, "commit_expired")
        assert gone["run_id"] == run["run_id"]
        assert http.get(place(repo, "refs/main/objects?path=a")).content == b"new"
        assert http.get(place(repo, "refs/main/commits")).json()["results"][1]["message"]
        again = http.post(place(repo, "gc/runs"), json=SOON | {"sweep": run["run_id"]})
        refused(again, 409, "plan_used")


def test_a_run_comes_back(http: httpx.Client, lake: lakefs.Repository) -> None:
    leave_garbage(lake)
    run = started(http, lake, quarantine="1d")
    of_run = place(lake, f"gc/runs/{run['run_id']}")
    assert (run["state"], run["report"]["quarantined_count"]) == ("swept", 1)
    for under, back in (("data/none", 0), (None, 1)):
        done(http.post(f"{of_run}/undo", json={"under": under}), 202)
        run = ended(http, lake, run["run_id"])
        assert run["report"]["quarantine"]["back_objects"] == back
    assert run["state"] == "undone"
    for action in ("undo", "purge"):
        refused(http.post(f"{of_run}/{action}"), 409, "plan_used")
    refused(http.post(place(lake, f"gc/runs/{'0' * 32}/undo")), 404, "run_not_found")
    bad = http.post(place(lake, "gc/runs"), json=SOON | {"quarantine": "7"})
    assert bad.status_code == 400
    again = started(http, lake, quarantine="1d")
    of_run = place(lake, f"gc/runs/{again['run_id']}")
    done(http.post(f"{of_run}/purge"), 202)
    purged = ended(http, lake, again["run_id"])
    assert purged["report"]["quarantine"]["state"] == "purged"
    refused(http.post(f"{of_run}/undo"), 404, "not_quarantined")


def test_a_plan_that_is_swept_later(plain: Server, lake: lakefs.Repository) -> None:
    """Here, or by somebody else: then the job that has ended here is no news."""
    options = ("--grace", "0s", "--unsafe", "--allow-share", "--quarantine", "none", "--yes")
    file, runs = lake.branch("main").object("a"), []
    file.upload("0")
    with plain.http() as http:
        for is_ours in (True, False):
            file.upload("1")
            planned = started(http, lake, dry_run=True, mode="clean")
            assert (planned["state"], planned["report"]["candidate_count"]) == ("planned", 1)
            runs.append(planned["run_id"])
            if is_ours:
                run = started(http, lake, sweep=runs[-1])
            else:
                plain.command("gc", "sweep", lake.id, runs[-1], *options).check_returncode()
                run = http.get(place(lake, f"gc/runs/{runs[-1]}")).json()
                assert run["steps"] == planned["steps"]
            assert (run["run_id"], run["state"]) == (runs[-1], "swept")
            assert run["report"]["deleted_count"] == 1
        refused(http.post(place(lake, "gc/runs"), json={"grace": "0s"}), 400, "unsafe_grace")
        first = http.get(place(lake, "gc/runs?amount=1")).json()
        offset = first["pagination"]["next_offset"]
        second = http.get(place(lake, f"gc/runs?amount=1&after={offset}")).json()
    assert [each["results"][0]["run_id"] for each in (first, second)] == runs[::-1]
    assert not second["pagination"]["has_more"]


def test_a_run_outlives_no_server(tmp_path: Path) -> None:
    """However the server ends, what its run leaves is collected by the next."""
    # Its reclaimer would take the one file that the second run is to delete.
    server = new_server(tmp_path / "store", EBBTIDE_RECLAIM="false").start()
    lake = server.repository("lake")
    leave_garbage(lake)
    with server.http() as http:
        done(http.post(place(lake, "gc/runs"), json=SOON | {"dry_run": True}), 202)
    server.stop(signal.SIGKILL)
    server.start(init=False)
    try:
        with server.http() as http:
            answers: list[httpx.Response] = []

            def starts() -> bool:
                # The killed server's run may be at its last step.
                answers.append(http.post(place(lake, "gc/runs"), json=SOON))
                return answers[-1].status_code == 202

            eventually(starts)
            run = ended(http, lake, answers[-1].json()["run_id"])
        assert run["state"] == "swept"
        deleted = run["report"]["deleted_kinds"]
        assert deleted.pop("object")["objects"] == 1
        # A writer that is killed may leave a file of which nobody has the name.
        assert set(deleted) <= {"temporary"}
        # The server that was started anew has another port.
        again = lakefs.Repository(lake.id, client=server.client())
        assert again.branch("main").object("a").reader().read() == b"1"
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
    api, tag = client.repositories_api, repo.tag("v1")
    head = put(repo, a="1")
    tag.create("main")
    task = api.dump_submit(repo.id)
    eventually(lambda: api.dump_status(repo.id, task.id).done)
    status = api.dump_status(repo.id, task.id)
    assert (status.error, status.refs) == (None, client.internal_api.dump_refs(repo.id))
    asked = lakefs_sdk.RefsRestore(**status.refs.to_dict())
    tag.delete()
    task = api.restore_submit(repo.id, asked)
    eventually(lambda: api.restore_status(repo.id, task.id).done)
    assert api.restore_status(repo.id, task.id).error is None
    assert tag.get_commit().id == head
    tag.delete()
    client.internal_api.restore_refs(repo.id, asked)
    assert tag.get_commit().id == head
    put(repo, a="2")
    tag.delete()
    tag.create("main")
    failed(409, lambda: client.internal_api.restore_refs(repo.id, asked))

"""A server of several processes: each answers for all of them, and all end together. And several
servers on one PostgreSQL and one storage."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import lakefs
import psutil
import pytest
from lakefs.exceptions import ObjectExistsException

from ebbtide.ids import new_id
from ebbtide.processes import this_process
from ebbtide.server.job_files import JobFiles
from ebbtide.server.jobs import Job, Jobs, StepState
from ebbtide.server.metrics import Metrics
from ebbtide.server.shared import shared_directory
from ebbtide.server.workers import STARTUP_FAILURE, Worker
from ebbtide.settings import Settings
from tests.server.conftest import Servers
from tests.support.collected import refused
from tests.support.server import Server, eventually, new_server

pytestmark = pytest.mark.xdist_group("several")  # processes, which start once


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = new_server(tmp_path_factory.mktemp("several") / "store").start("--processes", "2")
    try:
        yield server
    finally:
        assert server.stop() == 0
        assert "Traceback" not in server.log, server.log


def asked(server: Server, path: str) -> httpx.Response:
    """The answer to a request on a connection of its own, which any process may take."""
    with server.http() as client:
        return client.get(path)


def workers(server: Server) -> list[psutil.Process]:
    """The processes that answer: those in which uvicorn listens."""
    assert server.process is not None
    found = []
    for each in psutil.Process(server.process.pid).children():
        try:
            if "spawn_main" in " ".join(each.cmdline()):
                found.append(each)
        except psutil.NoSuchProcess:
            continue  # it has ended: a zombie has no command line
    return found


def test_any_process_answers_for_all(several: Server) -> None:
    """Its figures are those of all, and it knows each run."""
    several.repository("lake")
    for _ in range(12):
        assert asked(several, "/repositories/lake/branches").status_code == 200
    route = "/api/v1/repositories/{repository}/branches"
    wanted = f'ebbtide_requests_total{{method="GET",route="{route}",status="200"}} 12.0'
    runs = "/repositories/lake/gc/runs"
    with several.http() as client:
        run_id = client.post(runs, json={"dry_run": True}).json()["run_id"]
    eventually(lambda: asked(several, f"{runs}/{run_id}").json()["state"] == "planned")
    for _ in range(6):
        figures = asked(several, "/metrics").text
        assert wanted in figures
        assert re.search(r"^ebbtide_requests_under_way 1.0$", figures, re.MULTILINE)
        assert [each["run_id"] for each in asked(several, runs).json()["results"]] == [run_id]


def test_a_process_that_dies_is_replaced(several: Server) -> None:
    eventually(lambda: len(workers(several)) == 2)
    before = {each.pid for each in workers(several)}
    psutil.Process(min(before)).kill()
    eventually(lambda: len(workers(several)) == 2 and {p.pid for p in workers(several)} != before)
    # Connections that the killed process had taken are broken; new ones are answered.
    assert asked(several, "/repositories").status_code == 200
    assert "ebbtide_requests_under_way 1.0" in asked(several, "/metrics").text


def test_the_processes_end_with_their_server(tmp_path: Path) -> None:
    server = new_server(tmp_path / "store").start("--processes", "2")
    assert asked(server, "/repositories").status_code == 200
    found = workers(server)
    assert found
    server.stop(signal.SIGKILL)
    _, alive = psutil.wait_procs(found, timeout=60)
    assert alive == []


def test_a_process_that_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "missing", Settings(), tmp_path, "warning", access_log=False)
    process = multiprocessing.get_context("fork").Process(target=worker)
    process.start()
    process.join(60)
    assert process.exitcode == STARTUP_FAILURE


def test_states_of_jobs_are_shared(tmp_path: Path) -> None:
    """In a directory of the server. Jobs of a process that died have ended."""
    with shared_directory() as shared:
        assert b"ebbtide_requests_total{" not in Metrics(shared / "metrics").render()
    assert not shared.exists()
    ours, theirs = JobFiles(tmp_path), JobFiles(tmp_path)
    look = Job("one", None, look_id="look", owner="KEY", found=[{"policy": "present"}])
    look.steps.append(StepState("list", 1.0, 2.5))
    run = Job("one", None, run_id="run", report={"state": "planned"}, ended=True)
    for number, job in enumerate((look, run, Job("two", None, run_id="other"))):
        ours.write(number, job.state())
    jobs = Jobs(lambda _count: None, files=theirs)
    found = jobs.find_look("one", "look")
    assert found is not None
    assert (found.owner, found.found, found.steps) == (look.owner, look.found, look.steps)
    assert [(job.run_id, job.report) for job in jobs.of("one")] == [("run", run.report)]
    assert ours.others() == []
    ours.keep([2])
    assert jobs.find_look("one", "look") is None
    assert jobs.find("two", "other") is not None
    (path,) = tmp_path.glob("*.json")
    document: dict[str, Any] = json.loads(path.read_text())
    assert document["holder"] == this_process()
    dead = f"{document['holder'].rpartition(' ')[0]} 1"
    path.write_text(json.dumps(document | {"holder": dead}))
    (state,) = JobFiles(tmp_path).others()
    assert (state["ended"], state["error"]["kind"]) == (True, "worker_died")


def test_both_serve_one_store(servers: Servers, tmp_path: Path) -> None:
    """The second one has what another machine needs to join. Without the key it says so."""
    first, directory = servers("shared"), tmp_path / "store"
    directory.mkdir()
    shared = ("EBBTIDE_DATABASE_URL", "EBBTIDE_STORAGE_URL")
    second = new_server(directory, **{name: first.environment[name] for name in shared})
    second.keys = first.keys
    second.start(init=False)
    try:
        with second.http() as client:
            refused(client.get("/repositories"), 500, "secret_key_missing")
        assert "EBBTIDE_SECRET_KEY" in second.log
    finally:
        second.stop()
    second.environment["EBBTIDE_SECRET_KEY"] = (first.directory / "secret.key").read_text().strip()
    second.start(init=False)
    try:
        name = f"r-{new_id()}"
        here = first.repository(name)
        there = lakefs.Repository(name, client=second.client())

        def upload(number: int) -> None:
            repository = (here, there)[number % 2]
            repository.branch("main").object(f"{number:02}").upload(str(number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(upload, range(20)))
        head = here.branch("main").commit("from one").get_commit().id
        assert there.branch("main").head.id == head
        assert len(list(there.branch("main").objects())) == 20

        def claim(number: int) -> bool:
            repository = (here, there)[number % 2]
            try:
                repository.branch("main").object("claimed").upload(str(number), mode="xb")
            except ObjectExistsException:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(claim, range(8))) == 1
    finally:
        second.stop()

"""A server of several processes: each answers for all of them, and all end together. And several
servers on one PostgreSQL and one storage."""

from __future__ import annotations

import multiprocessing
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import lakefs
import psutil
import pytest
from lakefs.exceptions import ObjectExistsException

from ebbtide.ids import new_id
from ebbtide.processes import this_process
from ebbtide.server.job_files import ENDED_KEPT, add_job, read_jobs
from ebbtide.server.jobs import Jobs
from ebbtide.server.metrics import Metrics
from ebbtide.server.workers import STARTUP_FAILURE, Worker, shared_directory
from ebbtide.settings import Settings
from tests.support.collected import refused
from tests.support.server import Server, eventually, new_server
from tests.support.servers import Servers

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


def test_all_processes_read_the_files_of_jobs(tmp_path: Path) -> None:
    """Jobs of a process that died have ended; a line that it did not finish is none."""
    with shared_directory() as shared:
        assert b"ebbtide_requests_total{" not in Metrics(shared).render()
    assert not shared.exists()
    jobs = Jobs(lambda _count: None, directory=tmp_path)
    look = add_job(tmp_path, "one", look_id="look", owner="KEY")
    for word, value in (("start", "list"), ("end", "list"), ("found", {"policy": "present"})):
        look.tell(word, value)
    run, other = add_job(tmp_path, "one"), add_job(tmp_path, "two")
    run.tell("run_id", "run")
    run.tell("report", {"state": "planned"})
    run.end()
    other.tell("run_id", "other")
    found = jobs.find_look("one", "look")
    assert found is not None and not found.ended
    assert (found.owner, found.found) == ("KEY", [{"policy": "present"}])
    assert [(each.step, each.seconds is None) for each in found.steps] == [("list", False)]
    assert [(job.run_id, job.report) for job in jobs.of("one")] == [("run", {"state": "planned"})]
    assert jobs.find("two", "other") is not None
    look.remove()
    assert jobs.find_look("one", "look") is None
    holder = this_process()
    assert holder is not None
    dead = f"{holder.rpartition(' ')[0]} 1"
    other.path.write_text(other.path.read_text().replace(holder, dead) + '[1.0, "report", {')
    job = other.read()
    assert job.ended and job.error is not None and job.error["kind"] == "worker_died"
    for _ in range(ENDED_KEPT + 1):
        add_job(tmp_path, "three").end()
    add_job(tmp_path, "one")
    assert sum(job.ended for job in read_jobs(tmp_path)) == ENDED_KEPT
    assert jobs.of("one") == []


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

"""A Spark cluster of processes of its own on the loopback address: a master, and workers of one
core each, which know nothing of this project's environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pyspark

from ebbtide.gc.session import find_java
from tests.support.postgres import free_port

START_SECONDS_MAX: Final = 120
MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"


@dataclass
class Cluster:
    """A running cluster, whose logs and executors' files are in `directory`."""

    directory: Path
    port: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its master's."""
        return f"spark://127.0.0.1:{self.port}"

    def start(self, workers: int) -> None:
        """Start it. Raises RuntimeError, with what the last process said, when it does not."""
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self._run("master", [MASTER_CLASS, *options])
        self._wait("master", "I have been elected leader")
        for number in range(workers):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            work = self.directory / f"work-{number}"
            self._run(f"worker-{number}", [WORKER_CLASS, *options, "-d", str(work), self.url])
        for number in range(workers):
            self._wait(f"worker-{number}", "Successfully registered with master")

    def kill_worker(self, number: int) -> int:
        """Kill a worker and its executors, as if the machine were gone; how many processes."""
        return _kill(self.processes[1 + number])

    def stop(self) -> None:
        """End what runs."""
        for process in reversed(self.processes):
            if process.poll() is None:
                _kill(process)
            process.wait()

    def _run(self, name: str, arguments: list[str]) -> None:
        program = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        base = Path(sys.executable).resolve().parent
        environment = {
            "PATH": f"{base}:/usr/bin:/bin",
            "JAVA_HOME": find_java(),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "HOME": str(self.directory),
            **{key: value for key, value in os.environ.items() if key.startswith("AWS_")},
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)

    def _wait(self, name: str, text: str) -> None:
        log = self.directory / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS_MAX
        while text not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or self.processes[-1].poll() is not None:
                raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)


def _kill(process: subprocess.Popen[bytes]) -> int:
    """Kill a process and what it has started; how many there were."""
    started = psutil.Process(process.pid)
    killed = [*started.children(recursive=True), started]
    for each in killed:
        # What is left of an executor goes by itself when its worker does.
        with suppress(psutil.NoSuchProcess):
            each.kill()
    return len(killed)


@contextmanager
def running_cluster(directory: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for the block."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(directory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)

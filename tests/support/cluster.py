"""A Spark cluster of processes of its own on the loopback address: a master, and workers of one
core each, which know nothing of this project's environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pyspark

from ebbtide.gc.engines.spark.jvm import find_java
from tests.support.postgres import free_port

START_SECONDS_MAX: Final = 120
MASTER_CLASS: Final = "org.apache.spark.deploy.master.Master"
WORKER_CLASS: Final = "org.apache.spark.deploy.worker.Worker"
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For programs that end soon: to compile them well takes longer than to run them."""


@dataclass
class Cluster:
    """A running cluster, whose logs and executors' files are in `directory`. Executors have
    `environment`, and next to nothing else."""

    directory: Path
    environment: Mapping[str, str]
    memory: str = "1g"
    """Of each worker, for its executors."""
    port: int = field(default_factory=free_port)
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _started: int = 0

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, workers: int) -> None:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self.master = self._run("master", [MASTER_CLASS, *options])
        self._wait(self.master, "master", "I have been elected leader")
        for _ in range(workers):
            self.add_worker()
        for number, process in enumerate(self.workers):
            self._wait(process, f"worker-{number}", "Successfully registered with master")

    def add_worker(self) -> None:
        name = f"worker-{self._started}"
        self._started += 1
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", self.memory]
        options += ["--webui-port", "0", "-d", str(self.directory / f"{name}-files"), self.url]
        self.workers.append(self._run(name, [WORKER_CLASS, *options]))

    def kill_worker(self) -> int:
        """Kills the oldest worker and its executors. Returns the number of processes."""
        process = self.workers.pop(0)
        killed = _kill(process)
        process.wait()
        return killed

    def stop(self) -> None:
        for process in filter(None, [*self.workers, self.master]):
            if process.poll() is None:
                _kill(process)
            process.wait()

    def _run(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        program = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        base = Path(sys.executable).resolve().parent
        environment = {
            "PATH": f"{base}:/usr/bin:/bin",
            "JAVA_HOME": find_java(),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
            "HOME": str(self.directory),
            **self.environment,
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )

    def _wait(self, process: subprocess.Popen[bytes], name: str, text: str) -> None:
        log = self.directory / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS_MAX
        while text not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{name} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)


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
def running_cluster(
    directory: Path, *, environment: Mapping[str, str], workers: int = 2, memory: str = "1g"
) -> Iterator[Cluster]:
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(directory, environment, memory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def killer(moments: list[tuple[str, str]], kill: Callable[[], None]) -> Callable[[str, str], None]:
    """Kills at the first request of each kind: a method, and a part of the URL. Those that have
    come are taken from `moments`, which are in the order of a run."""
    lock = threading.Lock()

    def see(seen: str, url: str) -> None:
        with lock:
            if moments and seen == moments[0][0] and moments[0][1] in url:
                del moments[0]
                kill()

    return see

"""How libraries are loaded, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.commands import captured
from tests.support.templates import old_lake

LOADED = """
import os
from ebbtide.imports import leave_algebra_alone
leave_algebra_alone()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("chosen", [None, "2"])
def test_numpy_starts_no_threads(chosen: str | None) -> None:
    """Unless somebody asked for some."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    if chosen is not None:
        environment["OPENBLAS_NUM_THREADS"] = chosen
    command = [sys.executable, "-c", LOADED]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    count, variable = found.stdout.split()
    assert (variable == chosen) if chosen else (count, variable) == ("1", "1")


SERVED = """
import json, sys
from pathlib import Path
from ebbtide.imports import leave_algebra_alone, leave_pandas_alone
leave_algebra_alone()
leave_pandas_alone()
import ebbtide.gc.collector, ebbtide.notify, ebbtide.program.app, ebbtide.telemetry
assert "opentelemetry" not in sys.modules
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
Store.init(Path(sys.argv[1]), settings=Settings()).close()
with Store.open(Path(sys.argv[1]), settings=Settings()) as store:
    from ebbtide.server.app import create_app
    create_app(store)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_a_server_loads_nothing_of_spark(tmp_path: Path) -> None:
    """Nor anything else that only runs or some clients need."""
    command = [sys.executable, "-c", SERVED, str(tmp_path / "store")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EBBTIDE_")}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loaded = set(json.loads(found.stdout))
    assert {"fastapi", "pyarrow", "sqlalchemy"} <= loaded
    assert not loaded & {"awscrt", "grpc", "icechunk", "pandas", "psycopg", "py4j", "pyspark"}


WITHOUT_PANDAS = """
import sys

class Absent:
    # Not None in sys.modules: compiled modules of Arrow would take that for pandas.
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)

sys.meta_path.insert(0, Absent())
from ebbtide.program import main
main()
"""


def test_all_but_spark_works_without_pandas(tmp_path: Path) -> None:
    """As a question, and a server that answers. Runs: `tests/scripts/test_package.py`."""
    with old_lake(tmp_path / "store") as lake:
        lake.objects.put("main", "file", b"text")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("EBBTIDE_")}
    kept |= {"EBBTIDE_STORE": str(tmp_path / "store"), "EBBTIDE_SPARK_MASTER": "none"}
    command = [sys.executable, "-c", WITHOUT_PANDAS]
    done = captured([*command, "explain", "lake", "main", "file"], env=kept)
    assert done.returncode == 0, done
    assert "branch main, path file" in done.stdout
    with subprocess.Popen(
        [*command, "serve", "--port", "0"], env=kept, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().split()[-1]
            with urlopen(f"{url}/api/v1/healthcheck") as answer:
                assert answer.status == 204
        finally:
            server.terminate()
    assert server.returncode == 0

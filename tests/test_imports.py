"""How libraries are loaded, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import json
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
import ebbtide.program.app
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

"""The process from which Spark forks its Python workers.

It loads all modules that steps need, before the first fork. Otherwise each worker of a small run
would spend more time on loading than on its work. Spark starts this module instead of its own one
(setting `spark.python.daemon.module`).
"""

from __future__ import annotations

import gc
import sys

from ebbtide.imports import prepare_forks

# Spark puts an archive of PySpark first, which has no compiled files. The installed package has.
sys.path.sort(key=lambda each: each.endswith(".zip"))
prepare_forks()

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import ebbtide.gc.planner  # noqa: E402
import ebbtide.gc.sweep  # noqa: E402, F401

if __name__ == "__main__":
    pa.array(np.zeros(1)).to_pylist()
    # PySpark collects garbage after each task: not among the objects of all these modules.
    gc.freeze()
    manager()

"""What Spark forks its Python workers from, with all loaded that steps need: else each worker of a
small run would load it for longer than it works.

Spark starts this module (`spark.python.daemon.module`) in place of its own module.
"""

from __future__ import annotations

from ebbtide.imports import prepare_forks

prepare_forks()

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402
from pyspark.daemon import manager  # noqa: E402

import ebbtide.gc.planning.making  # noqa: E402
import ebbtide.gc.sweeping.sweep  # noqa: E402, F401

if __name__ == "__main__":
    pa.array(np.zeros(1)).to_pylist()
    manager()

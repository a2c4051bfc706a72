"""How memory is asked for, in processes of their own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

POOL = "ARROW_DEFAULT_MEMORY_POOL"

SHOW = """
import os
from ebbtide.memory import {name}
{name}()
import pyarrow as pa
print(pa.default_memory_pool().backend_name, os.environ.get("ARROW_DEFAULT_MEMORY_POOL"))
"""

AGAIN = """
import sys
from resource import RUSAGE_SELF, getrusage
from threading import Thread
from ebbtide.memory import keep_freed
if sys.argv[1] == "kept":
    keep_freed()

def faults():
    return getrusage(RUSAGE_SELF).ru_minflt

def fill():
    [bytes([number]) * 10_000_000 for number in range(4)]

seen = []
for _ in range(5):
    before = faults()
    reader = Thread(target=fill)
    reader.start()
    reader.join()
    fill()
    seen.append(faults() - before)
print(*seen)
"""


def program(text: str, *arguments: str, **more: str) -> str:
    """What a program prints, with more in its environment."""
    environment = {k: v for k, v in os.environ.items() if k != POOL} | more
    command = [sys.executable, "-c", text, *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.mark.parametrize(
    ("name", "later"), [("load_arrow_lightly", "None"), ("keep_freed", "system")]
)
def test_arrow_takes_the_systems_memory(name: str, later: str) -> None:
    """Unless somebody chose another; and processes that the program starts choose for
    themselves."""
    text = SHOW.format(name=name)
    assert program(text) == f"system {later}"
    assert program(text, **{POOL: "mimalloc"}) == "mimalloc mimalloc"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc has these settings")
def test_what_was_freed_is_used_again() -> None:
    """By whichever thread: each of these would else be of pages that the system gives anew."""
    given_anew = [int(count) for count in program(AGAIN, "given").split()]
    kept = [int(count) for count in program(AGAIN, "kept").split()]
    assert min(given_anew) > 2_000
    assert max(kept[1:]) < 200

"""The program `ebbtide` with all that a server loads: one to fork, by `tests.support.forking`."""

from __future__ import annotations

import sys

import uvicorn.lifespan.on
import uvicorn.loops.auto
import uvicorn.protocols.http.h11_impl  # noqa: F401

import ebbtide.program.app
import ebbtide.server.app
import ebbtide.store.embedded  # noqa: F401
from ebbtide.program import main as program


def main(*arguments: str) -> None:
    """The program with these arguments. Raises SystemExit at its end."""
    sys.argv = ["ebbtide", *arguments]
    program()

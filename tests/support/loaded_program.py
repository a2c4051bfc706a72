"""The program `ebbtide`, all of it loaded, to be forked by `forking.py`. A command loads what it
needs when it runs, which takes longer than most commands do.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

import pyiceberg.catalog
from pyiceberg.utils.config import Config

import ebbtide
from ebbtide import program

LEFT: Final = (
    "ebbtide.filesystem",
    "ebbtide.gc.engines.spark",
    "ebbtide.integrations",
    "ebbtide.server",
    "ebbtide.store.database.migrations",
)
"""What commands without Spark and a server do not need."""


def _load(package: str, path: list[str]) -> None:
    for found in iter_modules(path, f"{package}."):
        if found.name not in LEFT:
            module = import_module(found.name)
            if found.ispkg:
                _load(found.name, list(module.__path__))


_load("ebbtide", list(ebbtide.__path__))


def main() -> None:
    """The program. PyIceberg has read the environment of the process that is forked."""
    pyiceberg.catalog._ENV_CONFIG = Config()
    program.main()

"""What histories of the store are drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from tests.simulation import blocks, projects, uploads, versions
from tests.simulation.histories import MINUTE, Vocabulary
from tests.simulation.operations import INSTEAD
from tests.simulation.world import LEASE, RUN_LEASE

SLEEPS: Final[tuple[timedelta, ...]] = (
    *(timedelta(0),) * 3,
    *(RUN_LEASE + timedelta(seconds=1),) * 2,
    *(LEASE * 0.5,) * 2,
    *(LEASE + MINUTE,) * 2,
    LEASE * 2 + MINUTE,
)

THEMES: Final[Mapping[tuple[str, ...], int]] = {
    ("stage", "upload"): 2,
    ("stage", "reclaim"): 2,
    ("branch", "delete branch", "restore branch"): 3,
    ("tag", "hold"): 2,
    ("policy",): 2,
    ("merge", "branch"): 2,
    ("hard reset", "branch"): 2,
    ("describe", "stage"): 2,
    ("sign",): 6,
    ("sign", "collect files"): 4,
    ("sign", "rotate", "rotate"): 2,
    ("upload located", "collect files"): 2,
    ("collect files", "change collection"): 3,
    ("run aside", "undo"): 5,
    ("plan", "sweep", "undo"): 4,
    ("run aside", "purge aside", "undo"): 2,
    ("run aside", "purge", "undo"): 2,
    ("run",): 2,
    ("purge whole", "resume purge", "create repository"): 3,
    ("purge whole", "create repository"): 3,
    ("delete repository", "restore repository", "remove", "create repository"): 2,
    ("copy database", "copied run"): 3,
}

TOURS: Final[Mapping[int, tuple[str, ...]]] = {
    0: (
        *("upload", "stage", "stage", "save", "branch", "save", "merge", "tag", "hold"),
        *("describe", "hard reset"),
    ),
    1: (
        *("sign", "collect files", "change collection", "change collection"),
        *("upload located", "rotate"),
    ),
    2: ("policy", "plan", "sweep", "save", "undo", "undo", "run", "purge"),
    3: (
        *("run aside", "purge aside", "run aside", "undo", "reclaim"),
        *("branch", "delete branch", "restore branch"),
    ),
    4: ("save", "copy database", "copied run"),
    5: (
        *("put", "copy", "commit", "name branch", "merge plainly"),
        *("address", "send", "link", "stage external", "reset part", "read page"),
        *("make project", "shelve", "refill", "sign shelved", "end", "bring back"),
        *("put block", "save manifest", "show manifest", "update manifest", "end manifest"),
    ),
    7: ("purge whole", "resume purge", "create repository"),
    6: ("delete repository", "restore repository", "delete repository", "save", "save", "remove"),
}

RUNS: Final[Mapping[str, int]] = {
    "run": 3,
    "plan": 1,
    "sweep": 1,
    "run aside": 1,
    "undo": 1,
    "reclaim": 2,
}

PARTS: Final[Mapping[str, Mapping[str, int]]] = {
    "versions": versions.PART,
    "uploads": uploads.PART,
    "projects": projects.PART,
    "blocks": blocks.PART,
}

STORE: Final = Vocabulary(
    parts=PARTS,
    runs=RUNS,
    themes=THEMES,
    always="save",
    last=("run", "run", "reclaim"),
    last_of={"copied run": "copied run"},
    sleeps=SLEEPS,
    first=("create repository", "policy", "save", "save"),
    more=(
        *("branch", "save", "run", "collect files", "tag"),
        *("stage", "hold", "plan", "sign", "run"),
    ),
    late="save",
    tours=TOURS,
    instead=INSTEAD,
)

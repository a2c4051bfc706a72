"""The file of Prometheus that runs leave, read by Prometheus's own parser."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide import notify
from ebbtide.gc.parts import Count
from ebbtide.gc.report import RunState
from ebbtide.notify import write_metrics
from tests.notify.ends import NOON, Figures, figures_of, run_end
from tests.support.randomized import examples, randomized

FULL = {
    "listed": Count.of(100, None),
    "candidate": Count.of(7, 700),
    "deleted": Count.of(4, 400),
    "failed": Count.of(2, None),
    "missing": Count.of(1, 0),
}


def of(figures: Figures, name: str, repository: str = "lake", outcome: str = "") -> float | None:
    return figures.get((f"ebbtide_run_{name}", repository, outcome))


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "ebbtide.prom"
    assert write_metrics(file, run_end(counts=FULL)) is None
    figures = figures_of(file)
    outcomes = {key[2]: value for key, value in figures.items() if key[2]}
    assert outcomes == dict.fromkeys(("planned", "incomplete", "refused", "failed"), 0) | {
        "swept": 1
    }
    assert of(figures, "seconds") == 90
    assert of(figures, "end_time_seconds") == NOON.timestamp()
    assert of(figures, "start_time_seconds") == NOON.timestamp() - 90
    assert of(figures, "last_success_time_seconds") == NOON.timestamp()
    assert of(figures, "listed_files") == 100
    assert of(figures, "listed_bytes") is None, "unknown, and not zero"
    assert (of(figures, "candidate_files"), of(figures, "candidate_bytes")) == (7, 700)
    assert (of(figures, "deleted_files"), of(figures, "deleted_bytes")) == (4, 400)
    assert (of(figures, "failed_files"), of(figures, "missing_files")) == (2, 1)
    assert list(tmp_path.iterdir()) == [file], "nothing else is left"
    (other := tmp_path / "other").touch()
    assert not other.stat().st_mode & ~file.stat().st_mode & 0o044, "the exporter is another user"
    write_metrics(file, run_end(state="refused"))
    assert of(figures_of(file), "candidate_files") is None, "of a run without a plan"


def test_a_success_of_the_future_counts_as_none(tmp_path: Path) -> None:
    """A clock was ahead. An alarm for its age must not be silent until then."""
    file = tmp_path / "ebbtide.prom"
    write_metrics(file, run_end(counts=FULL, ended_at=NOON + timedelta(days=180)))
    write_metrics(file, run_end(state="refused", ended_at=NOON))
    assert of(figures_of(file), "last_success_time_seconds") == 0
    write_metrics(file, run_end(counts=FULL, ended_at=NOON))
    assert of(figures_of(file), "last_success_time_seconds") == NOON.timestamp()


@randomized("metrics files")
@examples("metrics files")
@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from(["lake", "lakefs:a", 'icechunk:/"\\\n']),
            st.sampled_from(["planned", "swept", "incomplete", "refused"]),
        ),
        max_size=8,
    )
)
def test_each_repository_has_its_last_run(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str, RunState]]
) -> None:
    """Whatever runs of which repositories wrote before."""
    file = tmp_path_factory.mktemp("runs") / "ebbtide.prom"
    states: dict[str, str] = {}
    successes: dict[str, float] = {}
    for hour, (repository, state) in enumerate(runs):
        at = NOON + timedelta(hours=hour)
        assert write_metrics(file, run_end(repository, state, ended_at=at)) is None
        states[repository] = state
        if state == "swept":
            successes[repository] = at.timestamp()
    figures = figures_of(file) if runs else {}
    assert {key[1]: key[2] for key, value in figures.items() if key[2] and value} == states
    success = "ebbtide_run_last_success_time_seconds"
    assert {key[1]: value for key, value in figures.items() if key[0] == success} == successes


def test_processes_that_write_at_one_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ebbtide.prom"
    forks = multiprocessing.get_context("fork")
    names = [f"lake{number}" for number in range(6)]
    processes = [forks.Process(target=write_metrics, args=(file, run_end(name))) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert {key[1] for key in figures_of(file)} == set(names)


def test_a_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = write_metrics(tmp_path / "none" / "ebbtide.prom", run_end())
    assert told is not None and "No such file" in told
    file = tmp_path / "ebbtide.prom"
    file.write_text("not { of Prometheus")
    told = write_metrics(file, run_end())
    assert told is not None and str(file) in told
    assert file.read_text() == "not { of Prometheus", "it may be of another program"
    file.unlink()

    monkeypatch.setattr(notify, "LOCK_TRIES", 2)
    monkeypatch.setattr(notify, "LOCK_PAUSE_SECONDS", 0)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = write_metrics(file, run_end())
        assert told is not None and "another process has the lock" in told
        assert not file.exists()
    finally:
        os.close(held)

"""Measures the time and memory of `select_commits`, on large histories of several shapes.

The practical limit is one plain pass over the same commits that builds a dict of first parents:
code that looks at every commit cannot be faster. The verdict uses processor time, so that a busy
machine does not change it. Each case runs in a process of its own, so that its peak memory is its
own. The commits themselves are part of it.

Run: .venv/bin/python -m benchmarks.select_commits [--commits N] [--branches N] [--shape S]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from benchmarks import results
from ebbtide.model import Commit, Ref
from ebbtide.retention import Policy, select_commits

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SPAN = timedelta(days=3_650)
SEED = 20_260_301
SECONDS_MAX = 10.0
RSS_BYTES_MAX = 2 * 1024**3

AGE = {"default": "7d", "branches": {"branch-*1": "30d", "branch-0": "365d"}}
COUNTS = {
    "default": {"keep_last": 5, "keep_daily": 30},
    "branches": {
        "branch-*1": {"keep_within": "30d", "keep_hourly": 48, "keep_daily": 365},
        "branch-0": {"keep_last": 1_000, "keep_weekly": 104, "keep_monthly": 120, "keep_yearly": 9},
    },
}

Parents = list[int]
"""The position of each commit's first parent; -1 for none. Parents come before children."""


def shared(commits: int, branches: int) -> Parents:
    """Makes one long history, and branches of one commit at even intervals along it."""
    trunk = max(commits - branches, 1)
    step = max(trunk // max(branches, 1), 1)
    chain = [place - 1 for place in range(trunk)]
    return chain + [min(branch * step, trunk - 1) for branch in range(commits - trunk)]


def comb(commits: int, branches: int) -> Parents:
    """Makes a trunk of half the commits, with one more commit on each: as many dangling heads."""
    del branches
    trunk = (commits + 1) // 2
    return [place - 1 for place in range(trunk)] + list(range(commits - trunk))


def deep(commits: int, branches: int) -> Parents:
    """Makes one chain for each branch, side by side."""
    return [place - branches for place in range(commits)]


def bushy(commits: int, branches: int) -> Parents:
    """Makes each commit on a random one of the thousand before it."""
    del branches
    source = random.Random(SEED)
    return [
        source.randrange(max(place - 1_000, 0), place) if place else -1 for place in range(commits)
    ]


SHAPES: Mapping[str, Callable[[int, int], Parents]] = {
    "shared": shared,
    "comb": comb,
    "deep": deep,
    "bushy": bushy,
}


def rising(place: int, total: int) -> datetime:
    """Returns a commit's date as a repository makes it: later than all before it."""
    return NOW - SPAN * ((total - place) / total)


def shuffled(place: int, total: int) -> datetime:
    """Returns a commit's date as an import may bring it, in no order."""
    return rising(place * 7_368_787 % total, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement."""

    shape: str
    policy_name: str
    policy: Mapping[str, object]
    shuffled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one measurement."""

    seconds: float
    cpu_seconds: float
    limit_cpu_seconds: float
    active_count: int
    rss_bytes_before: int
    rss_bytes_max: int


def history(case: Case, commits: int, branches: int) -> tuple[list[Commit], list[Ref]]:
    """Returns the commits of a case, and branches: first on evenly spread leaves, then on random
    commits."""
    parents = [parent if parent >= 0 else -1 for parent in SHAPES[case.shape](commits, branches)]
    date = shuffled if case.shuffled else rising
    ids = [f"{place:064x}" for place in range(commits)]
    made = [
        Commit(ids[place], (ids[parent],) if parent >= 0 else (), date(place, commits), ids[place])
        for place, parent in enumerate(parents)
    ]
    # A database gives commits by their ids, which are random.
    random.Random(SEED).shuffle(made)
    inner = set(parents)
    leaves = [place for place in range(commits) if place not in inner]
    heads = leaves[:: max(len(leaves) // branches, 1)][:branches]
    heads += random.Random(SEED).choices(range(commits), k=branches - len(heads))
    return made, [Ref(f"branch-{n}", "branch", ids[head]) for n, head in enumerate(heads)]


def measure(case: Case, commits: int, branches: int) -> Figures:
    """Measures one plain pass over the commits of a case, then one selection."""
    made, refs = history(case, commits, branches)
    policy = Policy.parse(case.policy)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.process_time()
    parent_of = {
        commit.commit_id: commit.parent_ids[0] if commit.parent_ids else None for commit in made
    }
    limit_cpu_seconds = time.process_time() - started
    del parent_of
    started, cpu_started = time.perf_counter(), time.process_time()
    selection = select_commits(made, refs, policy, NOW)
    cpu_seconds = time.process_time() - cpu_started
    seconds = time.perf_counter() - started
    check(refs, set(selection.active))
    return Figures(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        limit_cpu_seconds=limit_cpu_seconds,
        active_count=len(selection.active),
        rss_bytes_before=before,
        rss_bytes_max=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def check(refs: Sequence[Ref], active: AbstractSet[str]) -> None:
    """Ends the program unless the head of each branch is kept."""
    lost = [ref.name for ref in refs if ref.commit_id not in active]
    if lost:
        raise SystemExit(f"the heads of {len(lost)} branches are not kept, such as {lost[0]}")


def cases(shape: str | None) -> list[Case]:
    """Returns three cases of every shape: rules with periods, rules with counts, and counts over
    shuffled dates."""
    found = []
    for name in [shape] if shape else SHAPES:
        found.append(Case(shape=name, policy_name="age", policy=AGE))
        found.append(Case(shape=name, policy_name="counts", policy=COUNTS))
        found.append(Case(shape=name, policy_name="counts", policy=COUNTS, shuffled=True))
    return found


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--branches", type=int, default=1_000)
    parser.add_argument("--shape", choices=SHAPES)
    results.option(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    rows = []
    print(f"{options.commits:,} commits, {options.branches:,} branches, seed {SEED}")
    print(
        "shape   policy  dates     seconds      cpu  x limit  peak MiB  (input)    active  verdict"
    )
    context = multiprocessing.get_context("spawn")
    for case in cases(options.shape):
        # Not a Pool of multiprocessing: it waits forever for a process that ends itself.
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            figures = pool.submit(measure, case, options.commits, options.branches).result()
        rows.append({"shape": case.shape, "rules": case.policy_name, "shuffled": case.shuffled})
        rows[-1] |= asdict(figures)
        fits = figures.cpu_seconds <= SECONDS_MAX and figures.rss_bytes_max <= RSS_BYTES_MAX
        print(
            f"{case.shape:<7} {case.policy_name:<7} {'shuffled' if case.shuffled else 'rising':<8}"
            f" {figures.seconds:>8.2f} {figures.cpu_seconds:>8.2f}"
            f" {figures.cpu_seconds / figures.limit_cpu_seconds:>8.1f}"
            f" {figures.rss_bytes_max / 2**20:>9,.0f} {figures.rss_bytes_before / 2**20:>8,.0f}"
            f" {figures.active_count:>9,}  {'ok' if fits else 'OVER'}",
            flush=True,
        )
    results.save(options, {"commits": options.commits, "rows": rows})


if __name__ == "__main__":
    main()

"""How much each randomized test goes through, and how many tests are drawn from a set: on each
commit, and in the long run.

The long run goes on for the minutes that it is given. It divides them among the tests by their
`share`, and says in the end what each went through beside `long`, what it should at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What one test goes through.

    `cases` are made on each commit, of so many `examples` each if Hypothesis makes them, for so
    many `seconds` each if time is what counts. `long` is the number of examples, or of seconds,
    that a long run should come to; `share` is its part of the time.
    """

    cases: int = 1
    examples: int = 1
    seconds: float = 0.0
    long: int
    share: float

    def amount(self, cases: int, seconds: float) -> float:
        """How much so many cases are, in the unit of `long`, if they took so many seconds."""
        return seconds if self.seconds else cases * self.examples


def seeds(short: int, *, long: int, share: float = 1.0) -> Volume:
    """A test that takes a seed: one example a case."""
    return Volume(cases=short, long=long, share=share)


def examples(short: int, *, long: int, share: float = 1.0) -> Volume:
    """A test of Hypothesis: all examples of a commit are one case."""
    return Volume(examples=short, long=long, share=share)


def seconds(short: float, *, long: int, share: float = 1.0) -> Volume:
    """A test that goes on for some time."""
    return Volume(seconds=short, long=long, share=share)


VOLUMES: Final[Mapping[str, Volume]] = {
    "quick reads": seeds(25, long=5_000, share=0.5),
    "commit graphs": examples(100, long=10_000),
    "incomplete answers": seeds(8, long=3_000, share=0.3),
    "versions of buckets": seeds(100, long=5_000, share=0.3),
    "pages of candidates": examples(100, long=5_000),
    "manifests": examples(100, long=20_000),
    "requests that replace files": examples(120, long=20_000, share=0.5),
    "requests from the server's description": examples(2, long=200, share=0.2),
    "signed requests": seeds(1, long=4_000, share=0.6),
    "chunked bodies": seeds(1, long=1_000, share=0.3),
    "histories of signed parts": seeds(5, long=2_000, share=2.0),
    "histories of symlink files": seeds(2, long=1_000),
    "server under load": seconds(2, long=120, share=8.0),
    "properties of values": examples(100, long=10_000, share=0.2),
    "metrics files": examples(20, long=1_000, share=0.3),
    "random stores": examples(6, long=2_000, share=23.0),
    "incremental plans": seeds(6, long=2_000, share=3.0),
    "random stores on Spark": examples(1, long=500, share=5.0),
    "explained stores": examples(3, long=300, share=1.5),
    "verified stores": examples(3, long=300, share=1.2),
    "verified Icechunk repositories": seeds(1, long=50),
    "compared policies": examples(3, long=300, share=1.2),
    "usage of stores": examples(6, long=1_000, share=1.5),
    "usage of stores on Spark": examples(1, long=200, share=3.0),
    "curves of stores": examples(5, long=1_000, share=1.5),
    "curves of stores on Spark": examples(1, long=200, share=3.0),
    "usage of other formats": seeds(2, long=400, share=2.0),
    "usage of other formats on Spark": seeds(1, long=100, share=4.0),
    "operations at points of a run": seeds(1, long=200, share=1.5),
    "restores beside runs": seeds(6, long=300, share=0.3),
    "decisions": seeds(40, long=2_000),
    "simulated Icechunk histories": seeds(12, long=100_000, share=20.0),
    "simulated lakeFS histories": seeds(12, long=100_000, share=20.0),
    "simulated histories": seeds(32, long=250_000, share=190.0),
    "lakeFS repositories": seeds(12, long=5_000, share=2.0),
    "lakeFS repositories on Spark": seeds(1, long=500, share=2.0),
    "absent lakeFS objects": seeds(8, long=5_000),
    "guards of lakeFS sweeps": seeds(30, long=10_000),
    "lakeFS histories on a server": seeds(3, long=200, share=3.0),
    "lakeFS tables": seeds(8, long=2_000),
    "lakeFS tables, damaged": seeds(60, long=10_000),
    "subtractions": seeds(1, long=100),
    "subtractions in the process": seeds(10, long=1_000, share=0.3),
    "queries": seeds(1, long=200),
    "queries in the process": seeds(16, long=2_000, share=0.3),
    "keys in large numbers": seeds(1, long=100),
    "lists of Arvados": seeds(4, long=3_000),
    "trees": seeds(8, long=1_000),
    "histories of schedules": seeds(10, long=5_000),
    "changes between pages": seeds(3, long=200, share=2.0),
    "purges": seeds(10, long=3_000, share=33.0),
    "orders of more operations": seconds(2, long=300, share=6.0),
    "orders by chance": seeds(15, long=2_000, share=1.5),
    "operations beside reclaimers": seconds(1, long=60, share=1.5),
    "listings": seeds(5, long=1_000, share=0.5),
    "damaged trees": seeds(2, long=200, share=0.5),
    "full disks": seeds(3, long=300, share=0.5),
    "turns of threads": seeds(1, long=50, share=0.2),
    "groups of threads": seeds(1, long=50, share=0.2),
    "uploads in groups": seeds(2, long=100, share=0.5),
    "selections": seeds(1_000, long=100_000, share=2.0),
    "selections from long histories": seeds(4, long=300, share=0.3),
    "holders of commits": seeds(300, long=50_000),
    "holders of commits in long histories": seeds(1, long=100, share=0.3),
    "holders of commits, whole histories": seeds(100, long=10_000, share=0.3),
    "rewritten histories": seeds(150, long=10_000),
    "expiries": seeds(50, long=5_000, share=0.3),
    "outlooks": seeds(40, long=5_000, share=1.5),
    "Icechunk repositories of all kinds": seeds(3, long=400, share=3.0),
    "Icechunk repositories of all kinds on S3": seeds(1, long=100, share=5.0),
    "Icechunk repositories on Spark": seeds(1, long=125, share=5.0),
    "Icechunk repositories, read": seeds(1, long=50, share=0.3),
    "Icechunk repositories, explained": seeds(1, long=50),
    "Icechunk repositories, undone": seeds(1, long=100, share=2.0),
    "undoing, broken off": seeds(3, long=100),
    "Icechunk refs over time": seeds(4, long=200),
    "Icechunk logs over time": seeds(3, long=20, share=0.3),
    "Icechunk ids": seeds(2, long=100, share=0.3),
    "Icechunk files made by hand": seeds(60, long=5_000, share=0.3),
    "damaged Icechunk files": seeds(2, long=200, share=0.7),
    "steps of commands, by chance": seeds(4, long=2_000),
    "steps of routes, by chance": seeds(4, long=2_000),
    "steps of pages, by chance": seeds(4, long=2_000),
    "refusals of pages, by chance": seeds(3, long=1_000),
    "refusals of commands, by chance": seeds(4, long=2_000),
    "refusals of routes, by chance": seeds(4, long=2_000),
    "damaged Iceberg files": seeds(3, long=300),
    "damaged records of expiries": seeds(2, long=100),
    "orders of fields in Avro files": seeds(10, long=1_000),
    "sequence numbers in Avro files": seeds(10, long=1_000),
    "histories of Iceberg tables": seeds(8, long=300, share=3.0),
    "histories of tables in a REST catalog": seeds(3, long=100),
    "Delta logs": seeds(12, long=500, share=4.0),
    "Delta logs on Spark": seeds(1, long=100, share=2.0),
    "what Delta commits release": seeds(150, long=20_000, share=2.0),
    "incremental runs of Delta tables": seeds(6, long=300, share=3.0),
    "lakes of Delta tables": seeds(3, long=200, share=2.0),
    "writers beside sweeps of Delta tables": seeds(10, long=300, share=3.0),
    "damaged Delta logs": seeds(4, long=300, share=1.5),
    "tables that deltalake writes": seeds(3, long=100, share=2.0),
    "damaged Icechunk repositories": seeds(3, long=200, share=0.5),
}
"""By what is tried. Tests of one kind may share a volume; each has all of it."""

DRAWN: Final[Mapping[str, int]] = {
    "whole programs": 1,
    "shown outputs": 2,
    "tools of tests on Icechunk": 1,
    "outputs that are closed": 4,
    "examples of commands": 30,
    "flows through pages": 2,
    "tests of fsspec": 15,
    "stray keys": 6,
    "kills of sweeps": 4,
    "tags between steps": 6,
    "kills of removals": 2,
    "engines on Spark": 1,
    "databases under load": 1,
    "routes asked at random": 8,
    "clients of S3": 2,
    "interruptions": 3,
    "steps of commands": 0,
    "steps of routes": 0,
    "steps of pages": 0,
    "refusals of pages": 0,
    "refusals of commands": 0,
    "refusals of routes": 0,
    "pages of the documentation": 1,
    "movements between pages": 1,
    "operations whose COMMIT is lost": 1,
    "races of reclaiming": 1,
}
"""Sets of alike tests that each start programs, or go through every order of something: how many
of a set each commit tries. A long run tries as many as it has time for, one of each set in turn;
whoever names tests tries all."""

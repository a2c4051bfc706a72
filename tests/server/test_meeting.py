"""Clients that commit and merge to one branch at the same time: each of them succeeds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import lakefs
import pytest

CLIENTS = 8


def together(work: Callable[[int], object]) -> None:
    """Does the work of all clients at the same time; raises the first error."""
    start = Barrier(CLIENTS)
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda client: (start.wait(), work(client)), range(CLIENTS)))


def paths(repo: lakefs.Repository) -> set[str]:
    return {each.path for each in repo.ref("main").objects()}


@pytest.mark.twins
def test_merges_of_disjoint_branches(repo: lakefs.Repository) -> None:
    for number in range(CLIENTS):
        branch = repo.branch(f"b{number}").create("main")
        branch.object(f"{number}").upload(str(number))
        branch.commit(f"{number}")
    together(lambda number: repo.branch(f"b{number}").merge_into("main"))
    assert paths(repo) == {str(number) for number in range(CLIENTS)}
    messages = [each.message for each in repo.ref("main").log()]
    wanted = {f"Merge 'b{number}' into 'main'" for number in range(CLIENTS)}
    assert {each for each in messages if each.startswith("Merge")} == wanted


def test_transactions(repo: lakefs.Repository) -> None:
    def work(client: int) -> None:
        for time in range(2):
            with repo.branch("main").transact(commit_message=f"{client}/{time}") as branch:
                branch.object(f"{client}/{time}").upload("x")

    together(work)
    assert paths(repo) == {f"{each}/{time}" for each in range(CLIENTS) for time in range(2)}

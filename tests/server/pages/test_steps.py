"""Every page and form, each of whose steps fails, and in each state in which it should refuse: as
`tests/server/test_steps.py` has it for routes.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Final

import httpx
import pytest

from ebbtide.server.pages.app import page_routes
from ebbtide.server.pages.browser import assets
from tests.server.calls import Asked
from tests.server.pages.calls import ASKED, UNASKED
from tests.server.pages.conftest import ORIGIN
from tests.server.test_steps import (
    STATES,
    Requests,
    faults_of,
    try_by_chance,
    try_one,
    try_state,
)
from tests.support.program import in_world, made_world
from tests.support.randomized import randomized

pytestmark = pytest.mark.xdist_group("small world")  # which is made once

UI: Final = "http://test/ui"
TOKEN: Final = re.compile(r'name="form_token" value="(\w+)"')


class Visits(Requests):
    """Pages that somebody opens who is logged in, and forms that are sent from them."""

    def request(self, client: httpx.Client, asked: Asked) -> httpx.Request:
        client.auth = httpx.Auth()  # but for the session, nothing says who it is
        names = self.world.names
        headers = {"Accept": "application/json"}
        if asked.method == "GET":
            self._log_in(client)
            return client.build_request("GET", UI + asked.place(names), headers=headers)
        fields = json.loads(asked.body(names) or b"{}")
        if asked.url != "/login":
            fields["form_token"] = self._log_in(client)
        file = fields.pop("file", None)
        return client.build_request(
            "POST",
            UI + asked.place(names),
            data=fields,
            files=None if file is None else {"content": (file, b"new")},
            headers=headers | ORIGIN,
        )

    def _log_in(self, client: httpx.Client) -> str:
        """Log in; what the forms of the session carry. Empty where nobody can log in."""
        key = {"access_key_id": self.world.names["admin"], "secret": self.world.names["secret"]}
        client.post(f"{UI}/login", data=key, headers=ORIGIN)
        found = TOKEN.search(client.get(f"{UI}/trash").text)
        return "" if found is None else found[1]


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visits]:
    world = made_world(tmp_path_factory.getbasetemp() / "small")
    with in_world(world) as program, pytest.MonkeyPatch.context() as patched:
        with closing(sqlite3.connect(world.database)) as connection:
            binned = "SELECT repository_id FROM repositories WHERE name = 'binned'"
            world.names["binned"] = connection.execute(binned).fetchone()[0]
        world.names["digest"] = assets()["app.css"].digest
        yield Visits(program, patched)


def test_every_page_has_a_call() -> None:
    routes = {(each.method, each.path_format): each.route() for each in page_routes()}
    asked = {
        next(
            name
            for name, route in routes.items()
            if name[0] == each.method
            and route.path_regex.match("/ui" + re.sub(r"\?.*", "", each.url).replace("{", "x"))
        )
        for each in ASKED
    }
    assert asked | UNASKED == set(routes)


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.drawn("steps of pages")
def test_each_step_of_a_page(visits: Visits, asked: Asked) -> None:
    for fault in faults_of(visits, asked):
        try_one(visits, asked, fault)


@randomized("steps of pages, by chance")
def test_a_step_of_a_page(visits: Visits, seed: int) -> None:
    try_by_chance(visits, ASKED, seed)


def test_purges_that_no_page_began(visits: Visits) -> None:
    for url in ("/repositories/lake/purges", "/repositories/lake/purges/{done}"):
        visits.normal(next(each for each in ASKED if each.reads and each.url == url))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.drawn("refusals of pages")
def test_each_page_in_a_state(visits: Visits, state: str) -> None:
    for asked in ASKED:
        try_state(visits, asked, state)


@randomized("refusals of pages, by chance")
def test_a_page_that_refuses(visits: Visits, seed: int) -> None:
    chances = Random(seed)
    try_state(visits, chances.choice(ASKED), chances.choice(STATES))

"""Answers are made from things: they have every field that the command line shows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, get_args, get_type_hints

import pytest
from pydantic_core import to_json

from ebbtide.documents import document_of, is_documented
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.run_request import ScheduledOptions, completed
from ebbtide.server.api.answers import model_of, plain
from ebbtide.store.access.access_keys import Role
from tests.support.collected import awaited, done, new_collection, new_project, new_repository
from tests.support.server import Server
from tests.test_documents import FIELDS


def sample_of(thing: type) -> Any:
    """A value of a class, with None where that can be."""
    values = {
        str: "text",
        int: 1,
        bool: True,
        datetime: datetime(2030, 1, 2, tzinfo=UTC),
        ScheduledOptions: completed({}),
        LifecycleState: LifecycleState.EXPIRING,
        Role: Role.READER,
    }
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(thing).items():
        declared = thing.__dataclass_fields__.get(name)  # type: ignore[attr-defined]
        if declared is None or not declared.init:
            continue
        if type(None) in get_args(hint):
            found[name] = None
        elif is_documented(hint):
            found[name] = sample_of(hint)
        else:
            origin = getattr(hint, "__origin__", None)
            found[name] = () if origin is tuple else {} if origin is not None else values[hint]
    if "cron" in found:
        found |= {"cron": "0 3 * * *", "timezone": "UTC"}
    return thing(**found)


@pytest.mark.parametrize("thing", FIELDS, ids=lambda thing: thing.__name__)
def test_answers_have_every_field_of_the_document(thing: type) -> None:
    """The API's description and its answers; those have the names of lakeFS too."""
    model = model_of(thing)
    assert model is not None
    described = set(FIELDS[thing].split())
    assert described <= set(model.model_fields)
    value = sample_of(thing)
    answer = json.loads(to_json(plain(value)))
    document = document_of(value)
    assert (
        answer.items()
        >= json.loads(
            json.dumps({name: each for name, each in document.items() if each is not None})
        ).items()
    )
    assert set(answer) <= set(model.model_fields)
    model.model_validate(answer)


def without_nulls(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


def test_the_command_line_and_the_api_say_the_same(server: Server) -> None:
    """Each thing of one store, shown by both. The API has more: lakeFS's names."""

    def told(*words: str) -> dict[str, Any]:
        answered = server.command(*words, "--json")
        assert answered.returncode == 0, answered.stderr
        found: dict[str, Any] = json.loads(answered.stdout)
        return found

    with server.http() as http:
        lake = new_repository(http, a="1")
        done(http.post(f"/repositories/{lake}/tags", json={"id": "t", "ref": "main"}), 201)
        project = new_project(http, lake)
        place = f"/collections/{new_collection(http, project['project_id'])['collection_id']}"
        done(http.put(f"{place}/files?path=a&keep_version=true", content=b"1"))
        run_id = done(http.post(f"/repositories/{lake}/gc/runs", json={"dry_run": True}), 202)
        run = awaited(http, f"/repositories/{lake}/gc/runs/{run_id['run_id']}")
        told("schedule", "set", lake, "0 3 * * *")
        of_lake = f"/repositories/{lake}"
        pairs = {
            of_lake: told("repo", "list")["repositories"],
            f"{of_lake}/branches": told("branch", "list", lake)["branches"],
            f"{of_lake}/tags": told("tag", "list", lake)["tags"],
            f"{of_lake}/refs/main/commits": told("log", lake, "main")["commits"],
            f"/projects?repository={lake}": told("project", "list", lake)["projects"],
            place: [told("collection", "show", lake, "p/c")],
            f"{place}/versions": told("collection", "versions", lake, "p/c")["versions"],
            f"{of_lake}/schedule": [told("schedule", "show", lake)],
        }
        for route, shown in pairs.items():
            answer = done(http.get(route))
            answers = answer.get("results", [answer])
            if route == of_lake:
                shown = [each for each in shown if each["name"] == lake]
            assert len(answers) == len(shown) > 0, route
            for one, other in zip(answers, shown, strict=True):
                assert without_nulls(other).items() <= one.items(), route
        assert run["report"] == told("gc", "show", lake, run["run_id"])

"""Projects and collections through HTTP, for tests that need some."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import httpx

from ebbtide.ids import new_id
from tests.support.server import eventually

Document = dict[str, Any]  # JSON


def new_repository(http: httpx.Client, **files: str) -> str:
    name = f"r-{new_id()[:20]}"
    asked = {"name": name, "storage_namespace": f"local://{name}"}
    done(http.post("/repositories", json=asked), 201)
    branch = f"/repositories/{name}/branches/main"
    for path, text in files.items():
        done(http.post(f"{branch}/objects", params={"path": path}, content=text.encode()), 201)
    if files:
        done(http.post(f"{branch}/commits", json={"message": "files"}), 201)
    return name


def new_project(http: httpx.Client, repository: str, name: str = "p", **asked: Any) -> Document:
    answer = http.post("/projects", json={"repository": repository, "name": name, **asked})
    return done(answer, 201)


def new_collection(http: httpx.Client, project_id: str, name: str = "c", **asked: Any) -> Document:
    answer = http.post("/collections", json={"project_id": project_id, "name": name, **asked})
    return done(answer, 201)


def done(answer: httpx.Response, status: int = 200) -> Document:
    assert answer.status_code == status, answer.text
    document: Document = answer.json() if answer.content else {}
    return document


def refused(answer: httpx.Response, status: int, kind: str) -> Document:
    document: Document = answer.json()
    assert (answer.status_code, document["kind"]) == (status, kind), answer.text
    assert document["message"]
    return document


def awaited(http: httpx.Client, place: str, *, going: Collection[str] = ("running",)) -> Document:
    """What is at a place once its state is none of these."""
    found: Document = {}

    def look() -> bool:
        found.update(http.get(place).json())
        return found["state"] not in going

    eventually(look)
    return found


def figure(http: httpx.Client, name: str) -> float:
    """The sum of a server's figures whose name and labels this pattern fits."""
    lines = re.findall(rf"^{name} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return sum(map(float, lines))


def listed(http: httpx.Client, place: str, **params: Any) -> list[Document]:
    found: list[Document] = []
    after = ""
    while True:
        page = done(http.get(place, params={"amount": 1, **params, "after": after}))
        found += page["results"]
        if not page["pagination"]["has_more"]:
            return found
        assert page["pagination"]["next_offset"] != after
        after = page["pagination"]["next_offset"]

"""Statuses, words and headers on which clients of lakeFS rely."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import httpx
import lakefs
import lakefs_sdk
import pytest
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    LakeFSException,
    NotFoundException,
    TransactionException,
)

from ebbtide.server.api.objects import DELETED_MAX
from tests.server.test_client import put, sdk, shown
from tests.support.collected import refused
from tests.support.server import Server


def check(error: type[LakeFSException], words: str, *attempts: Callable[[], object]) -> None:
    """Each attempt fails, and its message has these words."""
    for attempt in attempts:
        with pytest.raises(error) as caught:
            attempt()
        # The client makes another exception for some objects, without the body.
        assert words in caught.value.body.get("message", caught.value.reason.lower())


def test_nothing_changed(lake: lakefs.Repository) -> None:
    put(lake, a="1")
    dev = lake.branch("dev").create("main")
    merge, commit = partial(dev.merge_into, "main"), partial(dev.commit, "nothing")
    check(BadRequestException, "no changes", merge, commit)
    with pytest.raises(TransactionException, match="no changes"), dev.transact("none"):
        pass


def test_a_dirty_branch(lake: lakefs.Repository) -> None:
    first, main = put(lake, a="1"), lake.branch("main")
    dev = lake.branch("dev").create("main")
    put(lake, "dev", b="1")
    main.object("a").upload("2")
    changes = (partial(main.revert, first), partial(main.cherry_pick, "dev"))
    words = "uncommitted changes (dirty branch)"
    check(BadRequestException, words, partial(dev.merge_into, "main"), *changes)
    with pytest.raises(TransactionException, match="dirty branch"), main.transact("t") as tx:
        tx.object("b").upload("1")


def test_names_that_are_taken_or_unknown(lake: lakefs.Repository) -> None:
    put(lake, a="1")
    dev, tag = lake.branch("dev").create("main"), lake.tag("v1").create("main")
    check(ConflictException, "tag already exists", partial(tag.create, "main"))
    check(ConflictException, "branch already exists", partial(dev.create, "main"))
    check(ConflictException, "already exists", partial(lake.create, f"local://{lake.id}"))
    with (
        pytest.raises(ConflictException, match="tag already exists"),
        dev.transact("t", tag="v1") as tx,
    ):
        tx.object("b").upload("1")
    none_such = lakefs.Repository("none-such", client=lake._client)
    check(
        NotFoundException,
        "not found",
        *(lake.branch("no").get_commit, lake.tag("no").get_commit),
        *(lake.branch("main").object("no").stat, none_such.delete),
    )


def test_a_conflict_has_the_form_of_a_merge(lake: lakefs.Repository) -> None:
    put(lake, a="1")
    lake.branch("dev").create("main")
    put(lake, "dev", a="2")
    put(lake, a="3")
    with pytest.raises(ConflictException) as caught:
        lake.branch("dev").merge_into("main")
    body = caught.value.body
    assert lakefs_sdk.MergeResult.from_json(json.dumps(body)).reference == ""
    assert (body["kind"], body["paths"]) == ("merge_conflict", ["a"])
    assert body["message"] == "conflict found"


def test_a_merge_commit_needs_a_parent(lake: lakefs.Repository) -> None:
    put(lake, a="1")
    main, dev = lake.branch("main"), lake.branch("dev").create("main")
    put(lake, "dev", b="1")
    merged = dev.merge_into("main")
    words = "must specify 1-based parent number"
    check(BadRequestException, words, lambda: main.revert(merged), lambda: dev.cherry_pick(merged))
    main.revert(merged, parent_number=1)
    assert shown(lake) == {"a": b"1"}


def test_a_delete_of_nothing(http: httpx.Client, lake: lakefs.Repository) -> None:
    """The hint of a tombstone changes nothing. Of as many paths as lakeFS deletes at once, one."""
    put(lake, a="1")
    branch = lake.branch("main")
    place = f"/repositories/{lake.id}/branches/main/objects"
    for options in ("", "&no_tombstone=true", "&force=true"):
        assert http.delete(f"{place}?path=no{options}").status_code == 204
    branch.object("new").upload("1")
    assert http.delete(f"{place}?path=new&no_tombstone=true").status_code == 204
    assert list(branch.uncommitted()) == []
    assert http.delete(f"{place}?path=a&no_tombstone=true").status_code == 204
    assert [each.type for each in branch.uncommitted()] == ["removed"]
    branch.object("b").upload("1")
    paths = [f"{number}" for number in range(DELETED_MAX - 1)]
    branch.delete_objects([*paths, "b"])
    assert shown(lake) == {}
    too_many = partial(branch.delete_objects, [*paths, "a", "b"])
    check(BadRequestException, "request size exceeded", too_many)


def test_a_path_that_is_taken(http: httpx.Client, lake: lakefs.Repository) -> None:
    place = f"/repositories/{lake.id}/branches/main/objects?path=x"
    made = http.post(place, content=b"0", headers={"If-None-Match": "*"})
    assert made.status_code == 201
    same = {"If-Match": f'"{made.json()["checksum"]}"'}
    assert http.post(place, content=b"1", headers=same).status_code == 201
    for headers, words in (
        ({"If-None-Match": "*"}, "path already exists"),
        (same, "has the checksum"),
    ):
        message = refused(
            http.post(place, content=b"2", headers=headers), 412, "precondition_failed"
        )["message"]
        assert message.startswith("precondition failed: ") and words in message
    odd = http.post(place, content=b"2", headers={"If-None-Match": '"other"'})
    refused(odd, 400, "invalid_argument")
    assert shown(lake) == {"x": b"1"}


def test_conditions_of_downloads(http: httpx.Client, lake: lakefs.Repository) -> None:
    lake.branch("main").object("x").upload("0123456789")
    place = f"/repositories/{lake.id}/refs/main/objects?path=x"
    whole = http.get(place)
    tag, modified = whole.headers["etag"], whole.headers["last-modified"]
    before = parsedate_to_datetime(modified) - timedelta(seconds=1)
    for headers, status in (
        ({"If-None-Match": f'"other", W/{tag}'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"other"', "If-Modified-Since": modified}, 200),
        ({"If-Modified-Since": modified}, 304),
        ({"If-Modified-Since": format_datetime(before, usegmt=True)}, 200),
        ({"If-Modified-Since": "Sat, 01 Jan 2050 00:00:00"}, 200),
    ):
        for method in ("GET", "HEAD"):
            answer = http.request(method, place, headers=headers)
            assert answer.status_code == status, (method, headers)
            assert answer.headers["etag"] == tag
            assert answer.content == (b"0123456789" if (method, status) == ("GET", 200) else b"")


def test_names_of_downloads(http: httpx.Client, lake: lakefs.Repository) -> None:
    place = f"/repositories/{lake.id}/refs/main/objects"
    for path, kind, expected in (
        ("dir/p.txt", "text/plain", "inline; filename=\"p.txt\"; filename*=UTF-8''p.txt"),
        ("x.html", "text/html", "attachment; filename=\"x.html\"; filename*=UTF-8''x.html"),
        ('ü"b;\\c', "", "attachment; filename=\"__b;_c\"; filename*=UTF-8''%C3%BC_b%3B_c"),
    ):
        lake.branch("main").object(path).upload("x", content_type=kind or None)
        for method in ("GET", "HEAD"):
            answer = http.request(method, place, params={"path": path})
            assert answer.headers["content-disposition"] == expected


def test_what_web_tools_read_first(server: Server) -> None:
    client = sdk(server)
    config = client.config_api.get_config()
    assert config.version_config.version == config.version_config.latest_version == "1.88.0"
    assert config.version_config.upgrade_recommended is False
    assert config.storage_config.blockstore_id == ""
    assert config.storage_config.blockstore_description
    assert config.storage_config_list == []
    assert config.ui_config.custom_viewers == []
    event = lakefs_sdk.StatsEvent(**{"class": "ui", "name": "open", "count": 3})
    client.internal_api.post_stats_events(lakefs_sdk.StatsEventsList(events=[event]))


KEYS = ("/lead", "./x", "a/../b", "line\nfeed", "trail/", "a//b", "//", ".", "..", "%2e")


def test_keys_that_lakefs_allows(lake: lakefs.Repository) -> None:
    """Each is an object of its own, staged and committed."""
    branch = lake.branch("main")
    for key in KEYS:
        branch.object(key).upload(key)
    expected = {key: key.encode() for key in KEYS}
    assert shown(lake) == expected
    branch.commit("all")
    assert shown(lake) == expected
    tops = [each.path for each in branch.objects(delimiter="/", amount=1)]
    assert tops == sorted({key[: key.find("/") + 1] or key for key in KEYS})
    for key in KEYS:
        assert branch.object(key).stat().path == key
        assert branch.object(key).copy("main", f"copied/{key}").reader().read() == key.encode()
    branch.delete_objects(list(KEYS))
    assert {each.path for each in branch.objects()} == {f"copied/{key}" for key in KEYS}
    branch.reset_changes("common_prefix", "/")
    branch.reset_changes("object", "a/../b")
    changed = {each.path for each in branch.uncommitted()}
    assert changed == {*KEYS, *(f"copied/{key}" for key in KEYS)} - {"//", "/lead", "a/../b"}


def test_symlink_files(lake: lakefs.Repository, plain: Server) -> None:
    """As the operator of Airflow asks for them. Each line is the address of an object."""
    commit = put(lake, **{"t/p=1/a": "1", "t/p=2/a": "2", "t/p=2/b": "3", "x": "4"})
    answer = sdk(plain).internal_api.create_symlink_file(lake.id, "main", location="t/")
    base = f"{answer.location}/{lake.id}/main".removeprefix("file://")
    found = {str(each.relative_to(base)): each.read_text() for each in Path(base).rglob("*.txt")}
    assert found.keys() == {"t/p=1/symlink.txt", "t/p=2/symlink.txt"}
    addresses = [lake.ref("main").object(f"t/p=2/{name}").stat().physical_address for name in "ab"]
    assert found["t/p=2/symlink.txt"].splitlines() == addresses
    (kept,) = [each for each in lake.tags() if each.id.startswith("symlinks/main/")]
    assert kept.get_commit().id == commit


def test_a_log_without_an_end(http: httpx.Client, lake: lakefs.Repository) -> None:
    """As `lakectl log` asks for it when no option asks for anything. No test starts the program."""
    main = lake.branch("main")
    first = main.commit("first", allow_empty=True).get_commit().id
    main.commit("second", allow_empty=True)
    query = {"after": "", "limit": "false", "first_parent": "false", "stop_at": ""}
    for stop_at, expected in (
        ("", ["second", "first", "Repository created"]),
        (first, ["second", "first"]),
    ):
        asked = query | {"stop_at": stop_at}
        answer = http.get(f"/repositories/{lake.id}/refs/main/commits", params=asked)
        assert [each["message"] for each in answer.json()["results"]] == expected


def test_no_command_of_lakectl_warns_of_another_edition(http: httpx.Client) -> None:
    told = http.get("/config").json()["version_config"]
    assert "version_context" not in told
    assert told["ebbtide_version"] == version("ebbtide")
    assert told == http.get("/config/version").json()

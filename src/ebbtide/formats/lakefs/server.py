"""Asks a lakeFS server about one repository, with lakeFS's own Python client.

`LakefsServer` is picklable, because executors ask too. Each process has one client for each server.
Not for: the files in the storage namespace (`committed`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from ebbtide.errors import Failed, InvalidInput, NotFound, UnknownRepository
from ebbtide.text import shown

LOCAL: Final = "local://"
_DATA: Final = "/data/"
_S3: Final = "s3://"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace: its URL on the server, and its URL for this program (`root`). Both end
    in `/`.

    If the server keeps its objects in a directory, `root` has the whole path. Some of the server's
    answers have this path too.
    """

    url: str
    root: str

    @property
    def storage_url(self) -> str:
        """The URL by which this program opens it. Raises InvalidInput `invalid_address` if it is on
        a storage of another kind."""
        if self.root.startswith(LOCAL):
            return "file://" + self.root.removeprefix(LOCAL).rstrip("/")
        if self.root.startswith(_S3):
            return self.root.rstrip("/")
        raise InvalidInput(
            "invalid_address",
            f"the storage namespace {self.url} is on a storage that cannot be collected yet: "
            f"it has to begin with {_S3} or {LOCAL}",
        )

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The beginnings of the URLs of addresses in the namespace."""
        return (self.root, self.url)

    def relative(self, url: str) -> str | None:
        """Returns an address in the namespace, or None for one outside of it.

        A server writes the namespace in several ways: URLs of linked objects in a directory have
        its path twice. Therefore a URL with another beginning is in the namespace if it has
        `/data/`. Its address is the part from the last `data/` on.
        """
        for prefix in self.prefixes:
            if url.startswith(prefix):
                return url.removeprefix(prefix)
        before, data, behind = url.rpartition(_DATA)
        return f"{data}{behind}".lstrip("/") if before else None


PAGE: Final = 1000
"""The most items that the server puts in one answer."""
POLL_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""The waits between two requests for the status of a task. The last wait is repeated."""
TASK_SECONDS: Final = 1200.0
"""How long a task of the server may take, as in lakeFS's own job."""
WAITS: Final[Mapping[str, Any]] = {"_request_timeout": (10.0, 600.0)}
"""The seconds that a request waits for a connection, and for the next bytes of the answer. The list
of uncommitted objects takes the server the longest."""
_NOT_FOUND: Final = 404
_DENIED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class Account:
    """A server and the keys of a user."""

    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DumpedRefs:
    """Where a dump of commits, branches and tags lies: ids of metaranges, "" for none."""

    commits: str
    branches: str
    tags: str


@dataclass(frozen=True, slots=True)
class AnsweredCommit:
    """A commit, as the server answers it. `created` counts seconds since 1970."""

    commit_id: str
    parents: tuple[str, ...]
    created: int
    metarange_id: str
    version: int


@dataclass(frozen=True, slots=True)
class AnsweredRules:
    """lakeFS's own rules: the days of named branches, and of all other branches."""

    default_days: int
    branches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AnsweredRepository:
    """A repository. `namespace` is the URL of its files, ending in `/`."""

    name: str
    namespace: str
    created: int


@dataclass(frozen=True, slots=True)
class LakefsServer:
    """One repository of a server.

    All methods raise Failed `lakefs_error` if the server does not answer, or answers with an error.
    """

    account: Account
    name: str

    def repository(self) -> AnsweredRepository:
        """Returns the repository. Raises NotFound `repository_not_found`."""
        with self._asking(f"the repository {shown(self.name)}", missing="repository_not_found"):
            found = _client(self.account).repositories_api.get_repository(self.name, **WAITS)
            namespace = found.storage_namespace.rstrip("/") + "/"
            return AnsweredRepository(found.id, namespace, found.creation_date)

    def rules(self) -> AnsweredRules | None:
        """Returns lakeFS's own rules, or None."""
        try:
            with self._asking("the rules", missing="policy_not_found"):
                # The client cannot parse rules without branches, which the server answers as null.
                api = _client(self.account).repositories_api
                answer = api.get_gc_rules_with_http_info(self.name, _preload_content=False, **WAITS)
                found = json.loads(answer.raw_data)
                listed = _listed([] if found.get("branches") is None else found["branches"])
                branches = {_text(each, "branch_id"): _days(each) for each in listed}
                default = _days(found, "default_retention_days")
        except NotFound:
            return None
        if len(branches) < len(listed):
            raise InvalidInput(
                "invalid_policy",
                f"a branch has two of lakeFS's rules in {self.name}: set the rules again",
            )
        return AnsweredRules(default, branches)

    def dump(self) -> DumpedRefs:
        """Has the server write all commits, and then all branches and tags, to the namespace.

        The dump also has the commits of deleted branches, which no other answer has.
        """
        with self._asking("a dump of refs"):
            api = _client(self.account).repositories_api
            task = api.dump_submit(self.name, **WAITS)
            done = _awaited("the dump of refs", lambda: _of_dump(api, self.name, task.id))
        refs = done.refs
        return DumpedRefs(
            refs.commits_meta_range_id, refs.branches_meta_range_id, refs.tags_meta_range_id
        )

    def branches(self) -> dict[str, str]:
        """Returns the heads of all branches, hidden ones too: name to commit id."""
        ask = _client(self.account).branches_api.list_branches_with_http_info
        with self._asking("the branches"):
            pages = _pages(lambda **paging: ask(self.name, show_hidden=True, **paging))
            return {_text(each, "id"): _text(each, "commit_id") for each in pages}

    def tags(self) -> dict[str, str]:
        """Returns all tags: name to commit id."""
        ask = _client(self.account).tags_api.list_tags_with_http_info
        with self._asking("the tags"):
            pages = _pages(lambda **paging: ask(self.name, **paging))
            return {_text(each, "id"): _text(each, "commit_id") for each in pages}

    def commit(self, commit_id: str) -> AnsweredCommit:
        """Returns a commit, by any expression. Raises NotFound `commit_not_found`."""
        with self._asking(f"commit {shown(commit_id)}", missing="commit_not_found"):
            found = _client(self.account).commits_api.get_commit(self.name, commit_id, **WAITS)
            return AnsweredCommit(
                found.id,
                tuple(found.parents),
                found.creation_date,
                found.meta_range_id,
                0 if found.version is None else found.version,
            )

    def uncommitted(self) -> list[str]:
        """Has the server write the addresses of all uncommitted objects. Returns the URLs of the
        folders that the files are in."""
        from lakefs_sdk import PrepareGCUncommittedRequest

        folders, token = list[str](), None
        seen = set[str]()
        with self._asking("the uncommitted objects"):
            api = _client(self.account).internal_api
            while True:
                asked = PrepareGCUncommittedRequest(continuation_token=token)
                found = api.prepare_garbage_collection_uncommitted(self.name, asked, **WAITS)
                if not found.run_id:
                    raise ValueError("it names no run")  # "nothing" would be no protection
                if found.gc_uncommitted_location:
                    folders.append(found.gc_uncommitted_location)
                token = found.continuation_token
                if not token:
                    return folders
                _advance(token, seen)

    def address_at(self, ref: str, path: str) -> str:
        """Returns the URL of the object that a ref has at a path. Raises NotFound
        `object_not_found`."""
        with self._asking(f"{shown(path)} of {shown(ref)}", missing="object_not_found"):
            api = _client(self.account).objects_api
            found = api.stat_object(self.name, ref, path, user_metadata=False, **WAITS)
            return str(found.physical_address)

    def view(self, branch: str) -> Iterator[tuple[str, str]]:
        """Yields paths and URLs of all objects of a branch, committed and staged."""
        ask = _client(self.account).objects_api.list_objects_with_http_info
        with self._asking(f"the objects of {shown(branch)}"):
            for each in _pages(
                lambda **paging: ask(self.name, branch, user_metadata=False, **paging)
            ):
                yield _text(each, "path"), _text(each, "physical_address")

    @contextmanager
    def _asking(self, what: str, *, missing: str | None = None) -> Iterator[None]:
        """Raises errors of the client as errors of Ebbtide. With `missing`, a 404 raises NotFound
        of this kind."""
        from lakefs_sdk.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        where = f"lakeFS at {self.account.endpoint}"
        try:
            yield
        except ApiException as error:
            if error.status == _NOT_FOUND and missing is not None:
                is_repository = missing == "repository_not_found"
                known = UnknownRepository if is_repository else NotFound
                raise known(missing, f"{where} does not find {what}") from error
            hint = ": check its keys and their permissions" if error.status in _DENIED else ""
            raise Failed(
                "lakefs_error",
                f"{where} answered {error.status} when asked for {what}{hint} ({_reason(error)})",
            ) from error
        except HTTPError as error:
            raise Failed(
                "lakefs_error", f"{where} does not answer when asked for {what}: {error}"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failed(
                "lakefs_error", f"{where} answered something unknown when asked for {what}: {error}"
            ) from error


@cache
def _client(account: Account) -> Any:  # lakefs_sdk has no types
    from lakefs_sdk import Configuration
    from lakefs_sdk.client import LakeFSClient
    from urllib3 import Retry

    configuration = Configuration(
        host=f"{account.endpoint.rstrip('/')}/api/v1",
        username=account.access_key_id,
        password=account.secret_access_key,
    )
    # A server that was silent until the timeout would not answer the repeated request either.
    configuration.retries = Retry(connect=3, read=0)
    return LakeFSClient(configuration)


def _pages(ask: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yields the items of all pages of a list. Raises ValueError, KeyError or TypeError unless each
    page is whole.

    The client does not parse them: it takes a list of another kind for an empty one, and needs
    three times as long as the server's answer.
    """
    after, seen = "", set[str]()
    while True:
        answer = ask(after=after, amount=PAGE, _preload_content=False, **WAITS)
        page = json.loads(answer.raw_data)
        results, paging = _listed(page["results"]), page["pagination"]
        has_more, after = paging["has_more"], paging["next_offset"]
        if len(results) < paging["results"]:
            raise ValueError("a page has fewer items than it counts")
        if not isinstance(has_more, bool) or has_more != bool(after):
            raise ValueError("a page does not say whether there is more, and where")
        yield from results
        if not has_more:
            return
        _advance(after, seen)


def _advance(offset: str, seen: set[str]) -> None:
    """Adds the beginning of the next page. Raises ValueError if that page was there already."""
    if offset in seen:
        raise ValueError("a page comes again and again")
    seen.add(offset)


def _listed(found: object) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError("it is no list")
    return found


def _text(found: Mapping[str, Any], name: str) -> str:
    if not isinstance(found[name], str):
        raise TypeError(f"{name} is no text")
    return str(found[name])


def _days(found: Mapping[str, Any], name: str = "retention_days") -> int:
    if type(found[name]) is not int:  # a truth value is an int too
        raise TypeError(f"{name} is no whole number")
    return int(found[name])


def _of_dump(api: Any, name: str, task_id: str) -> Any | None:
    """Returns the status of a dump that has ended, or None."""
    found = api.dump_status(name, task_id, **WAITS)
    if found.error:
        raise Failed("lakefs_error", f"lakeFS could not dump the refs of {name}: {found.error}")
    return found if found.done else None


def _awaited(what: str, ask: Callable[[], Any | None]) -> Any:
    """Asks for the result of a task until the task has ended."""
    began = time.monotonic()
    waits = iter(POLL_SECONDS)
    while (found := ask()) is None:
        if time.monotonic() - began > TASK_SECONDS:
            raise Failed("lakefs_error", f"{what} took more than {TASK_SECONDS:.0f} s: try again")
        time.sleep(next(waits, POLL_SECONDS[-1]))
    return found


def _reason(error: Any) -> str:
    """Returns the first line of the server's error text."""
    text = str(error.body or error.reason or "").strip()
    return text.splitlines()[0][:200] if text else "no reason"

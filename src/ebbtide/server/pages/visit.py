"""One visit: the visitor, the page that the request names, its parameters, and the answer.

The answer has the sections of the repository's pages. It can have a notice of an action before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from ebbtide.api.collected import Collected
from ebbtide.errors import EbbtideError, InvalidInput, quarantine_fields
from ebbtide.formats.schemes import has_policy, is_elsewhere
from ebbtide.quarantined import Fate
from ebbtide.server.auth import PRINCIPAL
from ebbtide.server.bodies import limited
from ebbtide.server.errors import STATUS
from ebbtide.server.pages.browser import COOKIE, THEMES, theme_of
from ebbtide.server.pages.html import link, render
from ebbtide.server.serving import Served
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import AccessKey, Role
from ebbtide.store.access.sessions import Session
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository

if TYPE_CHECKING:
    from ebbtide.prices import Prices
    from ebbtide.server.oidc.provider import Provider


FIELDS_MAX: Final = 1_000
FORM_TYPE: Final = "application/x-www-form-urlencoded"
PAGE_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class Upload:
    """The file of a form: its name in the browser, its type if the browser knows one, and its
    bytes."""

    filename: str
    content_type: str | None
    content: Content


class Visit:
    """A request to the pages. The session is known after `identify`, the fields of a form after
    `read_form`."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.served = Served(request)
        self.session: Session | None = None
        self.role = Role.NONE
        """The visitor's role in the page's repository; on other pages, in the whole store. It is
        known after `require`, so that a page of an error does not ask the database."""
        self._form: dict[str, str] = {}
        self.upload: Upload | None = None
        self.error: EbbtideError | None = None
        """The error that the page shows, because the sender of its form can correct it."""
        self._status = 200
        self._notice = request.query_params.get("notice", "")

    @property
    def store(self) -> Store:
        """The store."""
        return self.served.store

    @property
    def provider(self) -> Provider | None:
        """The logins by the issuer; None if the settings have none."""
        return cast("Provider | None", self.request.app.state.provider)

    @property
    def prices(self) -> Prices | None:
        """The prices at the server's start; None without any."""
        return cast("Prices | None", self.request.app.state.prices)

    def identify(self) -> None:
        """Finds the session of the request's cookie."""
        token = self.request.cookies.get(COOKIE)
        self.session = self.served.store.sessions.find(token) if token else None
        if self.session is not None:
            self.request.scope[PRINCIPAL] = self.session.key
            self.role = self.session.key.role

    async def read_form(self) -> None:
        """Reads the fields of the form. Raises InvalidInput `invalid_argument` or `too_large`."""
        body = await limited(self.request, self.served.settings.server_body_max).body()
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != FORM_TYPE:
            raise InvalidInput("invalid_argument", f"forms are sent as {FORM_TYPE}")
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
        except ValueError:
            raise InvalidInput(
                "invalid_argument",
                "the form cannot be understood: reload the page, and send it again",
            ) from None
        self._form = {name: _storable(name, value) for name, value in pairs}

    def take(self, fields: Mapping[str, str], upload: Upload) -> None:
        """Sets the fields and the file of a form that was read elsewhere. Raises InvalidInput
        `invalid_argument`."""
        self._form = {name: _storable(name, value) for name, value in fields.items()}
        self.upload = upload

    @property
    def key(self) -> AccessKey:
        """The visitor's access key. Raises Denied `key_invalid`."""
        return self.served.key

    def allows(self, role: Role) -> bool:
        """Whether the visitor has the role, or a higher one, in the page's repository; on other
        pages, in the whole store."""
        return self.role.allows(role)

    def require(self, role: Role) -> None:
        """Checks that the visitor has the role, or a higher one, as `Rights.require` does."""
        rights = self.served.rights
        rights.require(role, self.request.path_params)
        if self.role is not Role.ADMIN and "repository" in self.request.path_params:
            self.role = rights.role_in(rights.id_of(self.request.path_params))

    def segment(self, name: str) -> str:
        """Returns a segment of the path."""
        return _storable(name, cast("str", self.request.path_params[name]))

    def query(self, name: str, default: str = "") -> str:
        """Returns a parameter of the URL's query."""
        return _storable(name, self.request.query_params.get(name, default))

    def number(self, name: str, default: int, *, most: int) -> int:
        """Returns a whole number of the query, from 0 to `most`. Raises InvalidInput."""
        text = self.query(name) or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) <= most):
            raise InvalidInput("invalid_argument", f"{name} must be a number from 0 to {most}")
        return int(text)

    def form(self, name: str, default: str = "") -> str:
        """Returns a field of the form."""
        return self._form.get(name, default)

    def given(self, name: str) -> str:
        """Returns a field of the form that was sent; without one, a parameter of the query."""
        return self.form(name) if self.request.method == "POST" else self.query(name)

    def repository(self) -> Repository:
        """Returns the repository in the path. Raises NotFound `repository_not_found`."""
        return self.served.repository(self.segment("repository"))

    @cached_property
    def collected(self) -> Collected:
        """The repository in the path, which may lie elsewhere. Raises as `Served.collected`."""
        return self.served.collected(self.segment("repository"))

    def now(self) -> datetime:
        """Returns the database's time."""
        with self.served.store.metadata.snapshot() as tx:
            return tx.now()

    def refuse(self, error: EbbtideError) -> None:
        """Lets the page show an error, and answers with its status. Raises an error that the sender
        of a form cannot correct (status 500 and above)."""
        status = STATUS[error.kind]
        if status >= 500:
            raise error
        self.error, self._status = error, status

    def page(
        self,
        template: str,
        *,
        status: int | None = None,
        **values: Any,  # the values that the template shows
    ) -> HTMLResponse:
        """Returns the page that a template makes."""
        return HTMLResponse(self.render(template, **values), status_code=status or self._status)

    def render(self, template: str, **values: Any) -> str:
        """Returns the HTML of a template, with the given values and the values that all pages
        share. If a value is an error about data in quarantine, the page offers to restore it."""
        values = {"error": self.error} | values
        restorable = values.get("restorable")
        for error in values.values():
            if isinstance(error, EbbtideError):
                self.store.tell(error)
                restorable = restorable or restorable_of(error)
        repository = self.request.path_params.get("repository")
        common: dict[str, Any] = {
            "session": self.session,
            "role": self.role if self.session else None,
            "can_write": self.allows(Role.WRITER),
            "can_admin": self.allows(Role.ADMIN),
            "notice": NOTICES.get(self._notice),
            "theme": theme_of(self.request),
            "themes": THEMES,
            "here": self._here(),
            "prices": self.prices,
            "repository": repository,
            "sections": ()
            if repository is None or self.session is None
            else sections_of(repository, self.role, raw_path(self.request)),
        }
        return render(template, **(common | values | {"restorable": restorable}))

    def _here(self) -> str:
        """Returns the URL path of this page without its notice. After a form was refused, this is
        the page of the repository, because the form's own path may have no page."""
        if self.request.method not in ("GET", "HEAD"):
            repository = self.request.path_params.get("repository")
            return link() if repository is None else link("repositories", repository)
        pairs = self.request.query_params.multi_items()
        query = urlencode([pair for pair in pairs if pair[0] != "notice"])
        return raw_path(self.request) + (f"?{query}" if query else "")

    def to(self, *segments: str, notice: str | None = None, **query: object) -> RedirectResponse:
        """Redirects to another page, which shows a notice."""
        assert notice is None or notice in NOTICES, notice
        return RedirectResponse(link(*segments, **query, notice=notice), status_code=303)

    def without_notice(self) -> None:
        """Leaves the notice of an action out, because what it tells is over."""
        self._notice = ""

    def json(self, content: Mapping[str, Any]) -> JSONResponse:
        """Returns an answer for the pages' script."""
        return JSONResponse(content)


def restorable_of(error: EbbtideError) -> Mapping[str, str] | None:
    """Returns what the form needs that restores the data of an error: the id of the run, and the
    end of its quarantine. None if nothing can be restored."""
    fields = quarantine_fields(error)
    return fields | {"run_id": error.details["run_id"]} if fields else None


def restorable_by(fate: Fate) -> Mapping[str, str] | None:
    """Returns the same for the fate of data."""
    fields = fate.fields()
    return fields | {"run_id": fate.run_id} if fields else None


def raw_path(request: Request) -> str:
    """Returns the path as the browser wrote it."""
    return cast("bytes", request.scope["raw_path"]).decode("latin-1")


def _storable(name: str, text: str) -> str:
    """Returns a text that databases can store. Raises InvalidInput `invalid_argument` for zero
    bytes."""
    if "\0" in text:
        raise InvalidInput("invalid_argument", f"{name} holds a zero byte")
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a repository's pages, at `path` below the repository's own page. `of` are the
    repositories that have it: those of the store, those with a policy, or all."""

    name: str
    path: str
    role: Role = Role.READER
    of: Literal["store", "policy", "all"] = "store"


SECTIONS: Final = (
    Section("Overview", ""),
    Section("Files", "files"),
    Section("Commits", "commits"),
    Section("Branches and tags", "refs"),
    Section("Compare", "compare"),
    Section("Collections", "collections"),
    Section("Policy", "policy", of="policy"),
    Section("Holds", "holds"),
    Section("Protection", "protection"),
    Section("Runs", "runs", of="all"),
    Section("Usage", "usage", of="all"),
    Section("Explain", "explain", of="all"),
    Section("Trash", "trash"),
    Section("Purges", "purges", Role.ADMIN),
)
"""A new section needs one line here, and a module with its pages."""


_WITHIN: Final = {"object": "files"}
"""Pages that belong to a section of another name."""


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section as the navigation shows it."""

    name: str
    url: str
    is_current: bool


def sections_of(repository: str, role: Role, path: str) -> tuple[ShownSection, ...]:
    """Returns the sections that a role may see. `path` is the path of the current page, as the
    browser wrote it."""
    base = link("repositories", repository)
    below = path.removeprefix(base).strip("/").partition("/")[0]
    below = _WITHIN.get(below, below)
    return tuple(
        ShownSection(
            section.name,
            f"{base}/{section.path}".rstrip("/"),
            section.path == below,
        )
        for section in SECTIONS
        if role.allows(section.role) and _has(repository, section)
    )


def _has(repository: str, section: Section) -> bool:
    if section.of == "policy":
        return has_policy(repository)
    return section.of == "all" or not is_elsewhere(repository)


NOTICES: Final[Mapping[str, str]] = {
    "repository_made": "The repository is created. Upload a file, or let a client write to it.",
    "uploaded": "The file is uploaded. Commit it to make it part of the history.",
    "file_deleted": "The file is deleted from the branch. Commits that have it keep it.",
    "committed": "The changes are committed. The commit is now in the history.",
    "merged": "The branch is merged.",
    "project_made": "The project is created.",
    "collection_made": "The collection is created.",
    "item_deleted": "It is in the trash, and can be restored from there.",
    "ref_made": "The branch or tag is created.",
    "ref_deleted": "The branch or tag is in the trash, and can be restored from there.",
    "policy_set": "The policy is set. No data is deleted before the next run.",
    "policy_unset": "The policy was dropped. Set another before the next run.",
    "hold_added": "The commit is held. The holds are below.",
    "hold_removed": "The hold is removed. The policy decides about the commit again.",
    "rule_added": "The rule is set. Change protected branches by merging other branches.",
    "rule_removed": "The rule is removed. Branches that no other rule protects take changes again.",
    "restored": "It was restored from the trash. It is in its list again.",
    "logged_out": "You are logged out. Log in to continue.",
    "run_started": "The run has started. Its page follows it to the end.",
    "undo_started": "The files in the run's quarantine are being restored. This page follows it.",
    "aside_purged": "The files in the run's quarantine are being deleted. This page follows it.",
    "schedule_set": "The schedule is set. A server starts the runs when they are due.",
    "schedule_enabled": "The schedule is enabled.",
    "schedule_disabled": "The schedule is disabled. Due times until then are not missed.",
    "schedule_deleted": "The schedule is deleted. A run that is going on continues.",
    "purge_started": "The purge has started. It continues when you leave this page.",
    "purge_planned": "The purge is being planned. Nothing is deleted until you carry it out.",
}
"""The notices that a page shows after an action. A URL can only name one of these, not any other
text."""

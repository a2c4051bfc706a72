"""One request to the gateway, after its signature was checked; and the table of operations.

A bucket is a repository, and a key is `REF/PATH`. A slash in the ref is written `%2F`, so that the
first slash ends the ref.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes
from xml.etree.ElementTree import Element

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.doors.s3 import checksums
from ebbtide.doors.s3.errors import (
    Markup,
    S3Error,
    code_of,
    declaration,
    document,
    error_element,
    own_elements,
    parsed,
)
from ebbtide.doors.s3.payload import Payload
from ebbtide.doors.s3.signatures import ScopeKey
from ebbtide.errors import EbbtideError, Gone, InvalidInput, NotFound
from ebbtide.server.auth import Rights
from ebbtide.server.bodies import limited, store_upload
from ebbtide.server.patience import INTERVAL_SECONDS, Patient
from ebbtide.storage import Content
from ebbtide.store.access.access_keys import AccessKey, Role
from ebbtide.store.embedded import Store
from ebbtide.store.names import check_path
from ebbtide.store.objects.objects import Readable
from ebbtide.store.quick_reads import InMemory
from ebbtide.store.repository import Repository
from ebbtide.text import shown

logger = logging.getLogger(__name__)

XML_BYTES_MAX: Final = 1024 * 1024

Level = Literal["service", "bucket", "object"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class S3Call:
    """A request that the key `access_key` has signed. `bucket` and `key` are "" if there are none.
    `query` and `headers` are decoded; names of headers are in lower case. `found` is the object to
    read, if it was found with the key."""

    request: Request
    request_id: str
    store: Store
    access_key: AccessKey
    rights: Rights
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    content_hash: str
    scope_key: ScopeKey
    found: Readable | InMemory | None = None

    @property
    def resource(self) -> str:
        """The bucket and key as errors tell them."""
        return f"/{self.bucket}/{self.key}" if self.key else f"/{self.bucket}"

    @property
    def level(self) -> Level:
        """What the request is about."""
        if self.key:
            return "object"
        return "bucket" if self.bucket else "service"

    def repository(self) -> Repository:
        """Returns the repository of the bucket. Raises NotFound `repository_not_found`, and Denied
        as `Rights.opened` does."""
        return self.rights.opened(self.store.repository(self.bucket))

    def source_repository(self, bucket: str) -> Repository:
        """Returns the repository that a copy reads. Raises NotFound `repository_not_found`, and
        Denied `role_missing` if the key may not read it."""
        rights = Rights(self.access_key, self.store)
        rights.require(Role.READER, {"repository": bucket})
        return rights.opened(self.store.repository(bucket))

    def place(self) -> tuple[str, str]:
        """Returns the ref and the path of the key. Raises S3Error or InvalidInput `invalid_path`
        if it is no key of an object."""
        ref, path = split_key(self.key)
        if path is None:
            raise S3Error("InvalidArgument", f"{shown(self.key)} is no key: write REF/PATH")
        check_path(path)
        return ref, path

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs work of the store in a thread."""
        return await run_in_threadpool(work)

    def payload(self, bytes_max: int, *, has_sums: bool = True) -> Payload:
        """Returns the reader of the body. `has_sums` is as in `document`. Raises S3Error if its
        headers are wrong."""
        headers = {
            name: value
            for name, value in self.headers.items()
            if has_sums or not name.startswith(checksums.PREFIX)
        }
        found = Payload(self.content_hash, self.scope_key, headers, bytes_max)
        found.check()
        return found

    async def receive(self, payload: Payload, put: Callable[[Content], Result]) -> Result:
        """Calls `put` in a thread with the checked bytes of the body; returns its result."""
        return await store_upload(
            self.request,
            self.request.stream(),
            lambda raw: put(payload.read(raw)),
            self.request.app.state.transfers,
        )

    async def document(
        self, root_name: str, *, bytes_max: int = XML_BYTES_MAX, has_sums: bool = True
    ) -> Element:
        """Returns the root of the XML body. Without `has_sums`, the checksums in the headers are
        not those of the body, and are not compared with it. Raises S3Error."""
        payload = self.payload(bytes_max, has_sums=has_sums)
        # Chunks have heads and signatures besides their bytes.
        raw = await limited(self.request, 2 * bytes_max).body()
        data = payload.read(raw)
        assert isinstance(data, bytes)
        root = parsed(data, root_name)
        if root is None:
            raise S3Error("MalformedXML", f"the body is no valid {root_name}")
        return root

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
        """Returns a whole number of the query. Raises S3Error `InvalidArgument`."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (
            text.isascii() and text.isdigit() and len(text) < 11 and least <= int(text) <= most
        ):
            raise S3Error("InvalidArgument", f"{name} is a number from {least} to {most}")
        return int(text)


Handler = Callable[[S3Call], Awaitable[Response]]
Quick = Callable[[S3Call, bytes | None], Response | None]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of S3: its name, the role that it needs, and its function.

    `quick` answers in the thread that has checked the signature, because a switch of threads costs
    time. It is given the body if that is small and was received already, else None. It returns
    None if `handle` has to answer.
    """

    name: str
    role: Role
    handle: Handler
    quick: Quick | None = None

    @property
    def path_format(self) -> str:
        """The operation's label in metrics."""
        return f"s3:{self.name}"


Shape = tuple[Level, str, str, bool]
"""Level, method, the name in the query that chooses the operation, and whether it is a copy."""

OPERATIONS: Final[dict[Shape, Operation]] = {}


@dataclass(frozen=True, slots=True)
class InThread:
    """An operation whose function works in a thread, and needs no body."""

    work: Callable[[S3Call], Response]

    async def __call__(self, call: S3Call) -> Response:
        """Calls the function in a thread."""
        return await call.run(lambda: self.work(call))

    def quick(self, call: S3Call, _body: bytes | None) -> Response:
        """Calls the function in this thread."""
        return self.work(call)


def operation(
    name: str,
    role: Role,
    level: Level,
    method: str,
    choice: str = "",
    *,
    copies: bool = False,
    quick: Quick | None = None,
) -> Callable[[Handler], Handler]:
    """Registers a function as an operation of S3. `quick` is as in `Operation`."""

    def register(handler: Handler) -> Handler:
        works = handler.quick if isinstance(handler, InThread) else quick
        OPERATIONS[(level, method, choice, copies)] = Operation(name, role, handler, works)
        return handler

    return register


def answer(content: Markup, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer with an XML document."""
    return Response(document(content), headers=headers, media_type="application/xml")


def reads(look: Callable[[], Result]) -> Result:
    """Calls a function that reads an object. A ref or path that cannot exist is no argument that is
    wrong: there is no such key."""
    try:
        return look()
    except S3Error as error:
        raise S3Error("NoSuchKey", error.message) from None
    except InvalidInput as error:
        if error.kind in ("invalid_argument", "invalid_path"):
            raise S3Error("NoSuchKey", error.message) from None
        raise


@contextmanager
def writing(repository: Repository, ref: str) -> Iterator[None]:
    """A block that writes to a branch. If the ref is a tag or a commit, the error says so: S3Error
    `MethodNotAllowed`."""
    try:
        yield
    except NotFound as error:
        if error.kind == "branch_not_found" and _names_commit(repository, ref):
            raise S3Error(
                "MethodNotAllowed",
                f"{shown(ref)} is a tag or a commit, which never changes: write to a branch",
            ) from None
        raise


def _names_commit(repository: Repository, ref: str) -> bool:
    try:
        repository.commits.resolve(ref)
    except EbbtideError:
        return False
    return True


def bucket_and_key(raw_path: str, host: str, domain: str | None) -> tuple[str, str]:
    """Returns the bucket and the key of a request, "" for none. `raw_path` is percent-encoded.

    Raises S3Error `InvalidURI`.
    """
    path = decoded(unquote_to_bytes(raw_path)).removeprefix("/")
    name = host.partition(":")[0].lower()
    if domain is not None and name.endswith("." + domain.lower()):
        return name.removesuffix("." + domain.lower()), path
    bucket, _, key = path.partition("/")
    return bucket, key


def copy_source(header: str) -> tuple[str, str]:
    """Returns the bucket and the key in `x-amz-copy-source`. Raises S3Error."""
    text, question, version = header.partition("?")
    if question and version not in ("", "versionId=null"):
        raise S3Error("NotImplemented", "objects have no versions: name a commit as the ref")
    bucket, slash, key = (
        decoded(unquote_to_bytes(text.encode("latin-1"))).removeprefix("/").partition("/")
    )
    if not slash or not key:
        raise S3Error("InvalidArgument", "write x-amz-copy-source as BUCKET/REF/PATH")
    return bucket, key


def decoded(raw: bytes) -> str:
    """Returns bytes as text that the store can hold. Raises S3Error `InvalidURI`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "the request's path and query must be UTF-8") from None
    if "\0" in text:
        raise S3Error("InvalidURI", "the request's path or query holds a zero byte")
    return text


def split_key(key: str) -> tuple[str, str | None]:
    """Returns the ref and the path of a key. The path is None for a key without a slash."""
    ref, slash, path = key.partition("/")
    return ref.replace("%2F", "/").replace("%2f", "/"), path if slash else None


def key_of(ref: str, path: str) -> str:
    """Returns the key of a path of a ref."""
    return f"{ref.replace('/', '%2F')}/{path}"


def patient(call: S3Call, work: Callable[[], Markup]) -> PatientAnswer:
    """Returns the answer of work that copies bytes within the server."""

    def telling() -> Markup:
        # The answer may have begun when the error comes.
        try:
            return work()
        except Gone as error:
            call.store.tell(error)
            raise

    return PatientAnswer(
        telling,
        resource=call.resource,
        request_id=call.request_id,
        limiter=call.request.app.state.transfers,
    )


class PatientAnswer(Patient[Markup]):
    """Runs `work` in a thread, and sends the document that it returns.

    S3 answers CopyObject and CompleteMultipartUpload in this way when they take long: with status
    200, and, if the work fails later, with an error as the document.
    """

    media_type = "application/xml"
    opening = declaration()

    def __init__(
        self,
        work: Callable[[], Markup],
        *,
        resource: str,
        request_id: str,
        limiter: anyio.CapacityLimiter,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        super().__init__(work, limiter=limiter, interval_seconds=interval_seconds)
        self._resource = resource
        self._request_id = request_id

    def whole(self, result: Markup) -> Response:
        """Returns the answer of work that was quick."""
        return answer(result)

    def late(self, result: Markup) -> bytes:
        """Returns the document without its declaration."""
        return result.encode()

    def late_failure(self, failure: Exception) -> bytes:
        """Returns the error as a document."""
        code, message = "InternalError", "a defect in this program: the server's log says more"
        own: list[Markup] = []
        if isinstance(failure, EbbtideError):
            code, message, own = code_of(failure), failure.message, own_elements(failure)
        else:
            logger.error("a request failed after its answer began", exc_info=failure)
        return error_element(
            code, message, *own, resource=self._resource, request_id=self._request_id
        ).encode()

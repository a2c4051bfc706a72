"""Answers of S3 to requests that take long.

S3 answers CopyObject and CompleteMultipartUpload in the same way: with status 200, and, if the work
fails later, with an error as the document.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
from starlette.responses import Response

from ebbtide.errors import EbbtideError
from ebbtide.server.patience import INTERVAL_SECONDS, Patient
from ebbtide.server.s3.call import answer
from ebbtide.server.s3.errors import code_of, error_element, own_elements
from ebbtide.server.s3.markup import Markup, declaration

logger = logging.getLogger(__name__)


class PatientAnswer(Patient[Markup]):
    """Runs `work` in a thread, and sends the document that it returns."""

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

"""Codes of errors, XML, and answers that take long."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.doors.s3 import gateway
from ebbtide.doors.s3.call import PatientAnswer
from ebbtide.doors.s3.errors import (
    CODES,
    STATUS_OF_CODE,
    S3Error,
    code_of,
    code_of_kind,
    document,
    element,
    parsed,
)
from ebbtide.errors import KINDS, NotFound
from ebbtide.server.errors import STATUS
from tests.server.test_patience import Sent, answered
from tests.support.randomized import examples, randomized


def test_every_kind_has_a_code() -> None:
    counted = Counter(code for codes in CODES.values() for code in codes)
    assert set(counted.values()) == {1}
    for kind in KINDS:
        status = STATUS_OF_CODE[code_of_kind(kind)]
        # S3 answers with 403 where a key is wrong, and with 400 where a body is too large.
        moved = {401: 403, 413: 400, 431: 400}
        assert status == moved.get(STATUS[kind], STATUS[kind]), kind
    # The gateway's modules, without the table of codes.
    modules = Path(gateway.__file__).parent.glob("*.py")
    sources = "".join(each.read_text() for each in modules if each.name != "errors.py")
    used = {code_of_kind(kind) for kind in KINDS} | set(re.findall(r'"([A-Z]\w+)"', sources))
    assert set(STATUS_OF_CODE) <= used, "each code is the answer to something"
    assert code_of(S3Error("BadDigest", "x")) == "BadDigest"
    assert code_of(NotFound("repository_not_found", "x")) == "NoSuchBucket"
    with pytest.raises(AssertionError):
        S3Error("NoSuchCode", "x")


@randomized("properties of values")
@examples("properties of values")
@given(st.text())
def test_any_text_is_valid_xml(text: str) -> None:
    found = ElementTree.fromstring(document(element("Key", text)))
    kept = "".join("\ufffd" if _is_unwritable(each) else each for each in text)
    assert (found.text or "") == kept


def _is_unwritable(character: str) -> bool:
    """Whether XML 1.0 has no way to express a character (section 2.2)."""
    code = ord(character)
    return not (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or code >= 0x10000
    )


def test_names_lose_their_namespace() -> None:
    body = b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet></Delete>'
    found = parsed(body, "Delete")
    assert found is not None
    assert found.findtext("Quiet") == "true"
    assert parsed(body, "Other") is None


GONE = NotFound("upload_not_found", "gone")
FORM = partial(PatientAnswer, resource="/b/k", request_id="id")


def test_an_answer_that_takes_long() -> None:
    """It begins with blanks. A quick one is like any other."""
    sent: Sent = []
    answered(sent, element("A", "1"), waits=False, form=FORM)
    assert sent[1]["body"].endswith(b"<A>1</A>")
    for error, tag, text in (
        (None, ".", "1"),
        (GONE, "Code", "NoSuchUpload"),
        (ValueError("x"), "Code", "InternalError"),
    ):
        sent.clear()
        answered(sent, element("A", "1"), waits=True, form=FORM, error=error)
        assert sent[0]["status"] == 200
        body = b"".join(each["body"] for each in sent[1:])
        assert ElementTree.fromstring(body).findtext(tag) == text
        assert [each["more_body"] for each in sent[1:]] == [True] * (len(sent) - 2) + [False]

"""What `docs/s3.md` tells users, with a server of the tests in place of the page's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tests.support.server import Key, Server

PAGE: Final = Path(__file__).parents[4] / "docs" / "s3.md"
_URL: Final = "http://127.0.0.1:8000"
_BUCKET: Final = "lake"
_LEFT_OUT: Final = "…"
_SNIPPET: Final = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


class Page:
    """The snippets for one repository, with the server's address, its name and a key."""

    def __init__(self, server: Server, bucket: str, role: str = "writer") -> None:
        self.url = server.url
        self.bucket = bucket
        self.key: Key = server.keys[role]

    def snippet(self, language: str, word: str) -> str:
        """The one snippet of a language that has a word in it.

        A page that no longer has it, or leaves out more than a key, fails the test.
        """
        all_snippets = _SNIPPET.findall(PAGE.read_text())
        found = [text for name, text in all_snippets if name == language and word in text]
        assert len(found) == 1, (language, word, found)
        (text,) = found
        text = text.replace(_URL, self.url)
        text = text.replace(_URL.partition("//")[2], self.url.partition("//")[2])
        text = re.sub(rf"\b{_BUCKET}/", f"{self.bucket}/", text)
        for value in self.key.pair if _LEFT_OUT in text else ():
            text = text.replace(_LEFT_OUT, value, 1)
        assert _LEFT_OUT not in text, text
        return text

    def run(self, word: str, **modules: Any) -> dict[str, Any]:
        """The names that a snippet of Python leaves, after it ran with these modules."""
        names = {"KEY_ID": self.key.access_key_id, "SECRET": self.key.secret, **modules}
        exec(self.snippet("python", word), names)
        return names

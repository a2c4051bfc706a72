"""What tests say often of errors. Not for the reports of runs (`refusals`)."""

from __future__ import annotations

import pytest

from ebbtide.errors import EbbtideError


def raises(
    kind: str, *mentions: str, of: type[EbbtideError] = EbbtideError
) -> pytest.RaisesExc[EbbtideError]:
    """An error of that kind and class, whose message mentions all of these."""
    return pytest.raises(
        of,
        check=lambda error: error.kind == kind and all(each in error.message for each in mentions),
    )

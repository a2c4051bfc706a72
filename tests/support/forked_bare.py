"""The bare application beside which benchmarks measure servers: one to fork, by
`tests.support.forking`.
"""

from __future__ import annotations

from benchmarks import server


def main(*arguments: str) -> None:
    """The benchmark of the server, with these arguments."""
    server.main(list(arguments))

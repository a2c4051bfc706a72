"""The subtraction: inventory less live, protected and young is what may go."""

from __future__ import annotations

from ebbtide.gc.candidates import Relations, Subtracted
from ebbtide.gc.engine import Engine
from ebbtide.gc.lookup import look_up


def subtract(engine: Engine, given: Relations) -> Subtracted:
    """Find the candidates, by the keys of addresses. Where the keys of what stays fit into one
    process, each task looks them up; else both sides are joined on Spark."""
    if engine.holds_keys([*given.live, *given.protected]):
        return look_up(engine, given)

    from ebbtide.gc.join import join

    return join(engine, given)

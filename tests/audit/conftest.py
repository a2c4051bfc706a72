"""The stores of the collector's tests."""

from tests.gc.conftest import planned, template, world

__all__ = ["planned", "template", "world"]

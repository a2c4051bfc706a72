"""A JVM of its own for programs of Java that tests use, and the jars of such a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from tests.support.maven import JARS_OF_SPARK, Unreachable, fetched_jars
from tests.support.requirements import require_or_skip

END_SECONDS_MAX: Final = 60


def required_jars(
    group: str,
    name: str,
    modules: Sequence[str],
    *,
    without: Iterable[str] = (),
    of_spark: Iterable[str],
) -> list[Path]:
    """The jars of modules and of what they need, and those of PySpark with names `of_spark`.

    `name` is that of the folder in which they are kept. If they cannot be fetched, the tests of the
    requirement `group` are skipped.
    """
    try:
        own = fetched_jars(name, modules, without=without)
    except Unreachable as error:
        require_or_skip(group, f"the jars {name} cannot be fetched: {error}")
    return [*own, *(jar for each in of_spark for jar in JARS_OF_SPARK.glob(each))]


@contextmanager
def jvm(jars: Iterable[Path], log: Path, *options: str) -> Iterator[Any]:
    """A JVM with these jars on its path, seen through Py4J. It ends with the block."""
    (bridge,) = JARS_OF_SPARK.glob("py4j-*.jar")
    with log.open("w") as said:
        port, token, process = launch_gateway(
            classpath=":".join(map(str, jars)),
            jarpath=str(bridge),
            javaopts=["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            redirect_stderr=said,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            process.stdin.close()  # the JVM ends with its input
            process.wait(END_SECONDS_MAX)

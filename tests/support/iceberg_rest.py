"""A REST catalog of Iceberg in a JVM of its own: the servlet of Iceberg's reference implementation,
as its `RESTCatalogServer` starts it, with a catalog in SQLite behind it.

It is in the tests' jar of Iceberg's core, which Maven Central has. Its own program listens on all
addresses, so that the servlet is started here, on the loopback address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.java import jvm, required_jars

ICEBERG: Final = "1.11.0"
JETTY: Final = "12.1.1"
MODULES: Final = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG}::tests",
    f"org.eclipse.jetty:jetty-server:{JETTY}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
BROUGHT_BY_SPARK: Final = ("hadoop-client-*.jar", "log4j-*.jar", "py4j-*.jar")


def java(log: Path) -> AbstractContextManager[Any]:
    """A JVM in which servers can be started. It ends with the block."""
    name = f"iceberg-rest-{ICEBERG}-{JETTY}"
    jars = required_jars("iceberg-rest", name, MODULES, of_spark=BROUGHT_BY_SPARK)
    return jvm(jars, log, "-Xmx256m")


@contextmanager
def rest_catalog(jvm: Any, database: Path, warehouse: Path) -> Iterator[str]:
    """The address of a REST catalog with its tables in a directory. It ends with the block."""
    properties = jvm.java.util.HashMap()
    for key, value in {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{database}",
        "warehouse": f"file://{warehouse}",
        "jdbc.schema-version": "V1",
    }.items():
        properties.put(key, value)
    iceberg = jvm.org.apache.iceberg
    backend = iceberg.CatalogUtil.buildIcebergCatalog(
        "backend", properties, jvm.org.apache.hadoop.conf.Configuration()
    )
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(backend))
    jetty = jvm.org.eclipse.jetty
    context = jetty.ee10.servlet.ServletContextHandler()
    context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(context)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.getURI().getPort()}"
    finally:
        server.stop()
        backend.close()

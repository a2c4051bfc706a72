"""The s3a of Hadoop 3.3, which Spark 3 has, with version 1 of AWS's SDK for Java.

It runs in a JVM of its own, without the Hadoop of PySpark. The SDK as one jar has 280 MB. Its
modules that s3a needs have 4 MB, and Hadoop 57 MB.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tests.doors.s3.clients.clients import PART_BYTES
from tests.doors.s3.clients.page import Page
from tests.support.java import jvm, required_jars

HADOOP: Final = "3.3.6"
SDK: Final = "1.12.367"
"""The version that this Hadoop was made with, from its `hadoop-project`."""
MODULES: Final = (
    *(f"org.apache.hadoop:hadoop-{name}:{HADOOP}" for name in ("aws", "client-api")),
    f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
    *(f"com.amazonaws:aws-java-sdk-{name}:{SDK}" for name in ("s3", "sts")),
    "javax.xml.bind:jaxb-api:2.3.1",
)
WITHOUT: Final = ("com.amazonaws:aws-java-sdk-bundle", "org.slf4j")
BROUGHT_BY_SPARK: Final = ("slf4j-api-*.jar", "commons-lang3-*.jar")
OPTIONS: Final = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.fast.upload.buffer": "array",
    "fs.s3a.multipart.size": str(PART_BYTES),
    "fs.s3a.multipart.threshold": str(PART_BYTES),
}


def java(log: Path) -> AbstractContextManager[Any]:
    """A JVM with s3a on its path. It ends with the block."""
    name = f"s3a-{HADOOP}-{SDK}"
    jars = required_jars("s3a", name, MODULES, without=WITHOUT, of_spark=BROUGHT_BY_SPARK)
    return jvm(jars, log)


class Hadoop:
    """Hadoop's interface of files, on one repository."""

    def __init__(self, page: Page, jvm: Any) -> None:
        self.jvm = jvm
        configuration = jvm.org.apache.hadoop.conf.Configuration()
        lines = page.snippet("ini", "fs.s3a").split()
        ours = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
        for name, value in {**OPTIONS, **ours}.items():
            configuration.set(name.removeprefix("spark.hadoop."), value)
        self.root = f"s3a://{page.bucket}/"
        self.fs = self._path("main/").getFileSystem(configuration)

    def _path(self, path: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(self.root + path)

    def write(self, path: str, data: bytes, color: str) -> None:
        making = self.fs.createFile(self._path(path)).overwrite(True).recursive()
        stream = making.opt("fs.s3a.create.header.color", color).build()
        stream.write(data)
        stream.close()

    def read(self, path: str) -> bytes:
        return self.read_range(path, 0, self.fs.getFileStatus(self._path(path)).getLen())

    def read_range(self, path: str, start: int, count: int) -> bytes:
        stream = self.fs.open(self._path(path))
        try:
            stream.seek(start)
            return bytes(stream.readNBytes(count))
        finally:
            stream.close()

    def color(self, path: str) -> str:
        return bytes(self.fs.getXAttr(self._path(path), "header.color")).decode()

    def listed(self, prefix: str) -> list[str]:
        found = self.fs.listStatus(self._path(prefix))
        return [each.getPath().getName() + ("" if each.isFile() else "/") for each in found]

    def copy(self, source: str, target: str) -> None:
        """Hadoop copies on the server only to rename: it reads and writes."""
        util, configuration = self.jvm.org.apache.hadoop.fs.FileUtil, self.fs.getConf()
        assert util.copy(
            self.fs, self._path(source), self.fs, self._path(target), False, configuration
        )

    def rename(self, source: str, target: str) -> bool:
        """Renames a file or directory, which copies it on the server."""
        return bool(self.fs.rename(self._path(source), self._path(target)))

    def delete(self, path: str) -> None:
        assert self.fs.delete(self._path(path), False)

"""Intents: a sweep records each batch before it deletes it, so that an undo finds open batches.

```
<run_id>/intended/<part>/<epoch>-<number>-<attempt>.json    an intent: rows of a part of candidates
<run_id>/deleted/<part>/<epoch>-<number>-<attempt>.parquet  the outcomes of these rows (`outcomes`)
```

A process can be suspended in the middle of a batch (a virtual machine, a container, a laptop). When
it wakes up, it continues with the batch, and the storage does not refuse that. Therefore an undo
must not restore a file that such a batch can still delete.

Both sides write before they read. The sweep writes its intent, and then checks that the repository
is still its own. The undo announces its epoch, and then reads the intents. In every order of these
four steps, the sweep stops before its batch, or the undo sees the intent. This requires a storage
on which later reads see earlier writes, such as a directory or S3.

An intent is settled when its outcomes are recorded, or when its process gives up and deletes the
intent. Not for: carrying out the batch (`outcomes`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.gc.parts import Part, read_part
from ebbtide.gc.runs import RunFolder

INTENDED: Final = "intended"
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Intent:
    """A batch: the rows from `start` to before `stop` of a part of candidates. `process` names the
    process that deletes the batch, for messages."""

    name: str
    part: str
    checksum: str
    start: int
    stop: int
    process: str = ""

    def addresses(self, folder: RunFolder) -> pa.Table:
        """Returns the addresses of the batch (column `address`). Raises Refused `plan_corrupt`."""
        table = read_part(folder, self.part, self.checksum, columns=["address"])
        return table.slice(self.start, self.stop - self.start)


def batches(part: Part, *, stem: str, rows_max: int, epoch: int, attempt: str) -> Iterator[Intent]:
    """Divides a part of candidates into batches of at most `rows_max` rows. `stem` is the name of
    the part's records."""
    assert part.checksum is not None
    process = f"process {os.getpid()} on {platform.node() or 'a nameless host'}"
    for number, start in enumerate(range(0, part.rows, rows_max)):
        name = f"{stem}/{epoch:06d}-{number:04d}-{attempt}"
        stop = min(start + rows_max, part.rows)
        yield Intent(name, part.name, part.checksum, start, stop, process)


@contextmanager
def declared(folder: RunFolder, intent: Intent) -> Iterator[None]:
    """Writes the intent before the block. Deletes it if the block raises: the process has given up
    then, and deletes no more files of the batch."""
    name = f"{INTENDED}/{intent.name}{_SUFFIX}"
    content = {key: value for key, value in asdict(intent).items() if key != "name"}
    folder.put_json(name, content)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        folder.storage.delete([folder.address(name)])
        raise


def unsettled(folder: RunFolder) -> list[Intent]:
    """Returns the intents of a run that are not settled. Raises Refused `plan_corrupt`."""
    prefix = folder.address(f"{INTENDED}/")
    names = [
        address.removeprefix(prefix).removesuffix(_SUFFIX)
        for batch in folder.storage.list(prefix)
        for address in texts(batch.column("address"))
        if address.endswith(_SUFFIX)
    ]
    # Outcomes are listed after intents: a batch that ends in between counts as settled.
    ended = {
        name.removeprefix("deleted/").removesuffix(".parquet") for name in folder.names("deleted")
    }
    found = (_read(folder, name) for name in sorted(names) if name not in ended)
    return [intent for intent in found if intent is not None]


def _read(folder: RunFolder, name: str) -> Intent | None:
    """Reads an intent. Returns None if its process has deleted it. Raises Refused
    `plan_corrupt`."""
    content = folder.get_json(f"{INTENDED}/{name}{_SUFFIX}")
    if content is None:
        return None
    try:
        return Intent(name=name, **content)
    except TypeError as error:
        raise Refused(
            "plan_corrupt", f"{folder.path}/{INTENDED}/{name}{_SUFFIX} is not as it was written"
        ) from error


def told(intents: Iterable[Intent]) -> str:
    """Returns the names of the processes of intents, for messages."""
    return ", ".join(sorted({intent.process for intent in intents}))

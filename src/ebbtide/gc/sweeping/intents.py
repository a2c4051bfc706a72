"""What a sweep is about to take, on record before each batch; and what nobody knows the end of.

```
<run_id>/intended/<part>/<epoch>-<number>-<attempt>.json    some rows of a part of candidates
<run_id>/deleted/<part>/<epoch>-<number>-<attempt>.parquet  what became of them (`outcomes`)
```

A process that is suspended in the middle of a batch (a virtual machine, a container, a laptop)
goes on with it whenever it wakes up, and no storage refuses what it asks for then. So nothing may
be brought back that such a batch can still take. Both sides write before they read: a sweep writes
its intent, and then looks whether the repository is still its own; whoever brings something back
announces that it is not, and then reads the intents. Whatever the order of these four steps, either
the sweep stops before its batch, or its batch is seen. This holds on a storage that shows what was
written to whoever asks later, as directories and S3 do.

An intent is settled by the record of its outcomes, or by its process, which takes it back when it
has given up. Not for: carrying out the batch (`outcomes`).
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
    """A batch: rows `start` to `stop` of a part of candidates of the run in a folder. `process`
    says who has it."""

    name: str
    part: str
    checksum: str
    start: int
    stop: int
    process: str = ""

    def addresses(self, folder: RunFolder) -> pa.Table:
        """What the batch takes (column `address`). Refused `plan_corrupt`."""
        table = read_part(folder, self.part, self.checksum, columns=["address"])
        return table.slice(self.start, self.stop - self.start)


def batches(part: Part, *, stem: str, rows_max: int, epoch: int, attempt: str) -> Iterator[Intent]:
    """A part of candidates, divided; `stem` is what its records are called by."""
    assert part.name is not None and part.checksum is not None
    process = f"process {os.getpid()} on {platform.node() or 'a nameless host'}"
    for number, start in enumerate(range(0, part.rows, rows_max)):
        name = f"{stem}/{epoch:06d}-{number:04d}-{attempt}"
        stop = min(start + rows_max, part.rows)
        yield Intent(name, part.name, part.checksum, start, stop, process)


@contextmanager
def declared(folder: RunFolder, intent: Intent) -> Iterator[None]:
    """Have an intent on record for the block. A block that raises has given up: it will take
    nothing more."""
    name = f"{INTENDED}/{intent.name}{_SUFFIX}"
    content = {key: value for key, value in asdict(intent).items() if key != "name"}
    folder.put_json(name, content)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        folder.storage.delete([folder.address(name)])
        raise


def unsettled(folder: RunFolder) -> list[Intent]:
    """The intents of a run of which nobody knows what came of them. Refused `plan_corrupt`."""
    prefix = folder.address(f"{INTENDED}/")
    names = [
        address.removeprefix(prefix).removesuffix(_SUFFIX)
        for batch in folder.storage.list(prefix)
        for address in texts(batch.column("address"))
        if address.endswith(_SUFFIX)
    ]
    # In this order: what ends in between counts as ended.
    ended = {
        name.removeprefix("deleted/").removesuffix(".parquet") for name in folder.names("deleted")
    }
    found = (_read(folder, name) for name in sorted(names) if name not in ended)
    return [intent for intent in found if intent is not None]


def _read(folder: RunFolder, name: str) -> Intent | None:
    """An intent; None where it was taken back meanwhile."""
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
    """Who has them, for people."""
    return ", ".join(sorted({intent.process for intent in intents}))

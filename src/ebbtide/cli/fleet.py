"""The repositories that `--all` is about, and commands on several of them at the same time.

Each command is a process of its own, with an engine of its own: what stops one stops no other. Not
for: one repository after the other, which `ebbtide.cli.all_repositories` does in this process.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ebbtide.cli.command import Cli, command_line
from ebbtide.errors import ExitCode, InvalidInput
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.text import count_text, shown

if TYPE_CHECKING:
    from ebbtide.store.repositories.catalog import Catalogued

STORE: Final = "*"
"""The line of a file that stands for all repositories of the store."""
BYTES_MAX: Final = 1024 * 1024
OWN_OPTIONS: Final = ("--all", "--repositories", "--parallel", "--digest", "--json", "--yes")
"""The options that are for the command as a whole."""
ERROR_CHARACTERS_MAX: Final = 500

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Member:
    """A repository that the command is about. `opened_by` is the name that opens it: of a gone one
    its id, since its name can be another one's by now. `repository_id` is None elsewhere."""

    name: str
    opened_by: str
    repository_id: str | None = None


def members(cli: Cli, file: Path | None) -> list[Member]:
    """Returns the repositories of the store, those that are gone at the end; or those that a file
    names, in its order.

    A line of the file is a name, or STORE. `#` begins a comment. Raises InvalidInput
    `invalid_argument` for a file that is too large, names none, or names what is not there; and
    OSError for a file that cannot be read.
    """
    if file is None:
        return _of_store(cli)
    names = _names_in(file)
    known: dict[str, Member] = {}
    if not all(map(is_elsewhere, names)):
        known = {each.name: each for each in reversed(_of_store(cli))}
    unknown = [each for each in names if not is_elsewhere(each) and each not in {STORE, *known}]
    if unknown:
        listed = ", ".join(map(shown, unknown))
        raise InvalidInput(
            "invalid_argument",
            f"{file} names {count_text(len(unknown), 'repository', 'repositories')} that the store "
            f"does not have: {listed}. Those elsewhere begin as in icechunk:PATH",
        )
    found: dict[str, Member] = {}
    for name in names:
        chosen = _of_store(cli) if name == STORE else [known.get(name) or Member(name, name)]
        found |= {each.opened_by: each for each in chosen}
    return list(found.values())


def _of_store(cli: Cli) -> list[Member]:
    # Those in the trash can be restored: 'gc run' does not know them either.
    catalog = cli.store.catalog
    return [_member(each) for each in [*catalog.list(), *catalog.gone()]]


def _member(found: Catalogued) -> Member:
    info = found.info
    opened_by = info.repository_id if found.state is LifecycleState.GONE else info.name
    return Member(info.name, opened_by, info.repository_id)


def _names_in(file: Path) -> list[str]:
    if file.stat().st_size > BYTES_MAX:
        raise InvalidInput("invalid_argument", f"{file} is no list of names: it is too large")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InvalidInput("invalid_argument", f"{file} is not UTF-8 text") from None
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    if not names:
        raise InvalidInput(
            "invalid_argument",
            f"{file} names no repository: write one name a line, such as lake, delta:/data/sales "
            f"or {STORE} for all of the store",
        )
    return names


def at_once(
    items: Sequence[Item],
    amount: int,
    work: Callable[[Item], Result],
    stop: Callable[[], None],
) -> Iterator[tuple[Item, Result]]:
    """Does work with several items at the same time, in threads. Yields each with its result, as
    they end. If the caller is interrupted, calls `stop`, and waits for the work that has begun."""
    with ThreadPoolExecutor(max_workers=amount) as pool:
        begun = {pool.submit(work, each): each for each in items}
        try:
            for done in as_completed(begun):
                yield begun[done], done.result()
        except BaseException:
            stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a command: its document (None without one), its exit code, and its last words."""

    document: dict[str, Any] | None
    exit_code: int
    said: str


class Commands:
    """Runs commands of this program in processes, and can interrupt all of them."""

    def __init__(self, cli: Cli) -> None:
        self._context = cli.context
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._interrupted = False

    def answer(self, words: Sequence[str], arguments: Sequence[str]) -> Answer:
        """Runs a command with the options of the present one, without a question. Returns its
        answer."""
        line = command_line(self._context, words, arguments, without=OWN_OPTIONS)
        # A process group of its own: Ctrl-C reaches it once, by `interrupt`.
        with self._lock:
            if self._interrupted:
                return Answer(None, 128 + signal.SIGINT, "not begun: interrupted")
            process = subprocess.Popen(
                [sys.executable, "-m", "ebbtide", *shlex.split(line)[1:], "--yes", "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=os.environ | {"PYTHONUNBUFFERED": ""},
                process_group=0,
            )
            self._running.add(process)
        try:
            out, err = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        said = (err.strip().splitlines() or ["it said nothing"])[-1][:ERROR_CHARACTERS_MAX]
        try:
            document = json.loads(out)
        except ValueError:
            document = None
        return Answer(document if isinstance(document, dict) else None, process.returncode, said)

    def interrupt(self) -> None:
        """Interrupts the commands that run, as Ctrl-C would, and begins no other."""
        with self._lock:
            self._interrupted = True
            for each in self._running:
                each.send_signal(signal.SIGINT)


def code_of(answer: Answer) -> ExitCode:
    """Returns the exit code of a command; FAILED for one that no command ends with."""
    try:
        return ExitCode(answer.exit_code)
    except ValueError:
        return ExitCode.FAILED

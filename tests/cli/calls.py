"""A normal call of every command, in `tests.support.small_world`; a test fails where a command has
none.

What stands in braces is a name of that world.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ebbtide.program.reference import commands

COMMANDS: Final = {path for path, node in commands() if not hasattr(node, "commands")}
REPOSITORIES: Final = {"lake", "planned", "swept", "gone"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `done` are the kinds of error by which the same call may be answered once it was
    carried out; `adds` is what it adds to each time, or gets done another time. One that `reads`
    changes nothing that anybody asked for."""

    words: str
    done: frozenset[str] = frozenset()
    adds: frozenset[str] = frozenset()
    reads: bool = False

    def arguments(self, names: Mapping[str, str]) -> list[str]:
        return [word.format_map(names) for word in shlex.split(self.words)]

    @property
    def command(self) -> str:
        return next(each for each in COMMANDS if f"ebbtide {self.words} ".startswith(f"{each} "))

    @property
    def in_repository(self) -> str | None:
        return next((word for word in self.words.split() if word in REPOSITORIES), None)

    def __str__(self) -> str:
        return self.words


def _changes(words: str, *done: str, adds: str = "") -> Call:
    return Call(words, frozenset(done), frozenset(adds.split()))


def _reads(words: str) -> Call:
    return Call(words, reads=True)


CALLS: Final = (
    _changes("gc plan lake --grace 1s --unsafe", adds="gc_runs"),
    _changes("gc plan {ice} --grace 1s --unsafe"),
    _changes("gc sweep planned {plan} --grace 1s --unsafe --quarantine none --yes", "plan_used"),
    _changes(
        "gc sweep planned --grace 1s --unsafe --quarantine 1d --yes", "plan_used", "run_not_found"
    ),
    _changes("gc run lake --grace 1s --unsafe --quarantine none --yes", adds="gc_runs"),
    _changes("gc run lake --mode clean --quarantine 1d --grace 1s --unsafe --yes", adds="gc_runs"),
    _changes("gc run gone --grace 1s --unsafe --yes", "repository_not_found"),
    _changes("gc run {ice} --quiet-repository --grace 1s --unsafe --quarantine none --yes"),
    _changes("gc give-up lake {first} --reason lost --yes"),
    _reads("gc runs swept"),
    _reads("gc runs {ice}"),
    _reads("gc show swept {run}"),
    _reads("gc show planned {plan} --candidates"),
    _changes("gc undo swept {run}", "not_quarantined", "plan_used"),
    _changes("gc undo swept {run} --under data/", "not_quarantined"),
    _changes("gc purge swept {run} --yes", "not_quarantined"),
    _reads("gc verify planned {plan}"),
    _reads("gc verify swept {run}"),
    _changes("gc archive out/archive.tar.gz"),
    _changes("schedule set lake '0 3 29 2 *' --timezone Europe/Berlin --jitter 1h"),
    _changes("schedule set {ice} '0 3 29 2 *' --quarantine none"),
    _reads("schedule show planned"),
    _reads("schedule list"),
    _changes("schedule delete planned", "schedule_not_found"),
    _changes("schedule enable planned"),
    _changes("schedule disable planned"),
    _reads("explain lake main a"),
    _reads("explain lake {first}"),
    _reads("explain lake {first_address}"),
    _reads("explain swept main~1"),
    _reads("what-if lake --policy policy.json"),
    _reads("what-if lake --curve"),
    _reads("usage lake"),
    _changes("expire {ice} --older-than 1s --unsafe --keep-last 1 --yes"),
    _reads("expire {ice} --older-than 1s --unsafe --dry-run --files"),
    _changes("reclaim --once", adds="data"),
    _changes(
        "purge run lake --reason now --path dirty:staged --yes-i-mean lake",
        "object_not_found",
        "purge_ended",
        "purged",
        adds="purges",
    ),
    _changes(
        "purge run swept --reason whole --repository --yes-i-mean swept",
        "purge_ended",
        "repository_not_found",
        adds="purges",
    ),
    _changes("purge run lake --reason look --path dev:e --dry-run", adds="purges"),
    _changes("purge resume {purge} --yes-i-mean lake", "purge_ended"),
    _reads("purge list lake"),
    _reads("purge show {done} --objects"),
    _reads("purge verify {done}"),
    _reads("purge key"),
    _changes("branch create lake new --expires-in 3d", "branch_exists"),
    _reads("branch list lake --include-expired"),
    _changes("branch expire lake dev --in 3d"),
    _changes("branch delete lake dev --yes", "branch_not_found", "trashed"),
    _changes("branch restore lake branch-bin", "branch_exists", "trashed"),
    _changes("branch protect lake 'ma*'"),
    _changes("branch unprotect lake 'kept-*'", "protection_not_found"),
    _reads("branch protected lake"),
    _changes("tag create lake new main", "tag_exists"),
    _reads("tag list lake --include-expired"),
    _changes("tag expire lake v1 --in 3d"),
    _changes("tag delete lake v1 --yes", "tag_not_found", "trashed"),
    _changes("tag restore lake tag-bin", "tag_exists", "trashed"),
    _changes("hold add lake main --reason why"),
    _reads("hold list lake"),
    _changes("hold remove lake main~1", "hold_not_found"),
    _changes("commit lake dirty -m message", "nothing_to_commit"),
    _changes("import lake main tree/ in -m imported", adds="commits imports"),
    _changes("import lake main source one -m imported", adds="commits imports"),
    _changes("merge lake dev main -m message", "nothing_to_merge"),
    _changes("revert lake {head} main", "nothing_to_commit"),
    _changes("cherry-pick lake dev main", "nothing_to_commit"),
    _changes("reset lake dirty --yes"),
    _changes("reset lake dirty --path staged --yes"),
    _changes("reset lake dirty --to {first} --force --yes"),
    _reads("log lake main"),
    _reads("log swept main"),
    _reads("diff lake main~1 main"),
    _reads("diff lake dirty"),
    _changes("retention set lake --default 7d --branch dev=keep"),
    _changes("retention set lake policy.json"),
    _changes("retention set lake --file policy.json"),
    _changes("retention default lake 7d"),
    _changes("retention branch lake dev keep_last:2"),
    _changes("retention unset lake", "policy_not_found"),
    _reads("retention show lake --commits"),
    _changes("fs put lake dirty source new"),
    _changes("fs put -r lake dirty tree new"),
    _changes("fs get lake main a out/a"),
    _reads("fs get lake dirty staged"),
    _reads("fs cat lake main a"),
    _reads("fs ls lake dirty -r"),
    _reads("fs stat lake main a"),
    _changes("fs rm lake dirty a", "object_not_found"),
    _changes("fs rm -r lake dirty s", "object_not_found"),
    _changes("fs cp lake dirty a copy"),
    _changes("fs cp lake dirty e e --from dev"),
    _changes("fs mv lake dirty a moved", "object_not_found"),
    _changes("fs address lake dirty new", adds="upload_tokens"),
    # What was uploaded stays for the reclaimer where the answer to the COMMIT is lost.
    _changes("fs link lake dirty linked {token}", "token_used", adds="data"),
    _changes("fs stage lake dirty s3://bucket/key away --size 3"),
    _changes("init {work}/fresh", "store_exists"),
    _changes("init {store} --upgrade"),
    _reads("promises"),
    _changes("promises --trash-time 1d --upload-ttl 2h --yes"),
    _changes("repo create fresh --expires-in 3d", "repository_exists"),
    _changes("repo create fresh --storage-url out/root", "repository_exists", "root_not_empty"),
    _reads("repo list --include-expired"),
    _reads("repo list --gone"),
    _changes("repo expire lake --in 3d"),
    _changes("repo delete lake --yes", "repository_not_found", "trashed"),
    _changes("repo restore binned", "repository_exists", "trashed"),
    _reads("repo show lake"),
    _changes("repo adopt lake --yes"),
    _changes("project create lake p/new", "project_exists"),
    _reads("project list lake p --include-expired"),
    _reads("project show lake p/q"),
    _changes("project update lake p/q --description new --property a=b"),
    _changes("project move lake p/q", "project_not_found"),
    _changes("project delete lake p/q --yes", "project_not_found", "trashed"),
    _changes("project restore lake {binned_project}", "project_exists", "trashed"),
    _changes("collection create lake p/new tree", "collection_exists"),
    _changes("collection create lake p/new --from-collection p/c", "collection_exists"),
    _changes("collection create lake p/new --locators locators.json", "collection_exists"),
    _reads("collection list lake p --include-expired"),
    _reads("collection show lake p/c"),
    _reads("collection find-hash lake {hash}"),
    _changes("collection update lake p/c --description new"),
    _reads("collection versions lake p/c"),
    _changes("collection drop-version lake p/c 1 --yes", "version_not_found"),
    _changes("collection delete lake p/d --yes", "collection_not_found", "trashed"),
    _changes("collection restore lake {binned_collection}", "collection_exists", "trashed"),
    _reads("collection files lake p/c -r"),
    _changes("collection get lake p/c --to out/all"),
    _reads("collection get lake p/c source"),
    _changes("collection put lake p/c other"),
    _changes("collection put lake p/c --from-ref main --replace"),
    _changes("collection rm lake p/c source", "object_not_found"),
    _reads("collection locators lake p/d"),
    _reads("collection diff lake p/c p/d"),
    _changes("key create --name new", adds="access_keys"),
    _reads("key list"),
    _changes("key revoke {key} --yes"),
    _changes("key grant {key} lake=writer"),
    _changes("key revoke-grant {key} lake"),
    _changes("key rotate-signing", adds="signing_keys"),
    _changes("key rotate-signing --at-once --yes", adds="signing_keys"),
    _reads("serve --port 0"),
)

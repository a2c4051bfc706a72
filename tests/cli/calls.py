"""A normal call of every command, in `tests.support.small_world`; a test fails where a command has
none.

What stands in braces is a name of that world.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `done` are the kinds of error by which the same call may be answered once it was
    carried out; `adds` is what it adds to each time, or gets done another time. One that `reads`
    changes nothing that anybody asked for. `in_repository` is the one that it works on."""

    words: str
    done: frozenset[str] = frozenset()
    adds: frozenset[str] = frozenset()
    reads: bool = False
    in_repository: str | None = "lake"

    def arguments(self, names: Mapping[str, str]) -> list[str]:
        return [word.format_map(names) for word in shlex.split(self.words)]

    def __str__(self) -> str:
        return self.words


def _changes(words: str, *done: str, adds: str = "", in_repository: str | None = "lake") -> Call:
    return Call(words, frozenset(done), frozenset(adds.split()), in_repository=in_repository)


def _reads(words: str, *, in_repository: str | None = "lake") -> Call:
    return Call(words, reads=True, in_repository=in_repository)


_SHORT: Final = "--grace 1s --unsafe"

_COLLECTING: Final = {
    "gc plan": (
        _changes(f"gc plan lake {_SHORT}", adds="gc_runs"),
        _changes(f"gc plan {{ice}} {_SHORT}", in_repository=None),
    ),
    "gc sweep": (
        _changes(
            f"gc sweep planned {{plan}} {_SHORT} --quarantine none --yes",
            "plan_used",
            in_repository="planned",
        ),
        _changes(
            f"gc sweep planned {_SHORT} --quarantine 1d --yes",
            "plan_used",
            "run_not_found",
            in_repository="planned",
        ),
    ),
    "gc run": (
        _changes(f"gc run lake {_SHORT} --quarantine none --yes", adds="gc_runs"),
        _changes(f"gc run lake --mode clean --quarantine 1d {_SHORT} --yes", adds="gc_runs"),
        _changes(f"gc run gone {_SHORT} --yes", "repository_not_found", in_repository="gone"),
        _changes(
            f"gc run {{ice}} --quiet-repository {_SHORT} --quarantine none --yes",
            in_repository=None,
        ),
    ),
    "gc give-up": (_changes("gc give-up lake {first} --reason lost --yes"),),
    "gc runs": (
        _reads("gc runs swept", in_repository="swept"),
        _reads("gc runs {ice}", in_repository=None),
    ),
    "gc show": (
        _reads("gc show swept {run}", in_repository="swept"),
        _reads("gc show planned {plan} --candidates", in_repository="planned"),
    ),
    "gc undo": (
        _changes("gc undo swept {run}", "not_quarantined", "plan_used", in_repository="swept"),
        _changes("gc undo swept {run} --under data/", "not_quarantined", in_repository="swept"),
    ),
    "gc purge": (_changes("gc purge swept {run} --yes", "not_quarantined", in_repository="swept"),),
    "gc verify": (
        _reads("gc verify planned {plan}", in_repository="planned"),
        _reads("gc verify swept {run}", in_repository="swept"),
    ),
    "gc archive": (_changes("gc archive out/archive.tar.gz", in_repository=None),),
    "schedule set": (
        _changes("schedule set lake '0 3 29 2 *' --timezone Europe/Berlin --jitter 1h"),
        _changes("schedule set {ice} '0 3 29 2 *' --quarantine none", in_repository=None),
    ),
    "schedule show": (_reads("schedule show planned", in_repository="planned"),),
    "schedule list": (_reads("schedule list", in_repository=None),),
    "schedule delete": (
        _changes("schedule delete planned", "schedule_not_found", in_repository="planned"),
    ),
    "schedule enable": (_changes("schedule enable planned", in_repository="planned"),),
    "schedule disable": (_changes("schedule disable planned", in_repository="planned"),),
    "explain": (
        _reads("explain lake main a"),
        _reads("explain lake {first}"),
        _reads("explain lake {first_address}"),
        _reads("explain swept main~1", in_repository="swept"),
    ),
    "what-if": (_reads("what-if lake --policy policy.json"),),
    "expire": (
        _changes("expire {ice} --older-than 1s --unsafe --keep-last 1 --yes", in_repository=None),
        _reads("expire {ice} --older-than 1s --unsafe --dry-run --files", in_repository=None),
    ),
    "reclaim": (_changes("reclaim --once", adds="data", in_repository=None),),
    "purge run": (
        _changes(
            "purge run lake --reason now --path dirty:staged --yes-i-mean lake",
            "object_not_found",
            "purged",
            "purge_ended",
            adds="purges",
        ),
        _changes(
            "purge run swept --reason whole --repository --yes-i-mean swept",
            "repository_not_found",
            "purge_ended",
            adds="purges",
            in_repository="swept",
        ),
        _changes("purge run lake --reason look --path dev:e --dry-run", adds="purges"),
    ),
    "purge resume": (
        _changes("purge resume {purge} --yes-i-mean lake", "purge_ended", in_repository=None),
    ),
    "purge list": (_reads("purge list lake", in_repository=None),),
    "purge show": (_reads("purge show {done} --objects", in_repository=None),),
    "purge verify": (_reads("purge verify {done}", in_repository=None),),
    "purge key": (_reads("purge key", in_repository=None),),
}

_REFS: Final = {
    "branch create": (_changes("branch create lake new --expires-in 3d", "branch_exists"),),
    "branch list": (_reads("branch list lake --include-expired"),),
    "branch expire": (_changes("branch expire lake dev --in 3d"),),
    "branch delete": (_changes("branch delete lake dev --yes", "branch_not_found", "trashed"),),
    "branch restore": (_changes("branch restore lake branch-bin", "trashed", "branch_exists"),),
    "branch protect": (_changes("branch protect lake 'ma*'"),),
    "branch unprotect": (_changes("branch unprotect lake 'kept-*'", "protection_not_found"),),
    "branch protected": (_reads("branch protected lake"),),
    "tag create": (_changes("tag create lake new main", "tag_exists"),),
    "tag list": (_reads("tag list lake --include-expired"),),
    "tag expire": (_changes("tag expire lake v1 --in 3d"),),
    "tag delete": (_changes("tag delete lake v1 --yes", "tag_not_found", "trashed"),),
    "tag restore": (_changes("tag restore lake tag-bin", "trashed", "tag_exists"),),
    "hold add": (_changes("hold add lake main --reason why"),),
    "hold list": (_reads("hold list lake"),),
    "hold remove": (_changes("hold remove lake main~1", "hold_not_found"),),
    "commit": (_changes("commit lake dirty -m message", "nothing_to_commit"),),
    "import": (
        _changes("import lake main tree/ in -m imported", adds="imports commits"),
        _changes("import lake main source one -m imported", adds="imports commits"),
    ),
    "merge": (_changes("merge lake dev main -m message", "nothing_to_merge"),),
    "revert": (_changes("revert lake {head} main", "nothing_to_commit"),),
    "reset": (
        _changes("reset lake dirty --yes"),
        _changes("reset lake dirty --path staged --yes"),
        _changes("reset lake dirty --to {first} --force --yes"),
    ),
    "log": (_reads("log lake main"), _reads("log swept main", in_repository="swept")),
    "diff": (_reads("diff lake main~1 main"), _reads("diff lake dirty")),
    "retention set": (
        _changes("retention set lake --default 7d --branch dev=keep"),
        _changes("retention set lake --file policy.json"),
    ),
    "retention default": (_changes("retention default lake 7d"),),
    "retention branch": (_changes("retention branch lake dev keep_last:2"),),
    "retention unset": (_changes("retention unset lake", "policy_not_found"),),
    "retention show": (_reads("retention show lake --commits"),),
    "fs put": (
        _changes("fs put lake dirty source new"),
        _changes("fs put -r lake dirty tree new"),
    ),
    "fs get": (_changes("fs get lake main a out/a"), _reads("fs get lake dirty staged")),
    "fs cat": (_reads("fs cat lake main a"),),
    "fs ls": (_reads("fs ls lake dirty -r"),),
    "fs stat": (_reads("fs stat lake main a"),),
    "fs rm": (
        _changes("fs rm lake dirty a", "object_not_found"),
        _changes("fs rm -r lake dirty s", "object_not_found"),
    ),
    "fs cp": (_changes("fs cp lake dirty a copy"), _changes("fs cp lake dirty e e --from dev")),
    "fs mv": (_changes("fs mv lake dirty a moved", "object_not_found"),),
    "fs address": (_changes("fs address lake dirty new", adds="upload_tokens"),),
    # What was uploaded stays for the reclaimer where the answer to the COMMIT is lost.
    "fs link": (_changes("fs link lake dirty linked {token}", "token_used", adds="data"),),
    "fs stage": (_changes("fs stage lake dirty s3://bucket/key away --size 3"),),
}

_PLACES: Final = {
    "init": (
        _changes("init {work}/fresh", "store_exists", in_repository=None),
        _changes("init {store} --upgrade", in_repository=None),
    ),
    "promises": (
        _reads("promises", in_repository=None),
        _changes("promises --trash-time 1d --upload-ttl 2h --yes", in_repository=None),
    ),
    "repo create": (
        _changes("repo create fresh --expires-in 3d", "repository_exists", in_repository=None),
        _changes(
            "repo create fresh --storage-url out/root",
            "repository_exists",
            "root_not_empty",
            in_repository=None,
        ),
    ),
    "repo list": (
        _reads("repo list --include-expired", in_repository=None),
        _reads("repo list --gone", in_repository=None),
    ),
    "repo expire": (_changes("repo expire lake --in 3d"),),
    "repo delete": (_changes("repo delete lake --yes", "repository_not_found", "trashed"),),
    "repo restore": (
        _changes("repo restore binned", "trashed", "repository_exists", in_repository=None),
    ),
    "repo show": (_reads("repo show lake"),),
    "repo adopt": (_changes("repo adopt lake --yes"),),
    "project create": (_changes("project create lake p/new", "project_exists"),),
    "project list": (_reads("project list lake p --include-expired"),),
    "project show": (_reads("project show lake p/q"),),
    "project update": (_changes("project update lake p/q --description new --property a=b"),),
    "project move": (_changes("project move lake p/q", "project_not_found"),),
    "project delete": (_changes("project delete lake p/q --yes", "project_not_found", "trashed"),),
    "project restore": (
        _changes("project restore lake {binned_project}", "trashed", "project_exists"),
    ),
    "collection create": (
        _changes("collection create lake p/new tree", "collection_exists"),
        _changes("collection create lake p/new --from-collection p/c", "collection_exists"),
        _changes("collection create lake p/new --locators locators.json", "collection_exists"),
    ),
    "collection list": (_reads("collection list lake p --include-expired"),),
    "collection show": (_reads("collection show lake p/c"),),
    "collection find-hash": (_reads("collection find-hash lake {hash}"),),
    "collection update": (_changes("collection update lake p/c --description new"),),
    "collection versions": (_reads("collection versions lake p/c"),),
    "collection drop-version": (
        _changes("collection drop-version lake p/c 1 --yes", "version_not_found"),
    ),
    "collection delete": (
        _changes("collection delete lake p/d --yes", "collection_not_found", "trashed"),
    ),
    "collection restore": (
        _changes("collection restore lake {binned_collection}", "trashed", "collection_exists"),
    ),
    "collection files": (_reads("collection files lake p/c -r"),),
    "collection get": (
        _changes("collection get lake p/c --to out/all"),
        _reads("collection get lake p/c source"),
    ),
    "collection put": (
        _changes("collection put lake p/c other"),
        _changes("collection put lake p/c --from-ref main --replace"),
    ),
    "collection rm": (_changes("collection rm lake p/c source", "object_not_found"),),
    "collection locators": (_reads("collection locators lake p/d"),),
    "collection diff": (_reads("collection diff lake p/c p/d"),),
    "key create": (_changes("key create --name new", adds="access_keys", in_repository=None),),
    "key list": (_reads("key list", in_repository=None),),
    "key revoke": (_changes("key revoke {key} --yes", in_repository=None),),
    "key grant": (_changes("key grant {key} lake=writer", in_repository=None),),
    "key revoke-grant": (_changes("key revoke-grant {key} lake", in_repository=None),),
    "key rotate-signing": (
        _changes("key rotate-signing", adds="signing_keys", in_repository=None),
        _changes("key rotate-signing --at-once --yes", adds="signing_keys", in_repository=None),
    ),
    "serve": (_reads("serve --port 0", in_repository=None),),
}

CALLS: Final[Mapping[str, tuple[Call, ...]]] = _COLLECTING | _REFS | _PLACES
"""By what is typed for a command."""

"""Examples for the help of each command. A test runs them, or parses those that need more than a
store. Not for: what a command does, which its own docstring says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_REFS: Final = {
    "commit": (
        "ebbtide commit lake work -m 'add the report of May'",
        "ebbtide commit lake work -m 'old data' --date 2020-05-01 --meta ticket=4711",
    ),
    "merge": ("ebbtide merge lake work main -m 'report of May'",),
    "revert": ("ebbtide revert lake main~1 main",),
    "cherry-pick": ("ebbtide cherry-pick lake work main",),
    "reset": (
        "ebbtide reset lake work --prefix reports/",
        "ebbtide reset lake work --to main~1 --force",
    ),
    "import": ("ebbtide import lake main s3://bucket/raw/ raw -m 'import raw data'",),
    "log": (
        "ebbtide log lake",
        "ebbtide log lake main~1 --limit 10",
    ),
    "diff": ("ebbtide diff lake main work", "ebbtide diff lake work"),
    "schedule set": (
        "ebbtide schedule set lake '0 3 * * *'",
        "ebbtide schedule set lake '30 2 * * sun' --timezone Europe/Berlin --jitter 30min",
    ),
    "schedule show": ("ebbtide schedule show lake",),
    "schedule list": ("ebbtide schedule list",),
    "schedule delete": ("ebbtide schedule delete lake",),
    "schedule enable": ("ebbtide schedule enable lake",),
    "schedule disable": ("ebbtide schedule disable lake",),
    "explain": (
        "ebbtide explain lake main reports/april.csv",
        "ebbtide explain lake main~1",
    ),
    "branch create": ("ebbtide branch create lake fix --source v1.0 --expires-in 3d",),
    "branch list": ("ebbtide branch list lake --include-expired",),
    "branch expire": (
        "ebbtide branch expire lake work --in 7d",
        "ebbtide branch expire lake work --never",
    ),
    "branch delete": ("ebbtide branch delete lake work",),
    "branch restore": ("ebbtide branch restore lake old-work",),
    "branch protect": ("ebbtide branch protect lake 'release/*'",),
    "branch unprotect": ("ebbtide branch unprotect lake 'stable/*'",),
    "branch protected": ("ebbtide branch protected lake",),
    "tag create": ("ebbtide tag create lake v1.1 main",),
    "tag list": ("ebbtide tag list lake",),
    "tag expire": ("ebbtide tag expire lake v1.0 --at 2040-01-01",),
    "tag delete": ("ebbtide tag delete lake v1.0",),
    "tag restore": ("ebbtide tag restore lake v0.9",),
    "hold add": ("ebbtide hold add lake v1.0 --reason 'audit 2026'",),
    "hold list": ("ebbtide hold list lake",),
    "hold remove": ("ebbtide hold remove lake main~1",),
}
_POLICIES: Final = {
    "retention set": (
        "ebbtide retention set lake --default 30d --branch main=keep",
        "ebbtide retention set lake keep_within:30d,keep_monthly:12",
    ),
    "retention default": ("ebbtide retention default lake 30d",),
    "retention branch": (
        "ebbtide retention branch lake 'user-*' 14d",
        "ebbtide retention branch lake 'user-*' --unset",
    ),
    "retention unset": ("ebbtide retention unset lake",),
    "retention show": ("ebbtide retention show lake --commits",),
    "what-if": (
        "ebbtide what-if lake 30d keep_last:3",
        "ebbtide what-if lake --curve",
    ),
    "usage": ("ebbtide usage lake", "ebbtide usage lake --top 5"),
    "expire": (
        "ebbtide expire icechunk:s3://bucket/weather --older-than 30d --keep-daily 7 --dry-run",
    ),
}
_FILES: Final = {
    "fs put": (
        "ebbtide fs put lake work may.csv reports/may.csv",
        "ebbtide fs put -r lake work data raw/data --skip-bad-names",
    ),
    "fs get": (
        "ebbtide fs get lake main reports/april.csv april.csv",
        "ebbtide fs get -r lake v1.0 reports old-reports",
    ),
    "fs cat": ("ebbtide fs cat lake v1.0 reports/april.csv",),
    "fs ls": ("ebbtide fs ls lake main reports/", "ebbtide fs ls -r lake main~1"),
    "fs stat": ("ebbtide fs stat lake main reports/april.csv",),
    "fs rm": ("ebbtide fs rm lake work reports/april.csv", "ebbtide fs rm -r lake work reports/"),
    "fs cp": (
        "ebbtide fs cp lake work reports/april.csv reports/copy.csv",
        "ebbtide fs cp lake work reports/april.csv reports/old.csv --from v1.0",
    ),
    "fs mv": ("ebbtide fs mv lake work reports/april.csv archive/april.csv",),
    "fs address": ("ebbtide fs address lake work raw/large.bin",),
    "fs link": ("ebbtide fs link lake work raw/large.bin TOKEN --size 1048576",),
    "fs stage": ("ebbtide fs stage lake work s3://bucket/raw/a.bin raw/a.bin --size 1048576",),
}
_COLLECTIONS: Final = {
    "project create": ("ebbtide project create lake study/2026 --description 'this year'",),
    "project list": ("ebbtide project list lake study",),
    "project show": ("ebbtide project show lake study",),
    "project update": ("ebbtide project update lake study --property owner=ada",),
    "project move": ("ebbtide project move lake study/pilot",),
    "project delete": ("ebbtide project delete lake study/pilot",),
    "project restore": ("ebbtide project restore lake study/dropped",),
    "collection create": (
        "ebbtide collection create lake study/sample data --expires-in 90d",
        "ebbtide collection create lake study/results --from-ref main --prefix reports/",
    ),
    "collection list": ("ebbtide collection list lake study",),
    "collection show": ("ebbtide collection show lake study/reads",),
    "collection find-hash": (
        "ebbtide collection find-hash lake "
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855+0",
    ),
    "collection update": ("ebbtide collection update lake study/reads --expires-in 90d",),
    "collection versions": ("ebbtide collection versions lake study/reads",),
    "collection drop-version": ("ebbtide collection drop-version lake study/reads 1 --yes",),
    "collection delete": ("ebbtide collection delete lake study/reads",),
    "collection restore": ("ebbtide collection restore lake study/dropped-reads",),
    "collection files": ("ebbtide collection files -r lake study/reads",),
    "collection get": (
        "ebbtide collection get lake study/reads --to reads",
        "ebbtide collection get lake study/reads may.csv --to may.csv",
    ),
    "collection put": ("ebbtide collection put lake study/reads data --keep-version",),
    "collection rm": ("ebbtide collection rm lake study/reads may.csv",),
    "collection locators": ("ebbtide collection locators lake study/reads",),
    "collection diff": ("ebbtide collection diff lake study/reads study/calls",),
}
_COLLECTING: Final = {
    "gc plan": ("ebbtide gc plan lake --engine duckdb", "ebbtide gc plan --all --json"),
    "gc archive": ("ebbtide gc archive ebbtide.tar.gz",),
    "gc sweep": (
        "ebbtide gc sweep lake latest",
        "ebbtide gc sweep lake --quarantine none --yes",
    ),
    "gc run": (
        "ebbtide gc run lake --engine duckdb --yes",
        "ebbtide gc run lake --quarantine 14d --yes --json",
        "ebbtide gc run --all --yes",
    ),
    "gc give-up": ("ebbtide gc give-up lake main~1 --reason 'disk failed, no backup' --yes",),
    "gc runs": ("ebbtide gc runs lake",),
    "gc show": ("ebbtide gc show lake --candidates",),
    "gc undo": ("ebbtide gc undo lake latest",),
    "gc purge": ("ebbtide gc purge lake latest --yes",),
    "gc verify": ("ebbtide gc verify lake",),
    "reclaim": ("ebbtide reclaim --once",),
    "purge run": (
        "ebbtide purge run lake --reason 'request 4711' --path work:reports/june.csv --dry-run",
    ),
    "purge resume": ("ebbtide purge resume 7f0c5a1e93b24d68a1c2e3f405162738 --yes-i-mean lake",),
    "purge list": ("ebbtide purge list lake",),
    "purge show": ("ebbtide purge show 7f0c5a1e93b24d68a1c2e3f405162738 --objects",),
    "purge verify": ("ebbtide purge verify 7f0c5a1e93b24d68a1c2e3f405162738",),
    "purge key": ("ebbtide purge key",),
}
_STORES: Final = {
    "init": ("ebbtide init my-store", "ebbtide init my-store --upgrade"),
    "promises": ("ebbtide promises", "ebbtide promises --trash-time 14d --yes"),
    "serve": ("ebbtide serve --host 127.0.0.1 --port 8000",),
    "repo create": (
        "ebbtide repo create sandbox --expires-in 30d",
        "ebbtide repo create archive --storage-url s3://bucket/archive",
    ),
    "repo list": ("ebbtide repo list --include-expired",),
    "repo expire": ("ebbtide repo expire lake --in 90d",),
    "repo delete": ("ebbtide repo delete lake",),
    "repo restore": ("ebbtide repo restore old-lake",),
    "repo show": ("ebbtide repo show lake",),
    "repo adopt": ("ebbtide repo adopt lake --yes",),
    "key create": (
        "ebbtide key create --role writer --name pipeline",
        "ebbtide key create --role none --repository lake=writer --name pipeline",
    ),
    "key list": ("ebbtide key list",),
    "key revoke": ("ebbtide key revoke EBBTEXAMPLEKEYID --yes",),
    "key grant": ("ebbtide key grant EBBTEXAMPLEKEYID lake=admin",),
    "key revoke-grant": ("ebbtide key revoke-grant EBBTEXAMPLEKEYID lake",),
    "key rotate-signing": ("ebbtide key rotate-signing",),
}

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = (
    _STORES | _REFS | _FILES | _COLLECTIONS | _POLICIES | _COLLECTING
)
"""The examples of each command, by the words that are typed for it."""


def examples_of(command_path: str) -> tuple[str, ...]:
    """Returns the examples of a command by its path, such as `ebbtide fs put`. A group has none."""
    return EXAMPLES.get(command_path.partition(" ")[2], ())

"""Gates: checks that can refuse a run before anything is deleted.

A refusal is the error Refused (exit code 3). Its message names the finding and the remedy.
`check_grace` is not a gate but a check of options.

Commits that an earlier run knew prove that the metadata are no older copy. If the metadata are
restored from a backup, all data since the backup seems to be garbage. A format says of which known
commits the absence proves this (`Proving.proofs`). A ref that is unknown proves nothing, because
clients delete refs. The embedded store does not need this: its OWNER proves more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa

from ebbtide.arrow import instants, texts
from ebbtide.durations import format_duration
from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import Proving
from ebbtide.gc.parts import Count, read_part
from ebbtide.gc.plan import COMMITS_FILE, REFS_FILE
from ebbtide.gc.runs import FENCE_FILE, RunFolder, RunFolders
from ebbtide.retention.decision import Roots
from ebbtide.text import count_text


def check_grace(grace: timedelta, *, grace_min: timedelta, reason: str, unsafe: bool) -> None:
    """Raises InvalidInput `unsafe_grace` if the grace is negative, or if it is below `grace_min`
    and not `unsafe`. The message gives the `reason` for the minimum."""
    if grace < timedelta(0):
        raise InvalidInput("unsafe_grace", "the grace must not be negative")
    if grace < grace_min and not unsafe:
        raise InvalidInput(
            "unsafe_grace",
            f"a grace of {format_duration(grace)} is shorter than {format_duration(grace_min)} "
            f"({reason}): files that are being read or were just written could be deleted. Use a "
            "longer grace, or add --unsafe on a quiet repository",
        )


def check_not_empty(roots: Roots, *, listed_count: int) -> None:
    """Raises Refused `zero_commits` or `zero_refs` if the storage has files, and the metadata has
    no commits or no refs."""
    if not listed_count:
        return
    if not roots.commits:
        raise Refused(
            "zero_commits",
            "the database has no commits, but the storage holds "
            f"{count_text(listed_count, 'file')}: it is the wrong database or an emptied one; "
            "nothing is collected",
        )
    if not roots.refs:
        raise Refused(
            "zero_refs",
            "the repository has no branches or tags, but the storage holds "
            f"{count_text(listed_count, 'file')}: create or restore a branch first; nothing is "
            "collected",
        )


def check_share(candidates: Count, listed: Count, *, share_max: float) -> Refused | None:
    """Returns Refused `over_share`, for the plan to record, if too large a share of the files or
    bytes are candidates. Ignores bytes if the size of some listed files is unknown."""
    shares = (
        ("files", candidates.objects, listed.objects),
        ("bytes", candidates.bytes_total, listed.bytes_total),
    )
    for what, part, whole in shares[: 2 if listed.sized else 1]:
        if whole and part / whole > share_max:
            return Refused(
                "over_share",
                f"{part:,} of {whole:,} {what} ({part / whole:.0%}) would be deleted, more than "
                f"the allowed {share_max:.0%}: look at the plan, and if it is right, sweep it with "
                "--allow-share",
            )
    return None


SHOWN_MAX: Final = 20


def check_last_swept(folders: RunFolders, roots: Roots) -> None:
    """Raises Refused `lost_commits` if `roots` lack commits that the last swept run knew. A run
    whose files cannot be read proves nothing."""
    for run_id, places in folders.recorded().items():
        for folder in places:
            commits = _read(folder, COMMITS_FILE) if folder.has(FENCE_FILE) else None
            if commits is not None:
                _check(folders.repository, run_id, folder, commits, roots)
                return


def check_planned(
    repository: RepositoryFormat, run_id: str, folder: RunFolder, roots: Roots
) -> None:
    """Raises Refused `lost_commits` if `roots` lack commits that the plan of this run knew."""
    commits = _read(folder, COMMITS_FILE)
    if commits is not None:
        _check(repository, run_id, folder, commits, roots)


def _check(
    repository: RepositoryFormat, run_id: str, folder: RunFolder, commits: pa.Table, roots: Roots
) -> None:
    """Raises Refused `lost_commits` if `roots` lack some of the `commits` that a run knew."""
    if not isinstance(repository, Proving):
        return
    known = dict(
        zip(texts(commits.column("commit_id")), instants(commits.column("created_at")), strict=True)
    )
    refs = _read(folder, REFS_FILE)
    rows = [] if refs is None else refs.to_pylist()
    heads = {row["commit_id"]: row for row in rows if row["commit_id"] in known}
    present = {commit.commit_id for commit in roots.commits}
    lost = {each for each in repository.proofs(known, heads.keys()) if each not in present}
    if not lost:
        return
    named = [
        f"{each} ({heads[each]['kind']} {heads[each]['name']})" if each in heads else each
        for each in sorted(lost, key=lambda each: (each not in heads, each))[:SHOWN_MAX]
    ]
    more = f" and {len(lost) - len(named):,} more" if len(lost) > len(named) else ""
    raise Refused(
        "lost_commits",
        f"the metadata of {repository.identity.repository_name} lack "
        f"{count_text(len(lost), 'commit')} that run {run_id} knew: {', '.join(named)}{more}. They "
        "are an older copy, such as a restored backup: restore the newer database. If these "
        "commits are lost for good, plan with --accept-lost-commits: their data can then be "
        "deleted",
        errors=named,
    )


def _read(folder: RunFolder, name: str) -> pa.Table | None:
    """Returns a part with commits or refs, or None if it is missing or damaged."""
    columns = ("commit_id", "created_at", "kind", "name")
    try:
        return read_part(folder, name, columns=columns)
    except (NotFound, Refused):
        return None

"""Commits that an earlier run knew, as a proof that the metadata are no older copy.

If the metadata are restored from a backup, all data since the backup seems to be garbage. A format
says of which known commits the absence proves this (`Proving.proofs`). A ref that is
unknown proves nothing: clients delete refs. Not for: the embedded store, whose OWNER proves more.
"""

from __future__ import annotations

import pyarrow as pa

from ebbtide.arrow import instants, texts
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import RepositoryFormat
from ebbtide.formats.capabilities import Proving
from ebbtide.gc.parts import read_part
from ebbtide.gc.planning.gates import SHOWN_MAX
from ebbtide.gc.planning.plan import COMMITS_FILE, REFS_FILE
from ebbtide.gc.runs import FENCE_FILE, RunFolder, RunFolders
from ebbtide.retention.decision import Roots
from ebbtide.text import count_text


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

"""The collector: plans which files to delete, verifies the plan, and deletes the files.

`collector` is one run, from its lease to its report. It reads as a run goes: `planner` makes a
plan from `store`, `committed`, `uncommitted` and `candidates`, and `sweep` carries it out.
`engines` say what a step may use, and carry steps out. A repository is known through `formats.base`
and `formats.capabilities`: no format, database or HTTP here.
"""

from typing import Final

from ebbtide.text import count_text

FOUND: Final = {
    "listed": "all files",
    "live": "needed by commits",
    "protected": "kept without a commit",
    "young": "younger than the grace",
    "candidate": "would be deleted",
}
"""The words for the files that a plan found. Fields of JSON have the names."""
OUTCOMES: Final = {
    "deleted": "deleted",
    "quarantined": "quarantined",
    "missing": "already gone",
    "revived": "needed again, kept",
    "failed": "failed",
}
"""The words for what became of the files that would be deleted."""
EXPIRES_NEXT: Final = "expires next"
"""The state of a commit that no rule keeps: the next run closes it."""


def commits_text(kept: int, expiring: int, closed: int) -> str:
    """Returns the counts of commits by state. Runs closed the last ones."""
    parts = [f"{count_text(kept, 'commit')} kept"]
    parts.append(count_text(expiring, EXPIRES_NEXT, "expire next"))
    parts += [f"{closed:,} quarantined or gone"] if closed else []
    return ", ".join(parts)

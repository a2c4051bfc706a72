"""Marks every commit of a scene's forest that something keeps, with the reason.

Each function here is one reason to keep a commit. Together they are everything that a policy can
say.
"""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.model import RefKind
from ebbtide.retention.counting import Headcount, kept_last, kept_of_ladders, period_ladders
from ebbtide.retention.dates import to_utc
from ebbtide.retention.periods import PERIOD_NUMBER
from ebbtide.retention.reach import reached_from
from ebbtide.retention.reasons import Code, Marks, Part
from ebbtide.retention.rules import KEEP_ALL, PERIODS, Period, Rule
from ebbtide.retention.scene import Scene
from ebbtide.retention.tags import kept_tagged
from ebbtide.retention.windows import kept_by_window, window_start

_REF_CODES: dict[RefKind, Code] = {
    "branch": Code.HEAD,
    "tag": Code.TAG,
    "collection": Code.COLLECTION,
}


def mark_all(scene: Scene) -> Marks:
    """Returns the marks of all kept commits, in the mode of the scene's policy."""
    marks = Marks(scene.forest)
    _mark_refs(scene, marks)
    _mark_holds(scene, marks)
    _mark_leases_and_future(scene, marks)
    if scene.policy.mode == "rewrite":
        _mark_reached(scene, marks)
        return marks
    _mark_windows(scene, marks)
    _mark_last(scene, marks)
    for offset, period in enumerate(PERIODS):
        _mark_period(scene, marks, period, Part.PERIOD + offset)
    _mark_tags_by_rule(scene, marks)
    return marks


def _mark_refs(scene: Scene, marks: Marks) -> None:
    for which, (ref, position) in enumerate(zip(scene.refs, scene.positions, strict=True)):
        by_rule = ref.kind == "tag" and scene.policy.tags is not None
        if not by_rule:
            marks.mark(position, _REF_CODES[ref.kind], which)


def _mark_holds(scene: Scene, marks: Marks) -> None:
    for commit_id in scene.policy.holds:
        position = scene.history.index.get(commit_id)
        if position is not None:
            marks.mark(position, Code.HELD, 0)


def _mark_leases_and_future(scene: Scene, marks: Marks) -> None:
    now, created_at = scene.now, scene.forest.created_at
    for position, commit in enumerate(scene.history.commits):
        lease = commit.leased_until
        if lease is not None and to_utc(lease, what=f"lease of {commit.commit_id}") > now:
            marks.mark(position, Code.LEASED, 0)
        if created_at[position] > now:
            marks.mark(position, Code.FUTURE, 0)


def _mark_reached(scene: Scene, marks: Marks) -> None:
    reached = reached_from(scene.history, scene.positions, new_parents={})
    for position, which in reached.items():
        marks.mark(position, Code.REACHED, which)


def _mark_windows(scene: Scene, marks: Marks) -> None:
    now = scene.now
    branches = [
        (head.position, window_start(_effective(head.rule), now)) for head in scene.branches
    ]
    default_start = window_start(_effective(scene.policy.default), now)
    dangling = [(child, default_start) for child in scene.forest.dangling_children()]
    for heads, code in ((branches, Code.BRANCH_RULE), (dangling, Code.DANGLING_RULE)):
        windows = kept_by_window(scene.forest, heads)
        for part, sources in ((Part.WITHIN, windows.within), (Part.OPENING, windows.opening)):
            for position, source in enumerate(sources):
                if source >= 0:
                    marks.mark(position, code + part, source)


def _effective(rule: Rule | None) -> Rule:
    """Returns the rule. If no rule applies, everything is kept."""
    return KEEP_ALL if rule is None else rule


def _mark_last(scene: Scene, marks: Marks) -> None:
    for code, counts in _counts(scene, lambda rule: rule.keep_last):
        for position, which in kept_last(scene.forest, counts):
            marks.mark(position, code + Part.LAST, which)


def _mark_period(scene: Scene, marks: Marks, period: Period, part: int) -> None:
    groups = _counts(scene, lambda rule: rule.period_count(period))
    everyone = [headcount for _, counts in groups for headcount in counts]
    if not any(count for _, count in everyone):
        return
    ladders = period_ladders(scene.forest, everyone, PERIOD_NUMBER[period])
    for code, counts in groups:
        for position, which in kept_of_ladders(ladders, counts):
            marks.mark(position, code + part, which)


def _counts(
    scene: Scene, count_of: Callable[[Rule], int | None]
) -> list[tuple[Code, list[Headcount]]]:
    """Returns the counts for all branches, and those for all dangling heads."""
    default_count = count_of(_effective(scene.policy.default)) or 0
    branches = [(head.position, count_of(_effective(head.rule)) or 0) for head in scene.branches]
    dangling = [(child, default_count) for child in scene.forest.dangling_children()]
    return [(Code.BRANCH_RULE, branches), (Code.DANGLING_RULE, dangling)]


def _mark_tags_by_rule(scene: Scene, marks: Marks) -> None:
    rule = scene.policy.tags
    if rule is None:
        return
    # Reversed, so that the first of several tags on one commit, by name, gives the reason.
    name_at = {position: name for name, position in reversed(scene.tagged())}
    commits = [scene.history.commits[position] for position in name_at]
    intact = [commit for commit in commits if not commit.tombstoned]
    for commit_id, why in kept_tagged(intact, rule, scene.now):
        position = scene.history.index[commit_id]
        marks.sentences.append(f"tag {name_at[position]}, {why}")
        marks.mark(position, Code.TAG_RULE, len(marks.sentences) - 1)

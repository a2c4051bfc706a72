"""Since when a policy keeps no version of a Delta table that needs a file."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from ebbtide.formats.delta.history import unkept_since
from ebbtide.formats.delta.layout import tree_id
from ebbtide.model import EPOCH, Commit, Ref
from ebbtide.retention import Policy
from ebbtide.retention.decision import Roots, decide
from tests.support.randomized import randomized

HOUR = timedelta(hours=1)


def some_rule(random: Random) -> dict[str, str | int]:
    parts: dict[str, str | int] = {
        "keep_within": f"{random.randint(1, 40)}h",
        "keep_last": random.randint(1, 4),
        "keep_daily": random.randint(1, 3),
    }
    return {each: parts[each] for each in random.sample([*parts], random.randint(1, 3))}


@randomized("outlooks")
def test_since_when_a_policy_keeps_none_of_some_versions(seed: int) -> None:
    """Against the decision at each hour, with the versions that there were then."""
    random = Random(seed)
    hours = sorted(random.choices(range(60), k=random.randint(1, 7)))
    line = [
        Commit(str(n), (str(n - 1),) if n else (), EPOCH + hour * HOUR, tree_id("t/", n))
        for n, hour in enumerate(hours)
    ]
    # A table beside it, whose versions must not count.
    other = Commit("0:u", (), EPOCH, tree_id("u/", 0))
    policy = Policy.parse({"default": some_rule(random)})

    def at(hour: int) -> Roots:
        known = [each for each in line if each.created_at <= EPOCH + hour * HOUR]
        return Roots(
            now=EPOCH + hour * HOUR,
            refs=(Ref("t", "branch", known[-1].commit_id), Ref("u", "branch", "0:u")),
            commits=(*known, other),
            stub_ids=frozenset(),
            tree_checksums={},
            policy=policy,
        )

    now = random.randint(hours[-1], 110)
    asked = random.sample(line, random.randint(1, len(line)))
    born = hours[max(map(line.index, asked))]
    kept = {
        hour: any(each.commit_id in decide(at(hour)).active for each in asked)
        for hour in range(born, now + 1)
    }
    since = unkept_since(at(now), "t", asked, decide(at(now)))
    if kept[now]:
        assert since is None
    else:
        first = next(hour for hour in kept if not any(kept[h] for h in range(hour, now + 1)))
        assert since == EPOCH + first * HOUR

"""Which rule wins: the order of `docs/governance.md`, one test a line of it, and a property for all of it."""

from datetime import date
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranklake.retention.policies.model import Place, Rule
from ranklake.retention.policies.order import Level, decide, steps

ROWS = {
    "table": frozenset({"logs"}),
    "kind": frozenset({"logs"}),
    "class": frozenset({"logs"}),
    "run": frozenset({"r1"}),
    "tag": frozenset({"tier=prod", "tier", "prod"}),
    "team": frozenset({"vision"}),
    "environment": frozenset({"production"}),
    "severity": frozenset({"debug"}),
}


def rule(name, where=None, **said):
    """Return a rule; with `after` it deletes after so many days."""
    if "after" in said:
        said |= {"deletes": True, "delete_after_days": said.pop("after")}
    texts = {key: (one,) if isinstance(one, str) else tuple(one) for key, one in (where or {}).items()}
    return Rule(name, texts, "me", f"reason of {name}", "law", Place(Path("p.yaml"), 1), **said)


LOGS = rule("logs", {"class": "logs"}, after=30)
PROD = rule("prod", {"tag": "tier=prod"}, after=365)
DEBUG = rule("debug", {"severity": "debug"}, after=7)
LAW = rule("law", {"class": "logs"}, minimum_days=60)
PRIVACY = rule("privacy", {"class": "logs"}, maximum_days=20)
HOLD = rule("hold", {"run": "r1"})


@pytest.mark.parametrize(
    ("rules", "holds", "level", "by", "period"),
    [
        ([LOGS], [], Level.PERIOD, "logs", 30),
        ([LOGS, DEBUG], [], Level.PERIOD, "debug", 7),
        ([LOGS, DEBUG, PROD], [], Level.PERIOD, "prod", 365),
        ([LOGS, DEBUG, PROD, PRIVACY], [], Level.MAXIMUM, "privacy", 20),
        ([LOGS, LAW], [], Level.MINIMUM, "law", 60),
        ([LOGS, PROD, LAW], [], Level.PERIOD, "prod", 365),
        ([LOGS, LAW, PRIVACY], [], Level.MINIMUM, "law", 60),
        ([LOGS, DEBUG, PROD, LAW, PRIVACY], [HOLD], Level.HOLD, "hold", None),
        ([rule("other", {"class": "raw"}, after=1)], [], Level.NOTHING, None, None),
        ([LOGS, rule("longer", {"class": "logs"}, after=40)], [], Level.PERIOD, "longer", 40),
        ([LOGS, rule("never", {"class": "logs"}, after=None)], [], Level.PERIOD, "never", None),
        ([rule("never", {"class": "logs"}, after=None), PRIVACY], [], Level.MAXIMUM, "privacy", 20),
        ([rule("glob", {"run": "r*"}, after=5), rule("exact", {"run": "r1"}, after=3)], [], Level.PERIOD, "exact", 3),
        ([LAW, rule("law2", {"table": "logs"}, minimum_days=90), LOGS], [], Level.MINIMUM, "law2", 90),
        ([PRIVACY, rule("p2", {"table": "logs"}, maximum_days=10), LOGS], [], Level.MAXIMUM, "p2", 10),
        ([PRIVACY], [], Level.MAXIMUM, "privacy", 20),
    ],
)
def test_the_order_of_rules(rules, holds, level, by, period):
    """Hold, legal minimum, legal maximum, the most specific period, the longest: in whatever order they stand."""
    for some in permutations(rules[:4]):
        made = decide([*some, *rules[4:]], ROWS, holds)
        assert (made.level, made.rule and made.rule.name, made.period_days) == (level, by, period)


def test_the_books_have_no_period():
    """No rule takes the books, whatever it says."""
    facts = {"class": frozenset({"audit"}), "table": frozenset({"audit"})}
    made = decide([rule("all", {"class": "*"}, after=1, maximum_days=1)], facts)
    assert (made.level, made.period_days) == (Level.BOOKS, None)


def test_what_is_not_known_matches_nothing():
    """A rule by team is not about a run whose team nobody knows; the rule of its table is."""
    rules = [LOGS, rule("team", {"team": "*"}, after=1)]
    assert decide(rules, ROWS).rule.name == "team"
    assert decide(rules, {**ROWS, "team": frozenset()}).rule.name == "logs"


def test_each_rule_that_matches_is_explained():
    """One decides; of each other it is said why it does not."""
    rules = [LOGS, DEBUG, PROD, LAW, PRIVACY, rule("elsewhere", {"table": "steps"}, after=1)]
    made = decide(rules, ROWS)
    told = list(steps(rules, ROWS, made))
    assert [one.rule.name for one in told] == ["law", "privacy", "prod", "debug", "logs"]
    assert [one.rule.name for one in told if one.decides] == ["law"]
    assert all(one.why for one in told if not one.decides)
    told = {one.rule.name: one.why for one in steps(rules[:3], ROWS, decide(rules[:3], ROWS))}
    assert told == {"prod": "", "debug": "prod is more specific", "logs": "prod is more specific"}


WHERES = (
    {"class": "logs"},
    {"table": "logs"},
    {"severity": "debug"},
    {"tag": "tier=prod"},
    {"run": "r*"},
    {"run": "r1"},
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    periods=st.lists(
        st.tuples(st.sampled_from(WHERES), st.one_of(st.none(), st.integers(1, 400))), min_size=1, max_size=5
    ),
    minimums=st.lists(st.integers(1, 400), max_size=3),
    maximums=st.lists(st.integers(1, 400), max_size=3),
    shuffled=st.randoms(use_true_random=False),
)
def test_bounds_hold_whatever_the_rules(periods, minimums, maximums, shuffled):
    """No row goes before the longest minimum, none stays beyond the shortest maximum but for one, in any order."""
    rules = [
        *(rule(f"p{at}", where, after=period) for at, (where, period) in enumerate(periods)),
        *(rule(f"min{at}", {"class": "logs"}, minimum_days=one) for at, one in enumerate(minimums)),
        *(rule(f"max{at}", {"class": "logs"}, maximum_days=one) for at, one in enumerate(maximums)),
    ]
    made = decide(rules, ROWS)
    period = float("inf") if made.period_days is None else made.period_days
    assert period >= max(minimums, default=0)
    assert period <= max([min(maximums, default=float("inf")), *minimums])
    assert sum(one.decides for one in steps(rules, ROWS, made)) == 1
    shuffled.shuffle(rules)
    again = decide(rules, ROWS)
    assert (again.level, again.period_days, again.rule) == (made.level, made.period_days, made.rule)


def test_a_cutoff_is_that_of_the_period():
    """A decision without a period has none."""
    day = date(2026, 4, 1)
    assert decide([LOGS], ROWS).cutoff(day) == date(2026, 3, 2)
    assert decide([LOGS], ROWS, [HOLD]).cutoff(day) is None

"""The order of rules: which one decides how long rows are kept. Plans, explanations, tests and simulations use it.

    hold ─▶ books ─▶ legal minimum (the longest) ─▶ legal maximum (the shortest) ─▶ the most specific rule's period

The first level that applies to the rows decides. Minimum and maximum apply only to a period outside of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from ranklake.retention.policies.model import KEPT, KEYS, Facts, Rule, is_glob

FOREVER: Final = float("inf")


class Level(Enum):
    """What decided how long rows are kept, the strongest first."""

    HOLD = "a legal hold"
    BOOKS = "the books are kept"
    MINIMUM = "a legal minimum"
    MAXIMUM = "a legal maximum"
    PERIOD = "a rule's period"
    NOTHING = "no rule says when it goes"


@dataclass(frozen=True, slots=True)
class Decision:
    """How long some rows are kept.

    Attributes
    ----------
    level
        What decided.
    period_days
        Days for which rows are kept; None if they are not deleted by age.
    rule
        The rule that decided; None for books, and if no rule matches.
    """

    level: Level
    period_days: int | None
    rule: Rule | None

    @property
    def decided_by(self) -> str:
        """Name of the rule, or of the level if no rule decided."""
        return self.level.value if self.rule is None else self.rule.name

    def cutoff(self, as_of: date) -> date | None:
        """Return the date before which rows are deleted; None if none are."""
        return cutoff(self.period_days, as_of)


@dataclass(frozen=True, slots=True)
class Step:
    """A matching rule, its effect in words, whether it decides, and the reason if it does not."""

    rule: Rule
    says: str
    decides: bool
    why: str


def cutoff(period_days: int | None, as_of: date) -> date | None:
    """Return the date before which partitions are deleted; None if none are.

    The last row of partition D may be from the end of D, so D is deleted on day D + 1 + period.
    """
    if period_days is None:
        return None
    return date.fromordinal(max(date.min.toordinal(), as_of.toordinal() - period_days))  # no partition is earlier


def decide(rules: Iterable[Rule], facts: Facts, holds: Sequence[Rule] = ()) -> Decision:
    """Return how long rows with these facts are kept, and which rule decided.

    Parameters
    ----------
    holds
        Legal holds, as rules without a period.
    """
    matching_hold = next((hold for hold in holds if hold.matches(facts)), None)
    if matching_hold is not None:
        return Decision(Level.HOLD, None, matching_hold)
    if facts.get("class", frozenset()) & set(KEPT):
        return Decision(Level.BOOKS, None, None)
    matching = [rule for rule in rules if rule.matches(facts)]
    deleting = [rule for rule in matching if rule.deletes]
    winner = min(deleting, key=_rank) if deleting else None
    lowest = next(iter(_minimums(matching)), None)
    highest = next(iter(_maximums(matching)), None)
    decision = Decision(Level.NOTHING, None, None)
    if winner is not None:
        decision = Decision(Level.PERIOD, winner.delete_after_days, winner)
    if highest is not None and _days(decision.period_days) > _longest_days(highest):
        decision = Decision(Level.MAXIMUM, highest.maximum_days, highest)
    if lowest is not None and _days(decision.period_days) < _shortest_days(lowest):
        decision = Decision(Level.MINIMUM, lowest.minimum_days, lowest)
    return decision


def steps(rules: Iterable[Rule], facts: Facts, decision: Decision, holds: Sequence[Rule] = ()) -> Iterator[Step]:
    """Yield a step for each matching rule, the strongest first. `decision` is the result of `decide`."""
    for hold in holds:
        if hold.matches(facts):
            yield Step(
                hold, "hold", decision.rule is hold, "" if decision.rule is hold else "another hold stands already"
            )
    matching = sorted((rule for rule in rules if rule.matches(facts)), key=_rank)
    for rule in _minimums(matching):
        decides = decision.level is Level.MINIMUM and decision.rule is rule
        yield Step(
            rule, f"at least {days(rule.minimum_days)}", decides, "" if decides else _order_reason(rule, decision)
        )
    for rule in _maximums(matching):
        decides = decision.level is Level.MAXIMUM and decision.rule is rule
        yield Step(
            rule, f"at most {days(rule.maximum_days)}", decides, "" if decides else _order_reason(rule, decision)
        )
    for rule in (matched for matched in matching if matched.deletes):
        decides = decision.level is Level.PERIOD and decision.rule is rule
        says = "never by time" if rule.delete_after_days is None else f"delete after {days(rule.delete_after_days)}"
        yield Step(rule, says, decides, "" if decides else _period_reason(rule, decision))


def masking_rule(
    rules: Iterable[Rule], facts: Facts, column: str, holds: Sequence[Rule] = ()
) -> tuple[Rule | None, int | None]:
    """Return the rule that masks a column of rows with these facts, and after how many days; None if no rule does.

    The most specific rule decides; of equally specific rules, the one with the longest time. A legal minimum delays
    masking, and a legal hold prevents it.
    """
    if any(hold.matches(facts) for hold in holds):
        return None, None
    matching = [rule for rule in rules if rule.matches(facts)]
    masking = [
        rule
        for rule in matching
        if "mask" in rule.action_days and any(fnmatchcase(column, glob) for glob in rule.where.get("column", ()))
    ]
    if not masking:
        return None, None
    winner = min(masking, key=lambda rule: (_specificity(rule), -rule.action_days["mask"], rule.name))
    minimums = (_shortest_days(rule) for rule in _minimums(matching))
    return winner, int(max([winner.action_days["mask"], *minimums]))


def archiving_rule(rules: Iterable[Rule], facts: Facts, holds: Sequence[Rule] = ()) -> Rule | None:
    """Return the rule that archives rows with these facts; None if no rule does, or if a legal hold prevents it.

    The most specific rule decides; of equally specific rules, the one with the longest time.
    """
    if any(hold.matches(facts) for hold in holds):
        return None
    archiving = [rule for rule in rules if rule.destination is not None and rule.matches(facts)]
    return min(archiving, key=lambda rule: (_specificity(rule), -rule.action_days["archive"], rule.name), default=None)


def more_specific(rule: Rule, other: Rule) -> bool:
    """Return whether a rule has more specific selectors than another rule."""
    return _specificity(rule) < _specificity(other)


def days(count: int | None) -> str:
    """Return a number of days in words."""
    return "for ever" if count is None else f"{count:,} day{'s' * (count != 1)}"


def _order_reason(rule: Rule, decision: Decision) -> str:
    if decision.level in {Level.HOLD, Level.BOOKS}:
        return _stronger(decision)
    kept = days(decision.period_days)
    if rule.minimum_days is not None and _days(decision.period_days) >= rule.minimum_days:
        return f"kept {kept} anyway, by {decision.decided_by}"
    if decision.level is Level.MINIMUM:
        return f"the legal minimum of {decision.decided_by} goes before it"
    return f"kept {kept} anyway, by {decision.decided_by}"


def _period_reason(rule: Rule, decision: Decision) -> str:
    if decision.level is Level.PERIOD:
        assert decision.rule is not None
        if more_specific(decision.rule, rule):
            return f"{decision.rule.name} is more specific"
        return f"as specific as {decision.rule.name}, which keeps longer"
    return _stronger(decision)


def _stronger(decision: Decision) -> str:
    name = "" if decision.rule is None else f", {decision.rule.name},"
    return (
        "the books are kept, whatever rules say"
        if decision.level is Level.BOOKS
        else f"{decision.level.value}{name} goes before"
    )


def _rank(rule: Rule) -> tuple[tuple[int, ...], float, str]:
    """Return the sort key of rules: more specific first, then the longer period, then the name."""
    return (_specificity(rule), -_days(rule.delete_after_days), rule.name)


def _specificity(rule: Rule) -> tuple[int, ...]:
    """Return a number for each of `KEYS`: 0 if the rule has exact texts, 1 if it has a glob, 2 without the key."""
    return tuple(2 if key not in rule.where else 1 if any(map(is_glob, rule.where[key])) else 0 for key in KEYS)


def _days(period: int | None) -> float:
    return FOREVER if period is None else period


def _minimums(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules with a legal minimum, the longest first."""
    return sorted(
        (rule for rule in rules if rule.minimum_days is not None), key=lambda rule: (-_shortest_days(rule), rule.name)
    )


def _maximums(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules with a legal maximum, the shortest first."""
    return sorted(
        (rule for rule in rules if rule.maximum_days is not None), key=lambda rule: (_longest_days(rule), rule.name)
    )


def _shortest_days(rule: Rule) -> float:
    return rule.minimum_days or 0


def _longest_days(rule: Rule) -> float:
    return _days(rule.maximum_days)

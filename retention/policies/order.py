"""Which rule wins: one stated order, and the same for plans, explanations, tests and simulations.

    hold ─▶ books ─▶ legal minimum (the longest) ─▶ legal maximum (the shortest) ─▶ the most specific rule's period

The first of them that says something about some rows decides how long they are kept. A period within the bounds of a
minimum and a maximum is not touched by them.
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
    """By what it was decided how long rows are kept, the strongest first."""

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
        By what.
    period_days
        None: not deleted by time.
    rule
        The rule that decided; None for books and where no rule says anything.
    """

    level: Level
    period_days: int | None
    rule: Rule | None

    @property
    def decided_by(self) -> str:
        """Name of the rule, or what else decided."""
        return self.level.value if self.rule is None else self.rule.name

    def cutoff(self, as_of: date) -> date | None:
        """Return the date before which rows go, None if none do."""
        return cutoff(self.period_days, as_of)


@dataclass(frozen=True, slots=True)
class Step:
    """What one rule that matches says, whether that decides, and why not if not."""

    rule: Rule
    says: str
    decides: bool
    why: str


def cutoff(period_days: int | None, as_of: date) -> date | None:
    """Return the date before which partitions go, None if none do.

    The last row of partition D may be as late as the end of D, so D goes when D + 1 + period has come.
    """
    if period_days is None:
        return None
    return date.fromordinal(max(date.min.toordinal(), as_of.toordinal() - period_days))  # none is before it


def decide(rules: Iterable[Rule], facts: Facts, holds: Sequence[Rule] = ()) -> Decision:
    """Return how long rows with these facts are kept, and by which rule.

    Parameters
    ----------
    holds
        Legal holds, as rules without a period.
    """
    held = next((hold for hold in holds if hold.matches(facts)), None)
    if held is not None:
        return Decision(Level.HOLD, None, held)
    if facts.get("class", frozenset()) & set(KEPT):
        return Decision(Level.BOOKS, None, None)
    matching = [rule for rule in rules if rule.matches(facts)]
    deleting = [rule for rule in matching if rule.deletes]
    winner = min(deleting, key=_rank) if deleting else None
    lowest = next(iter(_minimums(matching)), None)
    highest = next(iter(_maximums(matching)), None)
    made = Decision(Level.NOTHING, None, None)
    if winner is not None:
        made = Decision(Level.PERIOD, winner.delete_after_days, winner)
    if highest is not None and _days(made.period_days) > _longest_days(highest):
        made = Decision(Level.MAXIMUM, highest.maximum_days, highest)
    if lowest is not None and _days(made.period_days) < _shortest_days(lowest):
        made = Decision(Level.MINIMUM, lowest.minimum_days, lowest)
    return made


def steps(rules: Iterable[Rule], facts: Facts, made: Decision, holds: Sequence[Rule] = ()) -> Iterator[Step]:
    """Yield what every rule says that matches, the strongest first."""
    for hold in holds:
        if hold.matches(facts):
            yield Step(hold, "hold", made.rule is hold, "" if made.rule is hold else "another hold stands already")
    matching = sorted((rule for rule in rules if rule.matches(facts)), key=_rank)
    for rule in _minimums(matching):
        decides = made.level is Level.MINIMUM and made.rule is rule
        yield Step(rule, f"at least {days(rule.minimum_days)}", decides, "" if decides else _order_reason(rule, made))
    for rule in _maximums(matching):
        decides = made.level is Level.MAXIMUM and made.rule is rule
        yield Step(rule, f"at most {days(rule.maximum_days)}", decides, "" if decides else _order_reason(rule, made))
    for rule in (one for one in matching if one.deletes):
        decides = made.level is Level.PERIOD and made.rule is rule
        says = "never by time" if rule.delete_after_days is None else f"delete after {days(rule.delete_after_days)}"
        yield Step(rule, says, decides, "" if decides else _why_period(rule, made))


def masking_rule(
    rules: Iterable[Rule], facts: Facts, column: str, holds: Sequence[Rule] = ()
) -> tuple[Rule | None, int | None]:
    """Return which rule masks a column of rows with these facts, and after how many days; None where none does.

    The most specific decides, of equals the longest. No value is masked before a legal minimum has passed, and none
    that a legal hold is about.
    """
    if any(hold.matches(facts) for hold in holds):
        return None, None
    matching = [rule for rule in rules if rule.matches(facts)]
    masking = [one for one in matching if any(fnmatchcase(column, of) for of in one.where.get("column", ()))]
    masking = [one for one in masking if "mask" in one.waiting]
    if not masking:
        return None, None
    winner = min(masking, key=lambda rule: (_specificity(rule), -rule.waiting["mask"], rule.name))
    return winner, int(max([winner.waiting["mask"], *(_shortest_days(minimum) for minimum in _minimums(matching))]))


def archiving_rule(rules: Iterable[Rule], facts: Facts, holds: Sequence[Rule] = ()) -> Rule | None:
    """Return which rule archives rows with these facts; None where none does, or a legal hold is about them.

    The most specific decides, of equals the one that waits longest.
    """
    if any(hold.matches(facts) for hold in holds):
        return None
    archiving = [rule for rule in rules if rule.destination is not None and rule.matches(facts)]
    return min(archiving, key=lambda rule: (_specificity(rule), -rule.waiting["archive"], rule.name), default=None)


def more_specific(rule: Rule, other: Rule) -> bool:
    """Return whether a rule is about something more specific than another."""
    return _specificity(rule) < _specificity(other)


def days(count: int | None) -> str:
    """Return a count of days in words."""
    return "for ever" if count is None else f"{count:,} day{'s' * (count != 1)}"


def _order_reason(rule: Rule, made: Decision) -> str:
    if made.level in {Level.HOLD, Level.BOOKS}:
        return _stronger(made)
    kept = days(made.period_days)
    if rule.minimum_days is not None and _days(made.period_days) >= rule.minimum_days:
        return f"kept {kept} anyway, by {made.decided_by}"
    if made.level is Level.MINIMUM:
        return f"the legal minimum of {made.decided_by} goes before it"
    return f"kept {kept} anyway, by {made.decided_by}"


def _why_period(rule: Rule, made: Decision) -> str:
    if made.level is Level.PERIOD:
        assert made.rule is not None
        if more_specific(made.rule, rule):
            return f"{made.rule.name} is more specific"
        return f"as specific as {made.rule.name}, which keeps longer"
    return _stronger(made)


def _stronger(made: Decision) -> str:
    name = "" if made.rule is None else f", {made.rule.name},"
    return (
        "the books are kept, whatever rules say"
        if made.level is Level.BOOKS
        else f"{made.level.value}{name} goes before"
    )


def _rank(rule: Rule) -> tuple[tuple[int, ...], float, str]:
    """Return what rules are sorted by: more specific, then longer, then by name."""
    return (_specificity(rule), -_days(rule.delete_after_days), rule.name)


def _specificity(rule: Rule) -> tuple[int, ...]:
    """Return, key by key, 0 where a rule names texts, 1 where it has a glob, 2 where it says nothing."""
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

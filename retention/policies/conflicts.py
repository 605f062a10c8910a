"""Conflicts between rules: contradicting bounds, rules that never decide, actions that come too late, and demands."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations, product
from typing import TYPE_CHECKING, Final

from ranklake.errors import did_you_mean
from ranklake.retention.policies.model import ALL_KINDS, ROW_KEYS, RUN_KEYS, Place, Rule, matches_key, table_facts
from ranklake.retention.policies.order import FOREVER, days, decide
from ranklake.retention.policies.read import Finding, LintContext

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract


RUNS: Final = "runs"
"""The table with the team, labels and environment of runs."""


def bounds(context: LintContext) -> Iterator[Finding]:
    """Yield minimums above maximums, and periods outside the bounds of their own rule."""
    for rule in context.rules:
        low, high, period = rule.minimum_days, rule.maximum_days, rule.delete_after_days
        if low is not None and high is not None and low > high:
            message = f"rule {rule.name!r} keeps at least {days(low)} and at most {days(high)}"
            yield Finding("RP010", rule.at, message, "raise maximum_days or lower minimum_days")
        elif low is not None and period is not None and period < low:
            message = f"rule {rule.name!r} deletes after {days(period)} and keeps at least {days(low)}"
            yield Finding("RP010", rule.at, message, "raise delete_after_days or lower minimum_days")
        elif high is not None and rule.deletes and (period is None or period > high):
            message = f"rule {rule.name!r} keeps {days(period)} and at most {days(high)}"
            yield Finding("RP010", rule.at, message, "lower delete_after_days or raise maximum_days")
    lowest = [rule for rule in context.rules if rule.minimum_days is not None]
    highest = [rule for rule in context.rules if rule.maximum_days is not None]
    for low_rule, other in product(lowest, highest):
        if low_rule is other or (low_rule.minimum_days or 0) <= (other.maximum_days or 0):
            continue
        if _overlap(low_rule, other, context.contracts):
            message = (
                f"{low_rule.name!r} keeps at least {days(low_rule.minimum_days)}, {other.name!r} ({other.at}) at most "
            )
            hint = "agree on one of them: the minimum goes before the maximum"
            yield Finding("RP011", low_rule.at, message + days(other.maximum_days), hint)


def duplicate_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules with the same selectors as another rule. Only the rule with the longer period decides."""
    for first, other in combinations([rule for rule in context.rules if rule.deletes], 2):
        if first.where == other.where:
            short, long = sorted((first, other), key=lambda rule: (_forever(rule.delete_after_days), rule.name))
            message = f"rule {short.name!r} never decides: {long.name!r} ({long.at}) is about the same and keeps longer"
            if short.delete_after_days == long.delete_after_days:
                message = f"rule {short.name!r} and {long.name!r} ({long.at}) say the same"
            yield Finding("RP015", short.at, message, "remove one of them")


def shadowed_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules that never decide because a more specific rule decides for each of their tables."""
    table_rules = [rule for rule in context.rules if not rule.row_keys]
    for rule in table_rules:
        tables = [contract for contract in context.contracts.values() if rule.may_match(contract)]
        if not rule.deletes or not tables:
            continue
        winners = {table.table: decide(_periods(table_rules), table_facts(table)).rule for table in tables}
        if any(winner is None or winner.name == rule.name for winner in winners.values()):
            continue
        if any(winner is not None and winner.where == rule.where for winner in winners.values()):
            continue  # reported as duplicates
        names = sorted({winner.name for winner in winners.values() if winner is not None})
        message = (
            f"rule {rule.name!r} never decides: {', '.join(names)} {_is_or_are(names)} more specific for all its tables"
        )
        yield Finding("RP017", rule.at, message, "remove it, or name what it is about")


def late_actions(context: LintContext) -> Iterator[Finding]:
    """Yield actions whose rows are deleted before the action is due."""
    for rule in context.rules:
        for action, age in rule.action_days.items():
            tables = [contract for contract in context.contracts.values() if rule.may_match(contract)]
            ends = [decide([*context.rules], table_facts(table)).period_days for table in tables]
            own = rule.delete_after_days
            if rule.deletes and own is not None:
                ends = [own]
            if ends and all(end is not None and end <= age for end in ends):
                latest = days(max(map(_int, ends)))
                message = f"{action} after {days(age)} comes too late: the rows are deleted after {latest}"
                yield Finding("RP014", rule.at, message, "lower its days, or keep the rows longer")


def long_lived_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules that select by columns of ``runs`` and keep rows longer than the rows of ``runs`` are kept."""
    runs = context.contracts.get(RUNS)
    if runs is None:
        return
    runs_days = _forever(decide(context.rules, table_facts(runs)).period_days)
    for rule in context.rules:
        keys = [key for key in rule.row_keys if key in RUN_KEYS and key != "run"]
        rule_days = max(_forever(rule.delete_after_days) if rule.deletes else 0, rule.minimum_days or 0)
        if keys and rule_days > runs_days:
            message = (
                f"rule {rule.name!r} goes by {', '.join(keys)}, which is known for as long as rows of {RUNS!r} are kept"
            )
            hint = f"keep {RUNS!r} at least {'for ever' if rule_days == FOREVER else days(int(rule_days))}"
            yield Finding("RP021", rule.at, message, hint)


def _periods(rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules that set a period and no bounds; all rules if there is none."""
    return [rule for rule in rules if rule.deletes and rule.minimum_days is None and rule.maximum_days is None] or [
        *rules
    ]


def _overlap(rule: Rule, other: Rule, contracts: "Mapping[str, Contract]") -> bool:
    """Return whether two rules can select the same rows."""
    if not any(rule.may_match(table) and other.may_match(table) for table in contracts.values()):
        return False
    return all(
        any(fnmatchcase(a, b) or fnmatchcase(b, a) for a in rule.where[key] for b in other.where[key])
        for key in ROW_KEYS
        if key in rule.where and key in other.where
    )


def _is_or_are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _forever(period: int | None) -> float:
    return FOREVER if period is None else period


def _int(period: int | None) -> int:
    return period or 0


_NOUNS: Final = {"class": "no contract uses the retention class", "table": "there is no table",
                 "kind": "no kind of data is"}  # fmt: skip


def demands(context: "LintContext") -> Iterator[Finding]:
    """Yield mistakes in demands: unknown names, no owner, no requirement, no table, a name used twice.

    Also yields pairs of demands that no bucket can meet together.
    """
    contracts = context.contracts.values()
    known_names = {
        "class": {contract.retention for contract in contracts},
        "table": set(context.contracts),
        "kind": set(ALL_KINDS),
    }
    first: dict[str, Place] = {}
    for demand in context.sources.demands:
        unknown = [
            Finding("RP005", demand.at, f"{_NOUNS[key]} {text!r}", did_you_mean(text, known_names[key]))
            for key, texts in demand.where.items()
            for text in texts
            if not any(fnmatchcase(name, text) for name in known_names[key])
        ]
        yield from unknown
        if not demand.owner:
            message = f"nobody answers for the demand {demand.name!r}"
            yield Finding("RP003", demand.at, message, "add owner: …, here or to the file")
        if not demand.encrypted and not demand.regions:
            yield Finding(
                "RP028", demand.at, f"{demand.name!r} asks nothing", "add encrypted: true, keys: […] or regions: […]"
            )
        if not unknown and not any(map(demand.is_about, contracts)):
            yield Finding(
                "RP028", demand.at, f"{demand.name!r} is about no table", "name a class, kind or table that there is"
            )
        if demand.name in first:
            message = f"{demand.name!r} stands in {first[demand.name]}, too"
            yield Finding("RP012", demand.at, message, "give one another name")
        first.setdefault(demand.name, demand.at)
    yield from _contradictions(context)


def _contradictions(context: "LintContext") -> Iterator[Finding]:
    """Yield pairs of demands on the same table that have no region, or no key, in common."""
    for first, other in combinations(context.sources.demands, 2):
        shared_tables = [
            table
            for table, contract in context.contracts.items()
            if first.is_about(contract) and other.is_about(contract)
        ]
        conflicting = []
        if first.regions and other.regions and not set(first.regions) & set(other.regions):
            conflicting.append("regions")
        if first.keys and other.keys and all(matches_key(key, other.keys) is False for key in first.keys):
            conflicting.append("keys")
        if shared_tables and conflicting:
            nouns = " and ".join(conflicting)
            message = f"{other.name!r} wants other {nouns} for {shared_tables[0]} than {first.name!r} in {first.at}"
            yield Finding("RP029", other.at, message, "agree on one, or take the table out of one of them")

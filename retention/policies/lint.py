"""Lint: finds mistakes in policies and reports each with its line and how to fix it.

    files ──read.py──▶ rules ──CHECKS──▶ findings about each rule ──conflicts.py──▶ findings about pairs of rules

Policies with errors cannot be used (`ranklake.retention.policies.read.ERRORS`); policies with warnings can.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Final

from ranklake.errors import did_you_mean
from ranklake.retention.policies import conflicts
from ranklake.retention.policies.model import (
    ALL_KINDS,
    KEPT,
    SEVERITIES,
    Place,
    Rule,
    has_classes,
    maskable,
    place_fault,
)
from ranklake.retention.policies.order import days
from ranklake.retention.policies.read import Finding, LintContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.policies.read import Sources


_DAY_S: Final = 86_400
_MOST_DAYS: Final = 36_500
_LEAST_TIER: Final = 2
"""Least number of approvers for plans of a rule that may delete everything."""


def unknown_names(context: LintContext) -> Iterator[Finding]:
    """Yield unknown classes, tables, kinds, columns and severities."""
    known_names = {
        "class": {contract.retention for contract in context.contracts.values()},
        "table": set(context.contracts),
        "kind": set(ALL_KINDS),
        "column": {name for contract in context.contracts.values() for name in contract.names},
        "severity": set(SEVERITIES),
    }
    nouns = {
        "class": "no contract uses the retention class",
        "table": "there is no table",
        "kind": "no kind of data is",
    }
    for rule in context.sources.rules:
        for key, names in known_names.items():
            for text in rule.where.get(key, ()):
                if not any(fnmatchcase(name, text) for name in names):
                    message = f"{nouns.get(key, f'there is no {key}')} {text!r}"
                    yield Finding("RP005", _place_of(context, rule, key), message, did_you_mean(text, names))


def empty_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules without effect, masks without columns, and budgets for part of a table."""
    for rule in context.sources.rules:
        bounds = (rule.minimum_days, rule.maximum_days, rule.budget_bytes, rule.growth_bytes_per_day)
        if not rule.deletes and not rule.action_days and all(bound is None for bound in bounds):
            hint = "add delete_after_days, minimum_days or maximum_days"
            yield Finding("RP006", rule.at, f"rule {rule.name!r} says nothing about what it selects", hint)
        if "mask" in rule.action_days and "column" not in rule.where:
            yield Finding("RP013", rule.at, "a mask names no columns", "add column: […] to where")
        if "column" in rule.where and (rule.deletes or "mask" not in rule.action_days):
            hint = "say mask_after_days, or leave column out and delete rows"
            yield Finding("RP013", rule.at, "columns can be masked, not deleted or kept", hint)
        if (rule.budget_bytes or rule.growth_bytes_per_day) and rule.row_keys:
            hint = f"leave {', '.join(rule.row_keys)} out of where"
            yield Finding("RP024", rule.at, "the bytes of some rows of a table are not known", hint)


def permanent_classes(context: LintContext) -> Iterator[Finding]:
    """Yield periods for classes that are always kept."""
    for rule in context.sources.rules:
        for name in rule.where.get("class", ()):
            if name in KEPT and (rule.delete_after_days is not None or rule.maximum_days is not None):
                message = f"class {name!r} cannot have a period: {KEPT[name]}"
                yield Finding("RP007", _place_of(context, rule, "class"), message, "write delete_after_days: null")


def unlimited_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules that would delete all rows of all tables that may have a period."""
    deletable = [contract for contract in context.contracts.values() if contract.retention not in KEPT]
    if len({contract.retention for contract in deletable}) <= 1:  # a rule may delete all rows of one class
        return
    for rule in context.sources.rules:
        if rule.delete_after_days is None and rule.maximum_days is None:
            continue
        selects_rows = any("*" not in rule.where[key] for key in rule.row_keys)
        of_tables = replace(rule, where={key: texts for key, texts in rule.where.items() if key not in rule.row_keys})
        if selects_rows or not all(map(of_tables.may_match, deletable)):
            continue
        if not rule.everything or rule.tier < _LEAST_TIER:
            hint = f"name what it is about, or say everything: true and tier: {_LEAST_TIER}"
            yield Finding("RP009", rule.at, f"rule {rule.name!r} takes everything", hint)


def unmaskable_columns(context: LintContext) -> Iterator[Finding]:
    """Yield columns that none of a rule's tables has, or that cannot be masked in any of them."""
    for rule in context.sources.rules:
        for column in rule.where.get("column", ()):
            yield from _unmaskable(context, rule, column)
            tables = [contract for contract in context.contracts.values() if rule.may_match(contract)]
            names = {name for table in tables for name in table.names}
            if not tables or any(fnmatchcase(name, column) for name in names):
                continue
            if any(fnmatchcase(name, column) for table in context.contracts.values() for name in table.names):
                message = f"none of the rule's tables has a column {column!r}"
                yield Finding("RP013", _place_of(context, rule, "column"), message, did_you_mean(column, names))


def _unmaskable(context: LintContext, rule: Rule, column: str) -> Iterator[Finding]:
    """Yield a column that some of the rule's tables have and that cannot be masked in any of them."""
    candidates = [
        (contract, name)
        for contract in context.contracts.values()
        if rule.may_match(contract)
        for name in contract.names
        if fnmatchcase(name, column)
    ]
    if not candidates or any(name in maskable(contract) for contract, name in candidates):
        return
    table, name = candidates[0]
    why = f"{table.table}.{name} is operational" if table.column(name).class_ == "operational" else ""
    if table.kind != "fact" or not table.envelope:
        why = f"rows of {table.table} are no record of ranks, and are computed again or kept as books"
    why = why or f"{table.table}.{name} is required, or tells rows apart or sorts them"
    hint = "name classified columns of tables that ranks record, or delete rows"
    yield Finding(
        "RP013",
        _place_of(context, rule, "column"),
        f"column {column!r} cannot be masked where it is stored: {why}",
        hint,
    )


def unmatched_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules that no table matches."""
    for rule in context.sources.rules:
        if not any(map(rule.may_match, context.contracts.values())):
            keys = ", ".join(key for key in rule.where if key != "column")
            message = f"rule {rule.name!r} is about nothing: no table has all of {keys}"
            hint = "rows are told apart in tables that ranks record: severity in logs and events, metric in scalars"
            yield Finding("RP016", rule.at, message, hint)


def long_periods(context: LintContext) -> Iterator[Finding]:
    """Yield periods of more than a hundred years."""
    for rule in context.sources.rules:
        for key in ("delete_after_days", "minimum_days", "maximum_days"):
            period = getattr(rule, key)
            if period is not None and period > _MOST_DAYS:
                message = f"{days(period)} are more than a hundred years"
                hint = "write null for never" if key == "delete_after_days" else "write fewer"
                yield Finding("RP023", rule.at, message, hint)


def overdue_reviews(context: LintContext) -> Iterator[Finding]:
    """Yield rules whose review date has passed."""
    for rule in context.rules:
        if rule.review is not None and rule.review < context.today:
            message = f"the review of rule {rule.name!r} was due on {rule.review} ({rule.owner})"
            yield Finding("RP018", rule.at, message, "look at it again, and write the next date")


def undated_rules(context: LintContext) -> Iterator[Finding]:
    """Yield rules without a review date."""
    broken = {finding.at.file for finding in context.sources.findings}
    for rule in context.sources.rules:
        if rule.review is None and rule.at.file not in broken:  # a broken file may have an invalid date
            yield Finding("RP019", rule.at, f"rule {rule.name!r} has no review date", "add review: YYYY-MM-DD")


def intervals(context: LintContext) -> Iterator[Finding]:
    """Yield rules that downsample tables without series or parts of tables, or whose interval does not divide a day."""
    for rule in context.sources.rules:
        if rule.interval_s is None:
            continue
        if _DAY_S % rule.interval_s:
            hint = "take one that divides a day, such as 1m, 5m, 1h or 1d"
            yield Finding("RP025", rule.at, f"intervals of {rule.interval_s:,} s do not divide a day", hint)
        if rule.row_keys:
            hint = f"leave {', '.join(rule.row_keys)} out of where"
            yield Finding("RP025", rule.at, "whole tables are downsampled, not some of their rows", hint)
        elif not any(contract.series for contract in context.contracts.values() if rule.may_match(contract)):
            tables = ", ".join(sorted(contract.table for contract in context.contracts.values() if contract.series))
            message = f"no table of rule {rule.name!r} can be downsampled: no contract says what its series are"
            yield Finding("RP025", rule.at, message, f"name one of {tables}")


def unknown_regions(context: LintContext) -> Iterator[Finding]:
    """Yield rules for a region if no region is configured."""
    for rule in context.sources.rules:
        if rule.region and not context.region:
            message = f"rule {rule.name!r} is for the region {rule.region!r}, and no region is configured"
            yield Finding("RP022", rule.at, message, "set region under [retention] in ranklake.toml")


def repeated_names(context: LintContext) -> Iterator[Finding]:
    """Yield rules with the name of an earlier rule."""
    first: dict[str, Place] = {}
    for rule in context.sources.rules:
        if rule.name in first:
            message = f"rule {rule.name!r} stands in {first[rule.name]}, too"
            yield Finding("RP012", rule.at, message, "give one another name")
        first.setdefault(rule.name, rule.at)


def _place_of(context: LintContext, rule: Rule, key: str) -> Place:
    """Return file and line of one of a rule's selectors."""
    document = context.sources.documents[rule.at.file]
    return Place(rule.at.file, document.line(("rules", rule.name, "where", key)))


def archives(context: LintContext) -> Iterator[Finding]:
    """Yield rules that archive to an unusable place, or that select only tables that are always kept."""
    for rule in context.rules:
        place = rule.destination
        if place is None:
            continue
        at = _archive_place(context, rule)
        if fault := place_fault(place.to):
            hint = "write a URI or an absolute path; credentials belong under [storage], as references"
            yield Finding("RP026", at, f"rule {rule.name!r} cannot archive there: {fault}", hint)
        elif (place.storage_class or place.tag) and not has_classes(place.to):
            hint = "leave storage_class and tag out, or archive to s3://"
            yield Finding("RP026", at, "only S3 has storage classes and tags here", hint)
        tables = [contract for contract in context.contracts.values() if rule.may_match(contract)]
        if tables and all(table.retention in KEPT for table in tables):
            message = f"rule {rule.name!r} archives nothing but the books, which stay in the lake"
            yield Finding("RP026", at, message, "name other tables, or leave archive out")


def late_masks(context: LintContext) -> Iterator[Finding]:
    """Yield rules that archive rows before another rule masks them, so that the archive has the unmasked values."""
    masking = [rule for rule in context.rules if "mask" in rule.action_days]
    archiving = [rule for rule in context.rules if rule.destination is not None]
    for rule, mask in product(archiving, masking):
        if mask.action_days["mask"] <= rule.action_days["archive"]:
            continue
        contracts = context.contracts.values()
        shared = [contract for contract in contracts if rule.may_match(contract) and mask.may_match(contract)]
        if shared:
            message = f"rule {rule.name!r} archives {shared[0].table} before {mask.name!r} masks it: values stay there"
            yield Finding("RP027", _archive_place(context, rule), message, "mask earlier, or archive later")


def _archive_place(context: LintContext, rule: Rule) -> Place:
    document = context.sources.documents[rule.at.file]
    return Place(rule.at.file, document.line(("rules", rule.name, "archive")))


CHECKS: Final[tuple[Callable[[LintContext], Iterator[Finding]], ...]] = (
    *(unknown_names, empty_rules, permanent_classes, unlimited_rules, unmaskable_columns, unmatched_rules),
    *(long_periods, overdue_reviews, undated_rules, intervals, unknown_regions, repeated_names, archives, late_masks),
    *(conflicts.bounds, conflicts.duplicate_rules, conflicts.shadowed_rules, conflicts.late_actions),
    *(conflicts.long_lived_rules, conflicts.demands),
)


def lint(sources: "Sources", contracts: "Mapping[str, Contract]", region: str, today: "date") -> list[Finding]:
    """Return all mistakes in policies, by file and line."""
    context = LintContext(sources, in_region(sources.rules, region), contracts, region, today)
    findings = [*sources.findings, *(finding for check in CHECKS for finding in check(context))]
    if not any(finding.error for finding in findings):  # an error may itself cause a gap
        findings += _gaps(context)
    order = {path: place for place, path in enumerate(sources.documents)}
    return sorted(findings, key=lambda finding: (order.get(finding.at.file, -1), finding.at.line, finding.code))


def in_region(rules: tuple[Rule, ...], region: str) -> tuple[Rule, ...]:
    """Return the rules that apply in a region."""
    return tuple(rule for rule in rules if rule.region in {"", region})


def _gaps(context: LintContext) -> Iterator[Finding]:
    """Yield retention classes of tables for which no rule sets a period."""
    covering = [rule for rule in context.rules if rule.deletes and not rule.row_keys]
    uncovered_tables: dict[str, list[str]] = {}
    for contract in context.contracts.values():
        if not any(rule.may_match(contract) for rule in covering):
            uncovered_tables.setdefault(contract.retention, []).append(contract.table)
    file, document = next(iter(context.sources.documents.items()))
    at = Place(file, document.line(("rules",)))
    for name, tables in sorted(uncovered_tables.items()):
        hint = f"add {name}: …, a rule with where: {{class: {name}}}"
        yield Finding("RP008", at, f"no policy for the retention class {name!r} ({', '.join(tables)})", hint)

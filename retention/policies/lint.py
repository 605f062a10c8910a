"""Lint: all that is wrong with policies, each with its line and what to do about it.

    files ──read.py──▶ rules ──statements.py──▶ what is wrong with each ──conflicts.py──▶ what they say of each other

Policies with errors cannot be used; warnings should be looked at
(`ranklake.retention.policies.findings`).
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ranklake.retention.policies import conflicts, statements
from ranklake.retention.policies.conflicts import demands
from ranklake.retention.policies.findings import Finding
from ranklake.retention.policies.model import KEPT, Place, Rule, has_classes, place_fault
from ranklake.retention.policies.read import LintContext

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.policies.read import Sources


def archives(context: LintContext) -> Iterator[Finding]:
    """Yield archives at unusable places, and rules that archive accounting tables alone."""
    for rule in context.rules:
        place = rule.destination
        if place is None:
            continue
        at = _at(context, rule)
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
    """Yield masks that come after rows were archived: the archive keeps the values."""
    masking = [rule for rule in context.rules if "mask" in rule.waiting]
    for rule in (one for one in context.rules if one.destination is not None):
        for mask in masking:
            both = [
                contract
                for contract in context.contracts.values()
                if rule.may_match(contract) and mask.may_match(contract)
            ]
            if both and mask.waiting["mask"] > rule.waiting["archive"]:
                message = (
                    f"rule {rule.name!r} archives {both[0].table} before {mask.name!r} masks it: values stay there"
                )
                yield Finding("RP027", _at(context, rule), message, "mask earlier, or archive later")


def _at(context: LintContext, rule: Rule) -> Place:
    document = context.sources.documents[rule.at.file]
    return Place(rule.at.file, document.line(("rules", rule.name, "archive")))


CHECKS: Final[tuple[Callable[[LintContext], Iterator[Finding]], ...]] = (
    *(statements.names, statements.empty_rules, statements.permanent, statements.unlimited_rules, statements.masks),
    *(
        statements.unmatched_rules,
        statements.periods,
        statements.reviews,
        statements.undated_files,
        statements.intervals,
    ),
    *(statements.regions, statements.doubles),
    *(archives, late_masks),
    *(
        conflicts.bounds,
        conflicts.duplicate_rules,
        conflicts.shadowed_rules,
        conflicts.too_late,
        conflicts.outlived_rules,
    ),
    demands,
)


def lint(sources: "Sources", contracts: "Mapping[str, Contract]", region: str, today: "date") -> list[Finding]:
    """Return all that is wrong, by file and line."""
    context = LintContext(sources, in_region(sources.rules, region), contracts, region, today)
    findings = [*sources.findings, *(one for check in CHECKS for one in check(context))]
    if not any(one.error for one in findings):  # a mistake leaves a gap, too: gaps are reported only without mistakes
        findings += _gaps(context)
    order = {path: place for place, path in enumerate(sources.documents)}
    return sorted(findings, key=lambda finding: (order.get(finding.at.file, -1), finding.at.line, finding.code))


def in_region(rules: tuple[Rule, ...], region: str) -> tuple[Rule, ...]:
    """Return the rules that apply in a region."""
    return tuple(rule for rule in rules if rule.region in {"", region})


def _gaps(context: LintContext) -> Iterator[Finding]:
    """Yield retention classes without a rule that deletes their rows."""
    covering = [rule for rule in context.rules if rule.deletes and not rule.row_keys]
    open_tables: dict[str, list[str]] = {}
    for contract in context.contracts.values():
        if not any(rule.may_match(contract) for rule in covering):
            open_tables.setdefault(contract.retention, []).append(contract.table)
    file, document = next(iter(context.sources.documents.items()))
    at = Place(file, document.line(("rules",)))
    for name, tables in sorted(open_tables.items()):
        hint = f"add {name}: …, a rule with where: {{class: {name}}}"
        yield Finding("RP008", at, f"no policy for the retention class {name!r} ({', '.join(tables)})", hint)

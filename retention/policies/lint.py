"""Lint: all that is wrong with policies, each with its line and what to do about it.

    files ──read.py──▶ rules ──statements.py──▶ what is wrong with each ──conflicts.py──▶ what they say of each other

Errors are what the policies cannot be used with; warnings are what somebody should look at
(`ranklake.retention.policies.findings`).
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ranklake.retention.policies import conflicts, statements
from ranklake.retention.policies.conflicts import demands
from ranklake.retention.policies.findings import Finding
from ranklake.retention.policies.model import KEPT, Place, Rule, has_classes, place_fault
from ranklake.retention.policies.read import Look

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.policies.read import Sources


def archives(look: Look) -> Iterator[Finding]:
    """Yield archives that cannot be, and the books, which nothing archives."""
    for rule in look.rules:
        place = rule.destination
        if place is None:
            continue
        at = _at(look, rule)
        if fault := place_fault(place.to):
            hint = "write a URI or an absolute path; credentials belong under [storage], as references"
            yield Finding("RP026", at, f"rule {rule.name!r} cannot archive there: {fault}", hint)
        elif (place.storage_class or place.tag) and not has_classes(place.to):
            hint = "leave storage_class and tag out, or archive to s3://"
            yield Finding("RP026", at, "only S3 has storage classes and tags here", hint)
        tables = [one for one in look.contracts.values() if rule.may_match(one)]
        if tables and all(one.retention in KEPT for one in tables):
            what = f"rule {rule.name!r} archives nothing but the books, which stay in the lake"
            yield Finding("RP026", at, what, "name other tables, or leave archive out")


def unmasked(look: Look) -> Iterator[Finding]:
    """Yield masks that come after rows were archived: the archive keeps the values."""
    masking = [rule for rule in look.rules if "mask" in rule.waiting]
    for rule in (one for one in look.rules if one.destination is not None):
        for mask in masking:
            both = [one for one in look.contracts.values() if rule.may_match(one) and mask.may_match(one)]
            if both and mask.waiting["mask"] > rule.waiting["archive"]:
                what = f"rule {rule.name!r} archives {both[0].table} before {mask.name!r} masks it: values stay there"
                yield Finding("RP027", _at(look, rule), what, "mask earlier, or archive later")


def _at(look: Look, rule: Rule) -> Place:
    document = look.sources.documents[rule.at.file]
    return Place(rule.at.file, document.line(("rules", rule.name, "archive")))


CHECKS: Final[tuple[Callable[[Look], Iterator[Finding]], ...]] = (
    *(statements.names, statements.nothing_said, statements.books, statements.everything, statements.masks),
    *(statements.dead, statements.periods, statements.reviews, statements.unreviewed, statements.intervals),
    *(statements.regions, statements.doubles),
    *(archives, unmasked),
    *(conflicts.bounds, conflicts.twins, conflicts.shadowed, conflicts.too_late, conflicts.outlived),
    demands,
)


def lint(sources: "Sources", contracts: "Mapping[str, Contract]", region: str, today: "date") -> list[Finding]:
    """Return all that is wrong, by file and line."""
    look = Look(sources, in_region(sources.rules, region), contracts, region, today)
    found = [*sources.findings, *(one for check in CHECKS for one in check(look))]
    if not any(one.error for one in found):  # a gap is what a mistake leaves: it is told when there is no other
        found += _gaps(look)
    order = {path: place for place, path in enumerate(sources.documents)}
    return sorted(found, key=lambda one: (order.get(one.at.file, -1), one.at.line, one.code))


def in_region(rules: tuple[Rule, ...], region: str) -> tuple[Rule, ...]:
    """Return the rules that apply somewhere."""
    return tuple(rule for rule in rules if rule.region in {"", region})


def _gaps(look: Look) -> Iterator[Finding]:
    """Classes of which no rule says how long their rows are kept."""
    covering = [rule for rule in look.rules if rule.deletes and not rule.row_keys]
    open_tables: dict[str, list[str]] = {}
    for one in look.contracts.values():
        if not any(rule.may_match(one) for rule in covering):
            open_tables.setdefault(one.retention, []).append(one.table)
    file, document = next(iter(look.sources.documents.items()))
    at = Place(file, document.line(("rules",)))
    for name, tables in sorted(open_tables.items()):
        hint = f"add {name}: …, a rule with where: {{class: {name}}}"
        yield Finding("RP008", at, f"no policy for the retention class {name!r} ({', '.join(tables)})", hint)

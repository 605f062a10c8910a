"""Lint: all that is wrong with policies, each with its line and what to do about it.

    files ──read.py──▶ rules ──statements.py──▶ what is wrong with each ──conflicts.py──▶ what they say of each other

Errors are what the policies cannot be used with; warnings are what somebody should look at
(`ranklake.retention.rules.findings`).
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ranklake.retention.rules import archiving, conflicts, statements
from ranklake.retention.rules.demand_faults import demands
from ranklake.retention.rules.findings import Finding
from ranklake.retention.rules.look import Look
from ranklake.retention.rules.model import Place, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.rules.read import Sources

CHECKS: Final[tuple[Callable[[Look], Iterator[Finding]], ...]] = (
    *(statements.names, statements.nothing_said, statements.books, statements.everything, statements.masks),
    *(statements.dead, statements.periods, statements.reviews, statements.unreviewed, statements.intervals),
    *(statements.regions, statements.doubles),
    *(archiving.archives, archiving.unmasked),
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
    section = "classes" if "classes" in (document.content or ()) else "rules"
    at = Place(file, document.line((section,)))
    for name, tables in sorted(open_tables.items()):
        hint = f"add {name}: …, a rule with where: {{class: {name}}}"
        yield Finding("RP008", at, f"no policy for the retention class {name!r} ({', '.join(tables)})", hint)

"""Policies: all rules and demands that apply to a lake, those of metrics past their sunset included."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit.trail import Entry, record_all
from ranklake.lake.rollups.life.register import lives
from ranklake.operator_files import raise_all
from ranklake.retention.policies.lint import in_region, lint
from ranklake.retention.policies.model import Demand, Place, Rule
from ranklake.retention.policies.read import PACKAGED, Finding, read_policies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class Policies:
    """All rules that apply to a lake.

    Attributes
    ----------
    rules
        In the order of their files.
    sha256
        Of the file's bytes; of a folder, of the names and bytes of its files.
    place
        The file or folder.
    grace_days
        How many days what plans take is kept, so that they can be cancelled; 0 for none.
    demands
        What the places of tables must be.
    """

    rules: tuple[Rule, ...]
    sha256: str
    place: Path
    grace_days: int = 0
    demands: tuple[Demand, ...] = ()

    def rule(self, name: str) -> Rule:
        """Return a rule by its name."""
        return next(rule for rule in self.rules if rule.name == name)

    def overdue_rules(self, today: date) -> tuple[Rule, ...]:
        """Return the rules whose review date has passed."""
        return tuple(rule for rule in self.rules if rule.review is not None and rule.review < today)


class PolicyError(RanklakeError):
    """Policies that cannot be used: ``file:line: what; hint``."""


def load_policies(contracts: "Mapping[str, Contract]", path: Path | None = None, region: str = "") -> Policies:
    """Read policies: the packaged folder, unless a file or folder is given, which replaces it whole.

    Parameters
    ----------
    contracts
        All tables: each must have a rule that says how long its rows are kept, and names that no table, class or column
        has are errors, since a misspelt one would keep data that should go.
    region
        Where the lake is: rules of other regions do not apply.

    Raises
    ------
    PolicyError
        The first error of `lint_policies`, with the rest as its `others`.
    """
    place = path or PACKAGED
    sources = read_policies(place)
    findings = lint(sources, contracts, region, datetime.now(UTC).date())
    raise_all(PolicyError(item.message, where=str(item.at), hint=item.hint) for item in findings if item.error)
    return Policies(in_region(sources.rules, region), sources.sha256, place, sources.grace_days, sources.demands)


def lint_policies(
    contracts: "Mapping[str, Contract]", path: Path | None = None, region: str = "", today: date | None = None
) -> list[Finding]:
    """Return all that is wrong with policies, by file and line; see `ranklake.retention.policies.lint`."""
    return lint(read_policies(path or PACKAGED), contracts, region, today or datetime.now(UTC).date())


ACTION: Final = "retention.review_overdue"


def record_overdue(lake: "Lake", policies: "Policies", by: str) -> "tuple[Rule, ...]":
    """Return the rules whose review date has passed; the trail gets a row for each, once for each date."""
    overdue = policies.overdue_rules(datetime.now(UTC).date())
    if overdue:
        entries = [
            Entry(by, ACTION, f"{rule.name} {rule.review}", None, {"policy_sha256": policies.sha256}, once=True)
            for rule in overdue
        ]
        record_all(lake, entries)
    return overdue


def overdue_line(rule: "Rule") -> str:
    """Return what to tell of a rule, in one line."""
    return f"{rule.at}: the review of rule {rule.name} was due on {rule.review} ({rule.owner})"


def with_sunset(policies: Policies, lake: "Lake") -> Policies:
    """Return policies with a rule for each metric that is sunset in a lake; the same ones where none is."""
    rules = tuple(sunset_rules(lake))
    return replace(policies, rules=(*policies.rules, *rules)) if rules else policies


def sunset_rules(lake: "Lake") -> Iterator[Rule]:
    """Yield a rule for each metric that is sunset: about rows under its name, and under others that it has.

    A column of a table is not such rows: it goes by a migration.
    """
    registry = lake.catalog.metrics()
    for name, life in lives(lake).items():
        if life.status != "sunset":
            continue
        known = registry.get(name)
        since = "" if life.since is None else f" since {life.since:%Y-%m-%d}"
        yield Rule(
            name=f"sunset {name}",
            where={"metric": tuple(map(glob.escape, (name, *(known.aka if known else ()))))},
            owner=known.owner if known else "",
            reason=f"The metric {name} is sunset{since}: nobody needs its rows.",
            basis="What nobody needs is not kept; 'ranklake metric sunset' is in the audit trail.",
            at=Place(Path(f"ranklake metric show {name}"), 0),
            deletes=True,
            delete_after_days=0,
        )

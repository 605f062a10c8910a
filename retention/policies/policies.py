"""Policies: all rules and demands that apply to a lake, including rules for metrics that are sunset."""

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
        The rules in the order of their files.
    sha256
        Digest of the file's bytes; for a folder, of the names and bytes of its files.
    place
        The file or folder.
    grace_days
        For how many days applied plans can be cancelled; 0 for none.
    demands
        Requirements for the buckets of tables.
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
    """A mistake that makes the policies unusable, as ``file:line: message; hint``."""


def load_policies(contracts: "Mapping[str, Contract]", path: Path | None = None, region: str = "") -> Policies:
    """Read policies from a file or folder, or the packaged ones if no path is given.

    Parameters
    ----------
    contracts
        Contracts of all tables, by table. Each table must have a rule with a period. Unknown names of tables, classes
        and columns are errors, since a misspelt name would keep data that should be deleted.
    region
        Region of the lake. Rules of other regions are left out.

    Raises
    ------
    PolicyError
        The first error of `lint_policies`; its attribute `others` has the rest.
    """
    place = path or PACKAGED
    sources = read_policies(place)
    findings = lint(sources, contracts, region, datetime.now(UTC).date())
    raise_all(PolicyError(item.message, where=str(item.at), hint=item.hint) for item in findings if item.error)
    return Policies(in_region(sources.rules, region), sources.sha256, place, sources.grace_days, sources.demands)


def lint_policies(
    contracts: "Mapping[str, Contract]", path: Path | None = None, region: str = "", today: date | None = None
) -> list[Finding]:
    """Return all mistakes in policies, by file and line; see `ranklake.retention.policies.lint`."""
    return lint(read_policies(path or PACKAGED), contracts, region, today or datetime.now(UTC).date())


ACTION: Final = "retention.review_overdue"


def record_overdue(lake: "Lake", policies: "Policies", by: str) -> "tuple[Rule, ...]":
    """Return the rules whose review date has passed. Adds one row per rule and review date to the audit log."""
    overdue = policies.overdue_rules(datetime.now(UTC).date())
    if overdue:
        entries = [
            Entry(by, ACTION, f"{rule.name} {rule.review}", None, {"policy_sha256": policies.sha256}, once=True)
            for rule in overdue
        ]
        record_all(lake, entries)
    return overdue


def overdue_line(rule: "Rule") -> str:
    """Return a line that reports a rule's overdue review."""
    return f"{rule.at}: the review of rule {rule.name} was due on {rule.review} ({rule.owner})"


def with_sunset(policies: Policies, lake: "Lake") -> Policies:
    """Return policies with an additional rule for each metric that is sunset in a lake."""
    rules = tuple(sunset_rules(lake))
    return replace(policies, rules=(*policies.rules, *rules)) if rules else policies


def sunset_rules(lake: "Lake") -> Iterator[Rule]:
    """Yield a rule for each sunset metric, which selects rows under the metric's name and its other names.

    A metric that is a column of a table needs a migration instead.
    """
    registry = lake.catalog.metrics()
    for name, life in lives(lake).items():
        if life.status != "sunset":
            continue
        metric = registry.get(name)
        since = "" if life.since is None else f" since {life.since:%Y-%m-%d}"
        yield Rule(
            name=f"sunset {name}",
            where={"metric": tuple(map(glob.escape, (name, *(metric.aka if metric else ()))))},
            owner=metric.owner if metric else "",
            reason=f"The metric {name} is sunset{since}: nobody needs its rows.",
            basis="What nobody needs is not kept; 'ranklake metric sunset' is in the audit log.",
            at=Place(Path(f"ranklake metric show {name}"), 0),
            deletes=True,
            delete_after_days=0,
        )

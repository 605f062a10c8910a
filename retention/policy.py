"""Retention policies: which rules apply to a lake. Files are checked whole before any of them is used."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ranklake.errors import RanklakeError
from ranklake.retention.rules.findings import Finding
from ranklake.retention.rules.lint import in_region, lint
from ranklake.retention.rules.policies import Policies
from ranklake.retention.rules.read import PACKAGED, read_policies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract


class PolicyError(RanklakeError):
    """Policies that cannot be used: ``file:line: what; mend``."""


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
        The first error of `lint_policies`.
    """
    place = path or PACKAGED
    sources = read_policies(place)
    for one in (*sources.findings, *lint(sources, contracts, region, datetime.now(UTC).date())):
        if one.error:
            raise PolicyError(one.what, where=str(one.at), hint=one.hint)
    return Policies(in_region(sources.rules, region), sources.sha256, place, sources.grace_days, sources.demands)


def lint_policies(
    contracts: "Mapping[str, Contract]", path: Path | None = None, region: str = "", today: date | None = None
) -> list[Finding]:
    """Return all that is wrong with policies, by file and line; see `ranklake.retention.rules.lint`."""
    return lint(read_policies(path or PACKAGED), contracts, region, today or datetime.now(UTC).date())

"""The data-protection record: per table what is held, for what, how long, and who receives it.

All of it is from what is in force: contracts say what columns are and whom they are about, policies how long and on
what grounds, roles who sees them and how.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.retention.policies.model import table_facts
from ranklake.retention.policies.order import decide

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.retention.policies.policies import Policies

CLASSIFIED: Final = ("pseudonymous", "personal", "secret")
"""Classes of columns whose values are about somebody, or open something."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What is held in one table.

    Attributes
    ----------
    table, what, owner
        Which, what a row of it is, who answers for it.
    classes
        Columns by class, those whose values are about somebody.
    rule, period_days, purpose, basis
        The rule for rows that no other rule is about: its period (None: not deleted by time), why, on what grounds.
    recipients
        Roles that may ask the table, and what of those columns each sees as it is, masked, or not at all; and whose
        rows, where it is bound to teams.
    """

    table: str
    what: str
    owner: str
    classes: Mapping[str, tuple[str, ...]]
    rule: str
    period_days: int | None
    purpose: str
    basis: str
    recipients: Mapping[str, Mapping[str, tuple[str, ...]]]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def record(
    contracts: "Mapping[str, Contract]", policies: "Policies", roles: "Mapping[str, Role]"
) -> tuple[Activity, ...]:
    """Return what is held in each table that has columns about somebody, by name."""
    return tuple(_activity(one, policies, roles) for _, one in sorted(contracts.items()) if _classes(one))


def _classes(contract: "Contract") -> dict[str, tuple[str, ...]]:
    by_class = {name: tuple(column.name for column in contract.columns if column.class_ == name) for name in CLASSIFIED}
    return {name: columns for name, columns in by_class.items() if columns}


def _activity(contract: "Contract", policies: "Policies", roles: "Mapping[str, Role]") -> Activity:
    facts = table_facts(contract)
    made = decide(policies.rules, facts)
    rule = made.rule or next((one for one in policies.rules if one.matches(facts)), None)  # why books are kept
    purpose, basis = ("", "") if rule is None else (rule.reason, rule.basis)
    return Activity(
        contract.table,
        contract.summary,
        contract.owner,
        _classes(contract),
        made.decided_by,
        made.period_days,
        purpose,
        basis,
        {name: dict(_visible_columns(role, contract)) for name, role in roles.items() if role.sees(contract.table)},
    )


def _visible_columns(role: "Role", contract: "Contract") -> Iterator[tuple[str, tuple[str, ...]]]:
    sights = [sight for sight in role.sights(contract) if sight.column.class_ in CLASSIFIED]
    visible = {
        "rows of": sorted(role.teams),
        "seen": [one.column.name for one in sights if one.visibility == "seen"],
        "masked": [
            f"{one.column.name} ({one.visibility})" for one in sights if one.visibility not in {"seen", "hidden"}
        ],
        "hidden": [one.column.name for one in sights if one.visibility == "hidden"],
    }
    yield from ((how, tuple(names)) for how, names in visible.items() if names)


def markdown(record: tuple[Activity, ...], lake: str, policies: str) -> str:
    """Return a record as Markdown."""
    lines = ["# Data-protection record", "", f"Lake {lake}, under the policies {policies}.", ""]
    for activity in record:
        period = "not deleted by time" if activity.period_days is None else f"{activity.period_days:,} days"
        lines += [f"## {activity.table}", "", activity.what, "", f"- Owner: {activity.owner}"]
        lines += [f"- Data, {name}: {', '.join(columns)}" for name, columns in activity.classes.items()]
        lines += [f"- Kept: {period} (rule {activity.rule})"]
        lines += [f"- Purpose: {activity.purpose}"] if activity.purpose else []
        lines += [f"- Grounds: {activity.basis}"] if activity.basis else []
        for role, seen in activity.recipients.items():
            lines.append(f"- Recipient: role {role}: {_columns_line(seen)}")
        lines += [] if activity.recipients else ["- Recipients: no role; whoever may read the bucket"]
        lines.append("")
    return "\n".join(lines)


def _columns_line(seen: Mapping[str, tuple[str, ...]]) -> str:
    return "; ".join(f"{how} {', '.join(columns)}" for how, columns in seen.items())

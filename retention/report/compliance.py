"""The facts of the compliance page and of the data-protection record: who sees which data, by which grants and keys.

The data-protection record: per table what is held, for what, how long, and who receives it.

All of it is from what is in force: contracts say what columns are and whom they are about, policies how long and on
what grounds, roles who sees them and how.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ranklake.insight.runs.asking import QueriedFacts, Row, asking, sql_text
from ranklake.insight.runs.need import Need
from ranklake.lake.audit.chain import head_records
from ranklake.lake.store.posture import Posture
from ranklake.retention.grants.grant import register
from ranklake.retention.grants.use import Access, accesses
from ranklake.retention.plans.mask_proof import Proof
from ranklake.retention.policies.model import table_facts
from ranklake.retention.policies.order import decide
from ranklake.retention.report.facts import policies_name
from ranklake.retention.report.placement import DIFFERS, UNKNOWN, KeyAge, Verdict, key_ages, places, verdicts

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
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


@dataclass(frozen=True, slots=True)
class Compliance:
    """What a compliance officer should know.

    Attributes
    ----------
    lake, policies
        Last part of its location; which policies.
    roles, no_roles
        Names of the roles, and why there are none.
    needs
        What needs a look.
    columns
        Classified columns of every table, and how each role sees them.
    unmasked
        How many pairs of a role and a classified column there are in which its values are seen as they are.
    grants
        By role: the teams whose rows it sees, how many are in force, how often and when last they were used. No names.
    trail, anchors
        The audit trail; the places of its heads, and how many rows the last head there covers.
    keys, places
        Which keys are configured, by reference; how the places of tables are encrypted, and where they are.
    demands
        What policies demand of those, and what it came to.
    proofs, no_proofs
        What samples show of masked columns; why none were looked at, empty where they were.
    record
        The data-protection record.
    """

    lake: str
    policies: str
    roles: tuple[str, ...]
    no_roles: str
    needs: tuple[Need, ...]
    columns: tuple[Row, ...]
    unmasked: int
    grants: tuple[Row, ...]
    trail: QueriedFacts
    anchors: tuple[Row, ...]
    keys: tuple[Row, ...]
    places: tuple[Posture, ...]
    demands: tuple[Verdict, ...]
    proofs: tuple[Proof, ...]
    no_proofs: str
    record: tuple[Activity, ...]


def compliance(
    lake: "Lake",
    policies: "Policies",
    roles: "Mapping[str, Role]",
    no_roles: str,
    references: Mapping[str, str],
    spool: "Store | None" = None,
    *,
    proofs: Sequence[Proof] = (),
    no_proofs: str = "",
) -> Compliance:
    """Return the state of compliance; `references` are those to keys, by setting. Reads, and writes nothing.

    Parameters
    ----------
    spool
        The place of the spool, if there is one.
    proofs, no_proofs
        What samples show of masked columns; why none were looked at.

    Raises what queries and the audit trail's places raise.
    """
    now = datetime.now(UTC)
    contracts = lake.contracts()
    rows = tuple(_columns(contracts, roles))
    access, known = accesses(lake), register(lake)
    grants = tuple(_grants(sorted({*roles, *(one.role for one in known.values())}), roles, access))
    anchors = tuple(_anchors(lake))
    needs = [
        Need(
            "warning",
            f"A grant of role {one.grant.role} needs a look: {one.grant.name}",
            remark,
            "ranklake grants review",
        )
        for one in access
        for remark in one.remarks
    ]
    held = places(lake.tables, contracts, spool)
    demands = tuple(verdicts(policies.demands, held, contracts))
    needs += [
        Need("warning", f"{demand.demand}: {demand.what} of {demand.place} is {demand.state}", demand.text, demand.hint)
        for demand in demands
        if demand.state in {DIFFERS, UNKNOWN}
    ]
    needs += [
        Need("failing", f"{proof.table}.{proof.column} holds values in clear", proof.problem, proof.hint)
        for proof in proofs
        if proof.status == "unmasked"
    ]
    seen = sum(row[name] == "seen" for row in rows for name in roles)
    return Compliance(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        policies=policies_name(policies),
        roles=tuple(roles),
        no_roles=no_roles,
        needs=tuple(needs),
        columns=rows,
        unmasked=seen,
        grants=grants,
        trail=asking(lake)(sql_text("ranklake.retention.report", "trail")),
        anchors=anchors,
        keys=tuple(_keys(references, {key_age.setting: key_age for key_age in key_ages(lake, now)})),
        places=tuple(one.posture for one in held),
        demands=demands,
        proofs=tuple(proofs),
        no_proofs=no_proofs,
        record=record(contracts, policies, roles),
    )


def _columns(contracts: "Mapping[str, Contract]", roles: "Mapping[str, Role]") -> Iterator[Row]:
    for contract in contracts.values():
        roles_by_column = {
            name: {sight.column.name: sight.visibility for sight in role.sights(contract)}
            for name, role in roles.items()
        }
        for column in contract.columns:
            if column.class_ in CLASSIFIED:
                seen = {
                    name: roles_by_column[name][column.name] if role.sees(contract.table) else "no access"
                    for name, role in roles.items()
                }
                about = f"{contract.table}.{column.name}"
                yield {"about": about, "class": column.class_, "mask": column.mask or "by class", **seen}


def _grants(names: list[str], roles: "Mapping[str, Role]", access: list[Access]) -> Iterator[Row]:
    for role in names:
        mine = [one for one in access if one.grant.role == role]
        yield {
            "role": role,
            "teams": _teams(roles[role]) if role in roles else "the role is gone",
            "grants": len(mine),
            "queries": sum(one.queries for one in mine),
            "last_used": max((one.last_used for one in mine if one.last_used is not None), default=None),
            "next_end": min((one.grant.until for one in mine), default=None),
            "to_review": sum(bool(one.remarks) for one in mine),
        }


def _teams(role: "Role") -> str:
    return ", ".join(sorted(role.teams)) or "all"


def _anchors(lake: "Lake") -> Iterator[Row]:
    for number, place in enumerate(head_records(lake)):
        yield {"place": "witness" if number else "beside the table", "rows": place.last().rows}


def _keys(references: Mapping[str, str], ages: Mapping[str, KeyAge]) -> Iterator[Row]:
    """Yield where keys are, without their places, and how old they are."""
    for setting, reference in references.items():
        age = ages.get(setting)
        if age is not None:
            by = age.by or age.unknown
            yield {"setting": setting, "kind": age.kind, "age_days": age.age_days, "by": by}
        else:
            kind = reference.partition(":")[0] if reference else "not configured"
            yield {"setting": setting, "kind": kind, "age_days": None, "by": "not read" if reference else ""}

"""Facts of the compliance page and of the data-protection record: who sees which data, with which grants and keys.

The data-protection record lists, for each table, its personal data, their purpose and period, and the recipients. It is
made from the contracts (columns and classes), the policies (periods and legal basis) and the roles (recipients).
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
"""Classes of columns with data about people, or with secrets."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The entry of one table in the data-protection record.

    Attributes
    ----------
    table, what, owner
        The table, a description of its rows, and its owner.
    classes
        Classified columns by class.
    rule, period_days, purpose, basis
        The rule for rows without a more specific one, with its period (None if rows are not deleted by age), reason and
        legal basis.
    recipients
        Roles that may query the table. For each, the classified columns by ``seen``, ``masked`` and ``hidden``, and the
        teams of its rows by ``rows of``, if it has teams.
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
    """Return the entries of all tables with classified columns, by name."""
    ordered = (contract for _, contract in sorted(contracts.items()))
    return tuple(_activity(contract, policies, roles) for contract in ordered if _classes(contract))


def _classes(contract: "Contract") -> dict[str, tuple[str, ...]]:
    by_class = {name: tuple(column.name for column in contract.columns if column.class_ == name) for name in CLASSIFIED}
    return {name: columns for name, columns in by_class.items() if columns}


def _activity(contract: "Contract", policies: "Policies", roles: "Mapping[str, Role]") -> Activity:
    facts = table_facts(contract)
    decision = decide(policies.rules, facts)
    rule = decision.rule or next((item for item in policies.rules if item.matches(facts)), None)
    purpose, basis = ("", "") if rule is None else (rule.reason, rule.basis)
    return Activity(
        contract.table,
        contract.summary,
        contract.owner,
        _classes(contract),
        decision.decided_by,
        decision.period_days,
        purpose,
        basis,
        {name: dict(_visible_columns(role, contract)) for name, role in roles.items() if role.sees(contract.table)},
    )


def _visible_columns(role: "Role", contract: "Contract") -> Iterator[tuple[str, tuple[str, ...]]]:
    sights = [sight for sight in role.sights(contract) if sight.column.class_ in CLASSIFIED]
    visible = {
        "rows of": sorted(role.teams),
        "seen": [sight.column.name for sight in sights if sight.visibility == "seen"],
        "masked": [
            f"{sight.column.name} ({sight.visibility})"
            for sight in sights
            if sight.visibility not in {"seen", "hidden"}
        ],
        "hidden": [sight.column.name for sight in sights if sight.visibility == "hidden"],
    }
    yield from ((how, tuple(names)) for how, names in visible.items() if names)


def markdown(record: tuple[Activity, ...], lake: str, policies: str) -> str:
    """Return the data-protection record as Markdown."""
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
    """The facts of the compliance page.

    Attributes
    ----------
    lake, policies
        Last part of the lake's location; name and digest of the policies.
    roles, no_roles
        Names of the roles, or the reason why there are none.
    needs
        Problems that need attention.
    columns
        Classified columns of all tables, and how each role sees them.
    unmasked
        Number of pairs of a role and a classified column that the role sees unmasked.
    grants
        By role: its teams, the number of grants in force, and their use. Without names of people.
    trail, anchors
        The audit log; the places of its heads, with the number of rows that the last head covers.
    keys, places
        The configured keys, by setting; the encryption and region of the places of tables.
    demands
        Results of the policies' demands on these places.
    proofs, no_proofs
        Results of the proof of masks; why it was not made, empty if it was.
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
    """Return the state of compliance. Writes nothing.

    Parameters
    ----------
    references
        References to keys, by setting.
    spool
        The place of the spool, if there is one.
    proofs, no_proofs
        Results of the proof of masks, or why it was not made.

    Raises the errors of queries and of the audit log's places.
    """
    now = datetime.now(UTC)
    contracts = lake.contracts()
    rows = tuple(_columns(contracts, roles))
    access = accesses(lake)
    role_names = sorted({*roles, *(grant.role for grant in register(lake).values())})
    grants = tuple(_grants(role_names, roles, access))
    anchors = tuple(_anchors(lake))
    needs = [
        Need(
            "warning",
            f"A grant of role {use.grant.role} needs a look: {use.grant.name}",
            remark,
            "ranklake grants review",
        )
        for use in access
        for remark in use.remarks
    ]
    storage_places = places(lake.tables, contracts, spool)
    demands = tuple(verdicts(policies.demands, storage_places, contracts))
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
    unmasked = sum(row[name] == "seen" for row in rows for name in roles)
    return Compliance(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        policies=policies_name(policies),
        roles=tuple(roles),
        no_roles=no_roles,
        needs=tuple(needs),
        columns=rows,
        unmasked=unmasked,
        grants=grants,
        trail=asking(lake)(sql_text("ranklake.retention.report", "trail")),
        anchors=anchors,
        keys=tuple(_keys(references, {key_age.setting: key_age for key_age in key_ages(lake, now)})),
        places=tuple(place.posture for place in storage_places),
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
        of_role = [use for use in access if use.grant.role == role]
        yield {
            "role": role,
            "teams": _teams(roles[role]) if role in roles else "the role is gone",
            "grants": len(of_role),
            "queries": sum(use.queries for use in of_role),
            "last_used": max((use.last_used for use in of_role if use.last_used is not None), default=None),
            "next_end": min((use.grant.until for use in of_role), default=None),
            "to_review": sum(bool(use.remarks) for use in of_role),
        }


def _teams(role: "Role") -> str:
    return ", ".join(sorted(role.teams)) or "all"


def _anchors(lake: "Lake") -> Iterator[Row]:
    for number, place in enumerate(head_records(lake)):
        yield {"place": "witness" if number else "beside the table", "rows": place.last().rows}


def _keys(references: Mapping[str, str], ages: Mapping[str, KeyAge]) -> Iterator[Row]:
    """Yield the kind of place and the age of each key, without the place itself."""
    for setting, reference in references.items():
        age = ages.get(setting)
        if age is not None:
            by = age.by or age.unknown
            yield {"setting": setting, "kind": age.kind, "age_days": age.age_days, "by": by}
        else:
            kind = reference.partition(":")[0] if reference else "not configured"
            yield {"setting": setting, "kind": kind, "age_days": None, "by": "not read" if reference else ""}

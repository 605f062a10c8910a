"""Facts of the governance page, including waiting proposals, each with its SQL or the command that shows it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ranklake.insight.runs.asking import Ask, QueriedFacts, Row, asking, sql_text
from ranklake.insight.runs.need import ORDER, Need
from ranklake.lake.audit import clock
from ranklake.lake.query.literal import literal
from ranklake.retention.archive.rehydration import REHYDRATIONS
from ranklake.retention.grants.grant import GRANTS, Grant
from ranklake.retention.holds.hold import HOLD_RELEASES
from ranklake.retention.holds.holds import holds_of
from ranklake.retention.plans.alerts import Outlook, alerts
from ranklake.retention.plans.forecast import growth, simulate
from ranklake.retention.plans.plan import due, held_rows
from ranklake.retention.policies.parts import Parts
from ranklake.retention.policies.policies import PolicyError
from ranklake.retention.policies.read import PACKAGED
from ranklake.retention.proposals.approvals import approval_status
from ranklake.retention.proposals.cancellations import CANCELLATIONS
from ranklake.retention.proposals.erasures import ERASURES
from ranklake.retention.proposals.migrations import MIGRATIONS
from ranklake.retention.proposals.proposals import Actions, AnyKind, Proposal, recorded_actions
from ranklake.retention.proposals.releases import RELEASES
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS, RetentionPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.policies.policies import Policies


KINDS: Final[tuple[AnyKind, ...]] = (
    *(RETENTION_PLANS, CANCELLATIONS, ERASURES, HOLD_RELEASES, REHYDRATIONS, RELEASES, GRANTS, MIGRATIONS),
)
"""All kinds of proposals; `tests/retention/test_governance_page.py` checks that none is missing."""
_EFFECTIVE_WHEN_APPROVED: Final = (HOLD_RELEASES, GRANTS, REHYDRATIONS)
"""Kinds that take effect with the approval and are not applied."""
_ALWAYS_LISTED: Final = (HOLD_RELEASES, CANCELLATIONS)
"""Kinds whose register lists possible proposals, too. Only those with an author wait."""


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """A proposal that waits for a person.

    Attributes
    ----------
    noun, name
        Its kind and name.
    since
        When it was proposed, or approved if it waits for its application; None if unknown.
    lacking
        What is missing, in words.
    next_step
        The command for the next step.
    """

    noun: str
    name: str
    since: datetime | None
    lacking: str
    next_step: str


def waiting(lake: "Lake") -> list[WaitingProposal]:
    """Return the waiting proposals, the oldest first. Of unapproved retention plans only the last one waits."""
    proposals = [proposal for kind in KINDS for proposal in _of_kind(lake, kind)]
    return sorted(proposals, key=lambda proposal: (proposal.since is not None, proposal.since, proposal.name))


def _of_kind(lake: "Lake", kind: AnyKind) -> Iterator[WaitingProposal]:
    proposals = list(kind.register(lake).values())
    trail = recorded_actions(lake.tables, kind) if proposals else Actions()
    for proposal in proposals:
        proposed = trail.get(proposal.name, {}).get(kind.propose, [])
        if _is_over(kind, proposal, proposals) or (kind in _ALWAYS_LISTED and not proposed):
            continue
        since = proposal.proposed or (proposed[0].ts if proposed else None)
        if not proposal.intact:
            yield WaitingProposal(
                kind.noun, proposal.name, since, "its items were altered", f"{kind.made_by}, and look into it"
            )
        elif proposal.approved is None:
            lacking = (
                approval_status(lake, kind, proposal, trail, clock.now()).lacking
                or "its approval is to be written down"
            )
            yield WaitingProposal(
                kind.noun, proposal.name, since, lacking, _command(kind, kind.to_approve(_argument(proposal)))
            )
        elif kind not in _EFFECTIVE_WHEN_APPROVED:
            command = _command(kind, kind.to_apply(proposal.name))
            yield WaitingProposal(kind.noun, proposal.name, proposal.approved, "nobody applied it", command)


def _is_over(kind: AnyKind, proposal: Proposal, proposals: list[Proposal]) -> bool:
    """Return whether a proposal needs no further step."""
    now = clock.now()
    if proposal.applied is not None or (proposal.expires is not None and proposal.expires <= now):
        return True
    if isinstance(proposal, Grant) and (
        proposal.revoked is not None or proposal.until <= now or proposal.is_break_glass
    ):
        return True
    if kind in _EFFECTIVE_WHEN_APPROVED and proposal.approved is not None:
        return True
    if isinstance(proposal, RetentionPlan) and proposal.overtaken_by:
        return True
    return kind is RETENTION_PLANS and proposal.approved is None and proposal is not proposals[-1]


def _command(kind: AnyKind, command: str) -> str:
    return command.replace(kind.command, "ranklake grants", 1) if kind is GRANTS else command


def _argument(proposal: Proposal) -> str:
    return getattr(proposal, "hold", proposal.name)


_HERE: Final = "ranklake.retention.report"
_MOST: Final = 100
NO_CATALOG: Final = "the catalog was never refreshed; run 'ranklake catalog refresh'"


@dataclass(frozen=True, slots=True)
class Governance:
    """The facts of the governance page.

    Attributes
    ----------
    lake, today, policies
        Last part of the lake's location; the UTC date of all facts; name and digest of the policies.
    needs
        Problems that need attention, worst first.
    totals, tables, owners, teams
        Stored data: in total, by table with the policies' periods, by owner, by team of the runs.
    rules, due, waiting
        The rules, the rows that a plan of today would remove by table, and waiting proposals.
    undecided
        Why it is unknown what is due; empty if it is known.
    holds, rows_held, erasures, removals
        Legal holds, rows past their period that holds keep, erasures and applied retention plans.
    grace
        Applied plans that can be cancelled, with the end of their days of grace.
    backups
        Attempts of backups and drills, the latest first.
    archives, downsampled
        Archived rows, and rows that became aggregates.
    costs
        Current size, daily growth and forecast of tables.
    """

    lake: str
    today: date
    policies: str
    needs: tuple[Need, ...]
    totals: QueriedFacts
    tables: QueriedFacts
    owners: QueriedFacts
    teams: QueriedFacts
    rules: tuple[Row, ...]
    due: tuple[Row, ...]
    undecided: str
    waiting: tuple[WaitingProposal, ...]
    holds: QueriedFacts
    rows_held: int
    erasures: QueriedFacts
    removals: QueriedFacts
    grace: QueriedFacts
    backups: QueriedFacts
    archives: QueriedFacts
    downsampled: QueriedFacts
    costs: tuple[Row, ...]

    @property
    def rows_due(self) -> int | None:
        """Rows that a plan of today would remove; None if unknown."""
        return None if self.undecided else sum(row["rows"] for row in self.due)

    @property
    def reviews_overdue(self) -> int:
        """Rules whose review date has passed."""
        return sum(row["review_state"] == "overdue" for row in self.rules)


def governance(lake: "Lake", policies: "Policies", today: date) -> Governance:
    """Return the state of governance on a day. Writes nothing.

    Raises the errors of queries, and `ranklake.lake.store.ssh_signatures.SignersError`.
    """
    ask, contracts = asking(lake), lake.contracts()
    holds = tuple(hold.name for hold in holds_of(lake, today))
    rules = tuple(_rules(policies, today))
    due_rows, undecided = _due(lake, contracts, policies, today)
    proposals = tuple(waiting(lake))
    erasures, grace, backups = (_ask_sql(ask, name, most=str(_MOST)) for name in ("erasures", "grace", "backups"))
    table_costs, cost_needs = costs(lake, contracts, policies, today)
    needs = [*_needs_of_rules(rules, undecided), *cost_needs, *_needs_of_erasures(erasures.rows)]
    needs += [*_needs_of_waiting(proposals), *_needs_of_due(due_rows, proposals), *_needs_of_grace(grace.rows, today)]
    needs += _needs_of_backups(backups.rows)
    needs.sort(key=lambda need: ORDER.index(need.state))
    return Governance(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        today=today,
        policies=policies_name(policies),
        needs=tuple(needs),
        totals=_ask_sql(ask, "totals"),
        tables=_ask_sql(ask, "tables", today=today.isoformat(), policies=_values(lake, contracts, policies)),
        owners=_ask_sql(ask, "owners"),
        teams=_ask_sql(ask, "teams", most=str(_MOST)),
        rules=rules,
        due=due_rows,
        undecided=undecided,
        waiting=proposals,
        holds=_ask_sql(ask, "holds", names=", ".join(map(literal, holds)) or "''"),
        rows_held=0 if undecided else sum(held_rows(lake, contracts, policies, today).values()),
        erasures=erasures,
        removals=_ask_sql(ask, "removals", most=str(_MOST)),
        grace=grace,
        backups=backups,
        archives=_ask_sql(ask, "archives", most=str(_MOST)),
        downsampled=_ask_sql(ask, "downsampled", most=str(_MOST)),
        costs=table_costs,
    )


def policies_name(policies: "Policies") -> str:
    """Return the name and digest of policies, without their folder."""
    name = "that come with ranklake" if policies.place == PACKAGED else f"of {policies.place.name}"
    return f"{name} (SHA-256 {policies.sha256[:12]}…)"


def _ask_sql(ask: Ask, name: str, **fills: str) -> QueriedFacts:
    return ask(sql_text(_HERE, name).format(**fills))


def _values(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies") -> str:
    """Return a row of SQL values for each table: its name, the rule, the period, and the longest period of any row."""
    rows = []
    for contract in contracts.values():
        parts = Parts(lake, contract, policies.rules, (), {})
        decision = parts.of_table()
        longest = parts.periods()[1] if parts.columns else decision.period_days
        numbers = ("CAST(NULL AS INT)" if days is None else str(days) for days in (decision.period_days, longest))
        rows.append(f"({literal(contract.table)}, {literal(decision.decided_by)}, {', '.join(numbers)})")
    return ",\n  ".join(rows)


def _rules(policies: "Policies", today: date) -> Iterator[Row]:
    overdue = policies.overdue_rules(today)
    for rule in sorted(policies.rules, key=lambda rule: (rule not in overdue, rule.review or date.max)):
        about = "; ".join(f"{key} {', '.join(texts)}" for key, texts in rule.where.items())
        says = [
            *([f"delete after {rule.delete_after_days:,} days"] if rule.delete_after_days is not None else []),
            *(["keep"] if rule.deletes and rule.delete_after_days is None else []),
            *([f"at least {rule.minimum_days:,} days"] if rule.minimum_days is not None else []),
            *([f"at most {rule.maximum_days:,} days"] if rule.maximum_days is not None else []),
            *(f"{action} after {days:,} days" for action, days in rule.action_days.items()),
        ]
        yield {
            "rule": rule.name,
            "review_state": "overdue" if rule in overdue else "none" if rule.review is None else "ahead",
            "review": rule.review,
            "owner": rule.owner,
            "about": about or "everything",
            "says": ", ".join(says),
            "budget_bytes": rule.budget_bytes,
            "basis": rule.basis,
            "at": rule.at.short,
        }


def _due(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> tuple[tuple[Row, ...], str]:
    """Return what a plan of today would remove, by table; and why that is unknown, empty if it is known."""
    try:
        partitions = due(lake, contracts, policies, today)
        items = sorted((partition.item for partition in partitions), key=lambda item: item.table)
    except PolicyError as error:
        return (), error.what
    return tuple(
        {
            "table": table,
            "partitions": len(group),
            "first_date": min(item.partition_date for item in group),
            "last_date": max(item.partition_date for item in group),
            "rows": sum(item.rows for item in group),
            "bytes": sum(item.bytes for item in group),
            "rules": ", ".join(sorted({item.rule or "" for item in group})),
        }
        for table, grouped in groupby(items, key=lambda item: item.table)
        for group in [list(grouped)]
    ), ""


def _needs_of_rules(rules: tuple[Row, ...], undecided: str) -> Iterator[Need]:
    if undecided:
        yield Need("failing", "Nothing is planned under these policies", undecided, "ranklake retain lint")
    for row in rules:
        if row["review_state"] == "overdue":
            detail = f"was due on {row['review']}; {row['owner']} answers for it"
            yield Need("warning", f"The review of rule {row['rule']} is overdue", detail, f"look at {row['at']}")


def _needs_of_erasures(rows: tuple[Row, ...]) -> Iterator[Need]:
    for row in rows:
        if row["applied"] is not None and row["certified"] is None:
            title, step = f"Erasure {row['erasure']} has no certificate", f"ranklake erase apply {row['erasure']}"
            yield Need("failing", title, f"its rows went on {row['applied']:%Y-%m-%d}; nothing proves the rest", step)
        elif row["details"] and '"is_clean": true' not in row["details"] and '"is_clean":true' not in row["details"]:
            title, step = (
                f"Erasure {row['erasure']} left something",
                f"ranklake erase certificate show {row['erasure']}",
            )
            yield Need("failing", title, "the search after it found values", step)


def _needs_of_waiting(proposals: tuple[WaitingProposal, ...]) -> Iterator[Need]:
    for proposal in proposals:
        since = "" if proposal.since is None else f"; since {proposal.since:%Y-%m-%d %H:%M} UTC"
        title = f"{proposal.noun.capitalize()} {proposal.name} waits"
        yield Need("warning", title, f"{proposal.lacking}{since}", proposal.next_step)


def _needs_of_due(due_rows: tuple[Row, ...], proposals: tuple[WaitingProposal, ...]) -> Iterator[Need]:
    rows, tables = sum(row["rows"] for row in due_rows), len(due_rows)
    if due_rows and not any(proposal.noun == "retention plan" for proposal in proposals):
        detail = f"{rows:,} rows of {tables:,} {'table' if tables == 1 else 'tables'} are older than their rules allow"
        yield Need("warning", "What is due is in no plan", detail, "ranklake retain plan")


def _needs_of_grace(rows: tuple[Row, ...], today: date) -> Iterator[Need]:
    for row in rows:
        if row["kept_until"].date() < today:
            detail = (
                f"its grace ended on {row['kept_until']:%Y-%m-%d}; upkeep did not run since, or a legal hold keeps it"
            )
            title = f"What retention plan {row['retention_plan']} took is there still"
            yield Need("warning", title, detail, "ranklake upkeep --dry-run")


def _needs_of_backups(rows: tuple[Row, ...]) -> Iterator[Need]:
    for row in rows:
        if row["latest"] == 1 and row["outcome"] == "failed":
            title, step = f"The last {row['kind']} failed: {row['place']}", f"ranklake {row['kind']} {row['place']}"
            yield Need("failing", title, row["reason"], step)


MONTHS = 12


def costs(
    lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies", today: date
) -> tuple[tuple[Row, ...], list[Need]]:
    """Return size, daily growth and forecast of each table, the largest first; and alerts with their fix."""
    tables, _, _ = growth(lake, contracts)
    forecasts = simulate(lake, contracts, policies, today, MONTHS)
    ends = {forecast.table: forecast.months[-1].bytes for forecast in forecasts}
    rows = tuple(
        {
            "table": table.name,
            "rows": table.rows,
            "bytes": round(table.bytes),
            "bytes_per_day": table.bytes_per_day(today),
            "forecast_bytes": ends[table.name or ""],
        }
        for table in tables
        if table.name in ends
    )
    found_alerts = alerts(Outlook(lake, contracts, policies, today, MONTHS, None), tables, forecasts)
    return rows, [
        Need(
            "warning",
            f"{'Growth' if alert.kind == 'growth' else 'The budget'} of rule {alert.rule.name}"
            f" {'will be' if alert.day else 'is'} passed",
            f"{alert.message}; {alert.rule.owner} answers for it",
            f"{alert.hint.text}, which saves {alert.hint.saves_bytes:,} bytes" if alert.hint else alert.why_not,
        )
        for alert in found_alerts
    ]

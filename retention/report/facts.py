"""Facts of the governance page, proposals that wait among them, each with its SQL or the command that shows it."""

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
"""Every kind of proposal; `tests/retention/test_governance_page.py` looks for one that is missing."""
_APPROVED_IS_DONE: Final = (HOLD_RELEASES, GRANTS, REHYDRATIONS)
"""Kinds that take effect with their approval; nothing has to apply them."""
_OF_EVERYTHING: Final = (HOLD_RELEASES, CANCELLATIONS)
"""Kinds of which there is one for everything that it could be about; only those wait that somebody proposed."""


@dataclass(frozen=True, slots=True)
class WaitingProposal:
    """A proposal that waits for somebody.

    Attributes
    ----------
    noun, name
        What it is.
    since
        When it was proposed, or approved if it waits to be applied; None where nobody knows.
    lacking
        What it waits for.
    next_step
        The command that goes on.
    """

    noun: str
    name: str
    since: datetime | None
    lacking: str
    next_step: str


def waiting(lake: "Lake") -> list[WaitingProposal]:
    """Return the proposals that wait, the oldest first. Of retention plans that nobody approved only the last does."""
    proposals = [one for kind in KINDS for one in _of_kind(lake, kind)]
    return sorted(proposals, key=lambda proposal: (proposal.since is not None, proposal.since, proposal.name))


def _of_kind(lake: "Lake", kind: AnyKind) -> Iterator[WaitingProposal]:
    every = list(kind.register(lake).values())
    trail = recorded_actions(lake.tables, kind) if every else Actions()
    for proposal in every:
        proposed = trail.get(proposal.name, {}).get(kind.propose, [])
        if _is_over(kind, proposal, every) or (kind in _OF_EVERYTHING and not proposed):
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
        elif kind not in _APPROVED_IS_DONE:
            command = _command(kind, kind.to_apply(proposal.name))
            yield WaitingProposal(kind.noun, proposal.name, proposal.approved, "nobody applied it", command)


def _is_over(kind: AnyKind, proposal: Proposal, every: list[Proposal]) -> bool:
    """Return whether nobody has to do anything about it any more."""
    now = clock.now()
    if proposal.applied is not None or (proposal.expires is not None and proposal.expires <= now):
        return True
    if isinstance(proposal, Grant) and (
        proposal.revoked is not None or proposal.until <= now or proposal.is_break_glass
    ):
        return True
    if kind in _APPROVED_IS_DONE and proposal.approved is not None:
        return True
    if isinstance(proposal, RetentionPlan) and proposal.overtaken_by:
        return True
    return kind is RETENTION_PLANS and proposal.approved is None and proposal is not every[-1]


def _command(kind: AnyKind, command: str) -> str:
    return command.replace(kind.command, "ranklake grants", 1) if kind is GRANTS else command


def _argument(proposal: Proposal) -> str:
    return getattr(proposal, "hold", proposal.name)


_HERE: Final = "ranklake.retention.report"
_MOST: Final = 100
NO_CATALOG: Final = "the catalog was never refreshed; run 'ranklake catalog refresh'"


@dataclass(frozen=True, slots=True)
class Governance:
    """What a governance team should know.

    Attributes
    ----------
    lake, today, policies
        Last part of its location; the UTC date as of which all is reported; name and digest of the policies.
    needs
        What needs a look, worst first.
    totals, tables, owners, teams
        What is stored: in all, against what the policies say, by who answers for it, by whose runs sent it.
    rules, due, waiting
        What files and registers say: the rules, what a plan of today would take by table, proposals that wait.
    undecided
        Why nothing can be said of what is due; else empty.
    holds, rows_held, erasures, removals
        By the audit trail and the registers; rows past their period that holds keep.
    grace
        Of removals, those that can be cancelled, and until when.
    backups
        Backups and drills that were tried, the latest first.
    archives, downsampled
        Rows that left their tables for other places, or became aggregates.
    costs
        What tables hold, add a day, and will hold in a year.
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
        """Rows that a plan of today would take; None where nobody can say."""
        return None if self.undecided else sum(row["rows"] for row in self.due)

    @property
    def reviews_overdue(self) -> int:
        """Rules whose review date has passed."""
        return sum(row["review_state"] == "overdue" for row in self.rules)


def governance(lake: "Lake", policies: "Policies", today: date) -> Governance:
    """Return the state of governance on a day. Reads, and writes nothing.

    Raises what queries raise, and `ranklake.lake.store.ssh_signatures.SignersError`.
    """
    ask, contracts = asking(lake), lake.contracts()
    held = tuple(hold.name for hold in holds_of(lake, today))
    rules = tuple(_rules(policies, today))
    taken, undecided = _due(lake, contracts, policies, today)
    waits = tuple(waiting(lake))
    erasures, grace, backups = (_ask_sql(ask, name, most=str(_MOST)) for name in ("erasures", "grace", "backups"))
    growing, alerted = costs(lake, contracts, policies, today)
    needs = [*_needs_of_rules(rules, undecided), *alerted, *_needs_of_erasures(erasures.rows)]
    needs += [*_needs_of_waiting(waits), *_needs_of_due(taken, waits), *_needs_of_grace(grace.rows, today)]
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
        due=taken,
        undecided=undecided,
        waiting=waits,
        holds=_ask_sql(ask, "holds", names=", ".join(map(literal, held)) or "''"),
        rows_held=0 if undecided else sum(held_rows(lake, contracts, policies, today).values()),
        erasures=erasures,
        removals=_ask_sql(ask, "removals", most=str(_MOST)),
        grace=grace,
        backups=backups,
        archives=_ask_sql(ask, "archives", most=str(_MOST)),
        downsampled=_ask_sql(ask, "downsampled", most=str(_MOST)),
        costs=growing,
    )


def policies_name(policies: "Policies") -> str:
    """Return which policies these are, without where they lie."""
    name = "that come with ranklake" if policies.place == PACKAGED else f"of {policies.place.name}"
    return f"{name} (SHA-256 {policies.sha256[:12]}…)"


def _ask_sql(ask: Ask, name: str, **fills: str) -> QueriedFacts:
    return ask(sql_text(_HERE, name).format(**fills))


def _values(lake: "Lake", contracts: "Mapping[str, Contract]", policies: "Policies") -> str:
    """Return what the policies say of each table, as rows of SQL: which rule, its period, the longest of any row."""
    rows = []
    for contract in contracts.values():
        parts = Parts(lake, contract, policies.rules, (), {})
        decided = parts.of_table()
        longest = parts.periods()[1] if parts.columns else decided.period_days
        numbers = ("CAST(NULL AS INT)" if days is None else str(days) for days in (decided.period_days, longest))
        rows.append(f"({literal(contract.table)}, {literal(decided.decided_by)}, {', '.join(numbers)})")
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
    """Return what a plan of today would take, by table and rule; and why nobody can say."""
    try:
        items = sorted((one.item for one in due(lake, contracts, policies, today)), key=lambda item: item.table)
    except PolicyError as error:
        return (), error.what
    return tuple(
        {
            "table": table,
            "partitions": len(some),
            "first_date": min(one.partition_date for one in some),
            "last_date": max(one.partition_date for one in some),
            "rows": sum(one.rows for one in some),
            "bytes": sum(one.bytes for one in some),
            "rules": ", ".join(sorted({one.rule or "" for one in some})),
        }
        for table, group in groupby(items, key=lambda item: item.table)
        for some in [list(group)]
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


def _needs_of_waiting(waits: tuple[WaitingProposal, ...]) -> Iterator[Need]:
    for wait in waits:
        detail = wait.lacking if wait.since is None else f"{wait.lacking}; since {wait.since:%Y-%m-%d %H:%M} UTC"
        yield Need("warning", f"{wait.noun.capitalize()} {wait.name} waits", detail, wait.next_step)


def _needs_of_due(taken: tuple[Row, ...], waits: tuple[WaitingProposal, ...]) -> Iterator[Need]:
    rows, tables = sum(row["rows"] for row in taken), len(taken)
    if taken and not any(wait.noun == "retention plan" for wait in waits):
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
    """Return what each table holds, adds a day, and holds in a year, the largest first; and alerts with their fix."""
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
    passed = alerts(Outlook(lake, contracts, policies, today, MONTHS, None), tables, forecasts)
    return rows, [
        Need(
            "warning",
            f"{'Growth' if one.kind == 'growth' else 'The budget'} of rule {one.rule.name}"
            f" {'will be' if one.day else 'is'} passed",
            f"{one.message}; {one.rule.owner} answers for it",
            f"{one.hint.text}, which saves {one.hint.saves_bytes:,} bytes" if one.hint else one.why_not,
        )
        for one in passed
    ]

"""The pages of governance (policies, due data, proposals, holds, erasures) and compliance (roles, keys, records)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from ranklake.printable import counted
from ranklake.retention.report.compliance import Activity, Compliance
from ranklake.retention.report.facts import NO_CATALOG, Governance
from ranklake.views.html.figures import Column, FactTable, Figure, Measure, Source, answer_table, figures
from ranklake.views.html.site import Section, page_section
from ranklake.views.words import size_text

_MOST: Final = 60


def _hold_scope(details: str) -> str:
    """Return the scope of a hold, from the details of its audit row."""
    hold = json.loads(details)
    where = "; ".join(f"{key} {', '.join(texts)}" for key, texts in hold["where"].items())
    return f"{where}; until {hold['until']}"


def _certificate(details: str) -> str:
    """Return name and verdict of a certificate, from the details of its audit row."""
    search = json.loads(details)
    return f"{'nothing left' if search['is_clean'] else 'something left'}: {search['certificate'][:12]}…"


_TABLES: Final = (
    Column("table", "Of those that have rows.", "table"),
    Column("class", "Its retention class, by its contract.", "retention_class"),
    Column("rule", "That decides for rows which no other rule is about.", "rule"),
    Column.days("period", "How long rows are kept by that rule; none: not deleted by time.", "period_days"),
    Column.days("longest", "That any row may be kept; none: for ever.", "longest_days"),
    Column.moment("first date", "Oldest partition with rows.", "first_date"),
    Column.days("oldest", "Age of that partition today.", "oldest_days"),
    Column.days("over", "Days by which it is older than any row may be.", "over_days"),
    Column.number("rows", "In live files.", "rows", "{row}"),
    Column.size("stored", "Size of the live files.", "stored_bytes"),
    Column.size("a day adds", "Mean of the last seven days.", "daily_growth_bytes"),
    Column("owner", "Team that answers for it, by its contract.", "owner"),
)  # fmt: skip
_OWNERS: Final = (
    Column("owner", "Team that answers for tables, by their contracts.", "owner"),
    Column.number("tables", "With rows.", "tables", "{table}"),
    Column.number("rows", "In live files.", "rows", "{row}"),
    Column.size("stored", "Size of the live files.", "stored_bytes"),
    Column.size("a day adds", "Mean of the last seven days.", "daily_growth_bytes"),
)
_TEAMS: Final = (
    Column("team", "As runs recorded it.", "team"),
    Column.number("runs", "That sent segments.", "runs", "{run}"),
    Column.number("rows", "Stored from its segments, removed ones among them.", "rows_stored", "{row}"),
    Column.size("sent", "Size of its segments as they came in; not what the tables take.", "sent_bytes"),
)  # fmt: skip
_RULES: Final = (
    Column("rule", "Its name.", "rule"),
    Column("review", "overdue: its date has passed; none: it has no date.", "review_state"),
    Column.moment("by", "Date by which somebody must look at it again.", "review"),
    Column("owner", "Who answers for it.", "owner"),
    Column("about", "Rows that it is about.", "about"),
    Column("says", "What happens to them.", "says"),
    Column.size("budget", "Most bytes that they should take.", "budget_bytes"),
    Column("basis", "Legal grounds.", "basis"),
    Column("where", "File and line.", "at"),
)
_DUE: Final = (
    Column("table", "quarantine/…: raw bytes that nothing could read.", "table"),
    Column.number("partitions", "Of which rows or values would go.", "partitions", "{partition}"),
    Column.moment("from", "First date.", "first_date"),
    Column.moment("to", "Last date.", "last_date"),
    Column.number("rows", "That would go; 0 where values are masked.", "rows", "{row}"),
    Column.size("bytes", "Of the files, or the rows' share of them.", "bytes"),
    Column("rules", "That say so.", "rules"),
)
_WAITING: Final = (
    Column("proposal", "Its name.", "name"),
    Column("kind", "What is proposed.", "noun"),
    Column.moment("since", "When it was proposed, or approved.", "since"),
    Column("lacks", "What it waits for.", "lacking"),
    Column("next", "Command that goes on.", "next_step"),
)
_HOLDS: Final = (
    Column("hold", "Its name; 'ranklake retain holds' and the audit log have its reason.", "hold"),
    Column("about", "What nothing may take, and until when.", "details", text=_hold_scope),
    Column.moment("since", "When it was set.", "ts"),
)
_ERASURES: Final = (
    Column("erasure", "Its name. Whose data it was stands nowhere.", "erasure"),
    Column.moment("proposed", "When.", "proposed"),
    Column.moment("approved", "When.", "approved"),
    Column.moment("applied", "When.", "applied"),
    Column.number("rows", "That go, or went.", "rows", "{row}"),
    Column.number("tables", "That have them.", "tables", "{table}"),
    Column.moment("certified", "When everything was searched again, last.", "certified"),
    Column("certificate", "What the search found, and the digest that names the certificate.", "details",
           text=_certificate),
)  # fmt: skip
_REMOVALS: Final = (
    Column("plan", "The retention plan.", "retention_plan"),
    Column.moment("approved", "When.", "approved"),
    Column.moment("applied", "When.", "applied"),
    Column.number("rows", "That went.", "rows", "{row}"),
    Column.size("bytes", "That went.", "bytes"),
    Column.number("files", "That went.", "files", "{file}"),
    Column("became", "in grace: it can be cancelled; came back: it was; deleted: for good.", "became"),
    Column("one person", "Whether who approved it applied it, too.", "single_operator"),
    Column.number("lake plan", "Number in ingest_plans.", "plan"),
)
_GRACE: Final = (
    Column("plan", "The retention plan.", "retention_plan"),
    Column.moment("until", "When its grace ends, and upkeep deletes what it took.", "kept_until"),
    Column.moment("applied", "When.", "applied"),
    Column.number("rows", "That a cancellation brings back; 0 where values were masked.", "rows", "{row}"),
    Column.size("bytes", "That went.", "bytes"),
    Column.number("files", "That went.", "files", "{file}"),
    Column.number("lake plan", "Number in ingest_plans.", "plan"),
)
_ARCHIVES: Final = (
    Column("table", "That the rows were in.", "table"),
    Column("place", "Where they are.", "uri"),
    Column("storage class", "Of the objects; none: the store's own.", "storage_class"),
    Column.number("ranges", "Archives, each of one date.", "archives", "{archive}"),
    Column.moment("from", "First date.", "first_date"),
    Column.moment("to", "Last date.", "last_date"),
    Column.number("rows", "That it holds.", "rows", "{row}"),
    Column.size("stored", "Size of its data files.", "bytes"),
    Column("approved", "Whether rows come back by an approved proposal alone.", "needs_approval"),
    Column.moment("archived", "When, last.", "archived"),
)
_BACKUPS: Final = (
    Column.moment("when", "When it began.", "ts"),
    Column("kind", "A backup, or a drill, which restores one into a scratch folder.", "kind"),
    Column("place", "Of the backups.", "place"),
    Column("outcome", "Whether it went well.", "outcome"),
    Column("reason", "Why it failed.", "reason"),
    Column.number("backup", "Its number.", "backup"),
    Column.moment("as of", "Point in time that a restore of it leads to.", "as_of_ts"),
    Column.seconds("RPO", "Age of the newest backup when it began: what a loss would have cost.", "rpo_s"),
    Column.seconds("RTO", "Until a drill had restored and verified the lake.", "rto_s"),
    Column.seconds("took", "How long it took.", "duration_s"),
    Column.number("rows", "Of all tables.", "rows", "{row}"),
    Column.size("size", "Of all files.", "size_bytes"),
    Column.size("copied", "What this backup added to the place.", "copied_bytes"),
)
_DOWNSAMPLED: Final = (
    Column("table", "That the rows were in.", "table"),
    Column("interval", "Length of the intervals.", "interval_ns", "s", is_number=True,
           text=lambda value: f"{value / 1e9:,g} s"),
    Column.number("dates", "Of which rows became aggregates.", "dates", "{partition}"),
    Column.moment("from", "First date.", "first_date"),
    Column.moment("to", "Last date.", "last_date"),
    Column.number("rows", "That went.", "rows", "{row}"),
    Column.number("kept", "Rows of 'downsampled' in their place.", "kept_rows", "{row}"),
)  # fmt: skip
_COSTS: Final = (
    Column("table", "Of those that have rows.", "table"),
    Column.number("rows", "In live files.", "rows", "{row}"),
    Column.size("stored", "Size of the live files.", "bytes"),
    Column.size("a day adds", "Mean of the last 30 whole days; none: too young to tell.", "bytes_per_day"),
    Column.size("in a year", "What it will hold after twelve months of 30 days under these policies.",
                "forecast_bytes"),
)  # fmt: skip


_ANSWERS: Final = (
    ("holds", "Legal holds", ["hold"], _HOLDS, "None holds today."),
    ("erasures", "Erasures and their certificates", ["erasure"], _ERASURES, "Nobody asked for one."),
    ("grace", "What can be cancelled", ["retention_plan"], _GRACE, "Nothing is in its grace."),
    ("removals", "What retention removed", ["retention_plan"], _REMOVALS, "Nothing yet."),
    ("backups", "Backups and drills", ["ts", "kind", "place"], _BACKUPS, "None was tried: 'ranklake backup URI'."),
    ("archives", "Archives", ["table", "uri", "storage_class"], _ARCHIVES, "Nothing is archived."),
    ("downsampled", "Downsampled", ["table", "interval_ns"], _DOWNSAMPLED, "Nothing is downsampled."),
)
"""Answers of `Governance` that are shown as tables."""
_REVIEW_STATES: Final = {"overdue": "warning", "ahead": "passed", "none": "skipped"}
_STORED: Final = Measure("stored_bytes", "stored", "By", "Live files of all tables.", size_text, NO_CATALOG)


def section(state: Governance) -> Section:
    """Return the governance page as a section of its own."""
    failing = sum(need.state == "failing" for need in state.needs)
    others = len(state.needs) - failing
    facts = [f"{counted(failing, 'thing')} to fix"] if failing else []
    facts += [f"{counted(others, 'thing')} to look at"] if others else []
    kept = f"; holds keep {counted(state.rows_held, 'row')}" if state.rows_held else ""
    headline = (", ".join(facts) or "Policies and what is stored agree, and nothing waits") + kept
    badge = "failing" if failing else "warning" if state.needs else "passed"
    return page_section("governance", "Governance", badge, headline, state, lambda: _parts(state))


def _parts(state: Governance) -> Mapping[str, Any]:
    return {
        "lake": state.lake,
        "hint": f"as of {state.today}, under the policies {state.policies}",
        "needs": [(need, "") for need in state.needs[:_MOST]],
        "more": max(len(state.needs) - _MOST, 0),
        "figures": list(_figures(state)),
        "tables": list(_tables(state)),
    }


def _figures(state: Governance) -> Iterator[Figure]:
    def figure(label: str, value: int, unit: str, definition: str, note: str, *, warns: bool = False) -> Figure:
        mark = "warning" if warns and value else ""
        return Figure(label, value, unit, definition, Source("", "", note), "", mark)

    due = "Rows that are older than their rules allow, and on no hold."
    mark = "warning" if state.rows_due else ""
    plan = Source("", "", "'ranklake retain plan' takes exactly these rows.")
    yield Figure("rows due", state.rows_due, "{row}", due, plan, "", mark, state.undecided)
    registers = "The registers and the audit log hold it; the table below has each."
    waiting = len(state.waiting)
    yield figure("proposals waiting", waiting, "{proposal}", "To approve or to apply.", registers, warns=True)
    listed = "'ranklake retain holds' lists them."
    yield figure("legal holds", len(state.holds.rows), "{hold}", "That hold today.", listed)
    if state.rows_held:
        held = "Rows that are older than their rules allow, and stay as holds keep them."
        yield figure("rows held", state.rows_held, "{row}", held, listed)
    if state.grace.rows:
        last = max(row["kept_until"] for row in state.grace.rows)
        grace = f"In no table any more; 'ranklake retain cancel' brings them back, the last until {last:%Y-%m-%d}."
        yield figure("rows in grace", sum(row["rows"] for row in state.grace.rows), "{row}", grace, registers)
    policies = f"The policies {state.policies}."
    reviews = "Rules whose review date has passed."
    yield figure("reviews overdue", state.reviews_overdue, "{rule}", reviews, policies, warns=True)
    yield from figures("totals", state.totals, [_STORED])


def _tables(state: Governance) -> Iterator[FactTable]:
    if state.waiting:
        lists = Source("waiting", "", "Each command lists its own: ranklake retain list, erase list, grants list.")
        waiting = tuple(asdict(proposal) for proposal in state.waiting)
        yield FactTable("Proposals that wait", lists, _WAITING, ["name"], "waiting", waiting)
    plan = Source("due", "", f"'ranklake retain plan --as-of {state.today}' has the same rows, partition by partition.")
    yield FactTable("What is due", plan, _DUE, ["table"], "due", state.due, empty=state.undecided or "Nothing.")
    caption = "Policies against what is stored"
    yield answer_table("tables", caption, state.tables, ["table"], _TABLES, NO_CATALOG)
    files = f"The policies {state.policies}; 'ranklake retain explain TABLE DATE' says which decides."
    yield FactTable("Rules, owners and reviews", Source("rules", "", files), _RULES, ["rule"], "rules", state.rules,
                    states=_REVIEW_STATES, empty="None.")  # fmt: skip
    for name, caption, key, columns, empty in _ANSWERS:
        yield answer_table(name, caption, getattr(state, name), key, columns, empty)
    cost = Source("costs", "", "'ranklake retain cost --price NUMBER' has the same figures, and what they cost.")
    yield FactTable("Growth, and what it will be", cost, _COSTS, ["table"], "costs", state.costs, empty="No rows yet.")
    yield answer_table("owners", "Storage by who answers for it", state.owners, ["owner"], _OWNERS, NO_CATALOG)
    none = "No segment of a run came in yet."
    yield answer_table("teams", "What teams sent", state.teams, ["team"], _TEAMS, none)


_STATES: Final = {"seen": "warning"}
_PROOF_STATES: Final = {"masked": "passed", "unmasked": "failing", "due": "warning", "unseen": "unchecked"}
_DEMAND_STATES: Final = {"met": "passed", "differs": "failing", "unknown": "unchecked"}
_COLUMNS: Final = (
    Column("table and column", "Of those whose values are about somebody, or open something.", "about"),
    Column("class", "By its contract.", "class"),
    Column("mask", "That its contract asks for.", "mask"),
)
_GRANTS: Final = (
    Column("role", "Its name.", "role"),
    Column("teams", "Whose rows and runs it sees.", "teams"),
    Column.number("grants", "In force, or taken and not reviewed.", "grants", "{grant}"),
    Column.number("queries", "As that role by those who have it, as far back as the log of queries goes.", "queries",
                  "{query}"),
    Column.moment("last used", "The last of them.", "last_used"),
    Column.moment("next end", "When the first of them ends.", "next_end"),
    Column.number("to review", "Unused for long, or taken without approval.", "to_review", "{grant}"),
)  # fmt: skip
_ANCHORS: Final = (
    Column("anchor", "Where heads of the audit log are kept.", "place"),
    Column.number("rows", "That the last head there covers.", "rows", "{row}"),
)
_KEYS: Final = (
    Column("setting", "In ranklake.toml.", "setting"),
    Column("reference", "What kind of place the key comes from; the place stands on no page.", "kind"),
    Column.days("age", "Of the key that is used now.", "age_days"),
    Column("since", "What the age is counted from, or why it is not known.", "by"),
)
_PLACES: Final = (
    Column("place", "What lies there.", "place"),
    Column("store", "Its protocol.", "store"),
    Column("encrypts", "What the bucket does with new objects.", "by_default"),
    Column("key", "By which key.", "by_default_key"),
    Column("this object", "What the marker of the lake says of itself.", "of_object"),
    Column("its key", "By which key.", "of_object_key"),
    Column("region", "Where it is.", "region"),
    Column("unknown", "What the store did not say, and why.", "unknown"),
)
_DEMANDS: Final = (
    Column("demand", "Its name in the policies.", "demand"),
    Column("state", "What is not known is never met.", "state"),
    Column("place", "That has rows of its tables.", "place"),
    Column("what", "That is demanded.", "what"),
    Column("wanted", "As the policies say.", "wanted"),
    Column("found", "As the store says.", "found"),
    Column("remedy", "What to do about it.", "hint"),
    Column("tables", "Those there that it is about.", "tables"),
)
_PROOFS: Final = (
    Column("column", "That is masked there.", "about"),
    Column("state", "What a sample shows: due is what a plan may still come for, unseen is where there was no value.",
           "status"),
    Column("place", "Where it is masked.", "place"),
    Column("mask", "How.", "mask"),
    Column.number("values", "Distinct values that were looked at.", "values", "{value}"),
    Column.number("in clear", "Those that the mask cannot have left.", "unmasked", "{value}"),
    Column.moment("first", "Date of the first of those.", "first"),
    Column.moment("last", "Date of the last.", "last"),
)  # fmt: skip
_RECORD: Final = (
    Column("table", "Of those with columns that are about somebody.", "table"),
    Column("data", "Columns by class.", "data"),
    Column("kept", "By the rule for rows that no other rule is about.", "kept"),
    Column("purpose", "That the rule states.", "purpose"),
    Column("grounds", "That the rule states.", "basis"),
    Column("recipients", "Roles that may ask the table.", "recipients"),
    Column("owner", "Who answers for it.", "owner"),
)


_TRAIL: Final = Measure("rows", "rows of the audit log", "{row}", "Of the audit log, which is one chain.")


def compliance_section(state: Compliance) -> Section:
    """Return the compliance page as a section of its own."""
    is_failing = any(need.state == "failing" for need in state.needs)
    badge = "failing" if is_failing else "unchecked" if state.no_roles else "warning" if state.needs else "passed"
    facts = [f"{counted(len(state.needs), 'thing')} to look at"] if state.needs else []
    clear = f"Roles see classified columns as they are in {counted(state.unmasked, 'case')}"
    facts += [clear] if state.unmasked else []
    headline = state.no_roles or "; ".join(facts) or "No role sees a classified column as it is"
    return page_section("compliance", "Compliance", badge, headline, state, lambda: _compliance_parts(state))


def _compliance_parts(state: Compliance) -> Mapping[str, Any]:
    return {
        "lake": state.lake,
        "hint": f"under the policies {state.policies}",
        "needs": [(need, "") for need in state.needs],
        "figures": list(_compliance_figures(state)),
        "tables": list(_compliance_tables(state)),
    }


def _compliance_figures(state: Compliance) -> Iterator[Figure]:
    views = Source("", "", "'ranklake roles explain ROLE TABLE' says which words of the roles' file say so.")
    yield Figure("classified columns", len(state.columns), "{column}", "Of all tables, by their contracts.", views, "")
    pairs = "Pairs of a role and a classified column in which the role sees the values as they are."
    unmasked, mark = None if state.no_roles else state.unmasked, "warning" if state.unmasked else ""
    yield Figure("seen unmasked", unmasked, "{pair}", pairs, views, "", mark, state.no_roles)
    yield from figures("trail", state.trail, [_TRAIL], "'ranklake audit verify' proves it.")
    behind = state.trail.first_row["rows"] - min((anchor["rows"] for anchor in state.anchors), default=0)
    heads = Source("", "", "Each row's head is written down at once; a witness is a place outside the lake.")
    covered = "Rows of the audit log that the oldest last head does not cover."
    yield Figure("rows without anchor", behind, "{row}", covered, heads, "", "warning" if behind else "")


def _compliance_tables(state: Compliance) -> Iterator[FactTable]:
    roles = [Column(name, "As this role sees it.", name) for name in state.roles]
    demands = tuple(asdict(demand) | {"tables": ", ".join(demand.tables)} for demand in state.demands)
    proofs = tuple(asdict(proof) | {"about": f"{proof.table}.{proof.column}"} for proof in state.proofs)
    no_proofs = state.no_proofs or "No column is masked where it is stored."
    for name, caption, note, columns, key, rows, empty, states in (
        ("columns", "Roles by classified column", "'ranklake roles explain ROLE TABLE' tells the same, and why.",
         (*_COLUMNS, *roles), ["about"], state.columns, "No table has any.", _STATES),
        ("grants", "Grants and their use", "'ranklake grants review' tells it by grant, with names.",
         _GRANTS, ["role"], state.grants, "There are none.", {}),
        ("anchors", "Anchors of the audit log", "Without [audit] witness the heads lie beside the table alone.",
         _ANCHORS, ["place"], state.anchors, "", {}),
        ("keys", "Keys", "References of ranklake.toml, and since when the newest key of each is in use.",
         _KEYS, ["setting"], state.keys, "", {}),
        ("places", "Encryption and residency",
         "The stores were asked. Files of tables are not encrypted by ranklake itself.",
         _PLACES, ["place"], tuple(asdict(place) for place in state.places), "", {}),
        ("demands", "Demands of policies on places",
         "'places' in the policies says what is demanded; 'ranklake doctor' tells the same.",
         _DEMANDS, ["demand", "place", "what"], demands, "No policy demands encryption or a region.", _DEMAND_STATES),
        ("proofs", "Proof of masks by values",
         "'ranklake check' looks at the same, and fails where values are in clear.",
         _PROOFS, ["about", "place"], proofs, no_proofs, _PROOF_STATES),
        ("record", "Data-protection record",
         "Contracts, policies and roles say it; 'ranklake report record' prints all of it.",
         _RECORD, ["table"], tuple(map(_row, state.record)), "No table needs one.", {}),
    ):  # fmt: skip
        yield FactTable(caption, Source(name, "", note), columns, key, name, rows, states=states, empty=empty)


def _row(activity: Activity) -> dict[str, str]:
    days = activity.period_days
    return {
        "table": activity.table,
        "data": "; ".join(f"{name}: {', '.join(columns)}" for name, columns in activity.classes.items()),
        "kept": "not deleted by time" if days is None else f"{days:,} days ({activity.rule})",
        "purpose": activity.purpose,
        "basis": activity.basis,
        "recipients": ", ".join(activity.recipients) or "no role",
        "owner": activity.owner,
    }

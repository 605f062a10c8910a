"""The compliance page: who sees what, grants, keys, trail, encryption, and the data-protection record."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from ranklake.printable import counted
from ranklake.retention.report.compliance import Activity, Compliance
from ranklake.views.html.figures import Column, FactTable, Figure, Measure, Source, figures
from ranklake.views.html.site import Section, page_section

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
    Column("anchor", "Where heads of the audit trail are kept.", "place"),
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


_TRAIL: Final = Measure("rows", "rows of the trail", "{row}", "Of the audit log, which is one chain.")


def section(state: Compliance) -> Section:
    """Return the compliance page as a section of its own."""
    is_failing = any(need.state == "failing" for need in state.needs)
    badge = "failing" if is_failing else "unchecked" if state.no_roles else "warning" if state.needs else "passed"
    facts = [f"{counted(len(state.needs), 'thing')} to look at"] if state.needs else []
    clear = f"Roles see classified columns as they are in {counted(state.unmasked, 'case')}"
    facts += [clear] if state.unmasked else []
    headline = state.no_roles or "; ".join(facts) or "No role sees a classified column as it is"
    return page_section("compliance", "Compliance", badge, headline, state, lambda: _parts(state))


def _parts(state: Compliance) -> Mapping[str, Any]:
    return {
        "lake": state.lake,
        "hint": f"under the policies {state.policies}",
        "needs": [(need, "") for need in state.needs],
        "figures": list(_figures(state)),
        "tables": list(_tables(state)),
    }


def _figures(state: Compliance) -> Iterator[Figure]:
    views = Source("", "", "'ranklake roles explain ROLE TABLE' says which words of the roles' file say so.")
    yield Figure("classified columns", len(state.columns), "{column}", "Of all tables, by their contracts.", views, "")
    pairs = "Pairs of a role and a classified column in which the role sees the values as they are."
    unmasked, mark = None if state.no_roles else state.unmasked, "warning" if state.unmasked else ""
    yield Figure("seen unmasked", unmasked, "{pair}", pairs, views, "", mark, state.no_roles)
    yield from figures("trail", state.trail, [_TRAIL], "'ranklake audit verify' proves it.")
    behind = state.trail.first_row["rows"] - min((anchor["rows"] for anchor in state.anchors), default=0)
    heads = Source("", "", "Each row's head is written down at once; a witness is a place outside the lake.")
    covered = "Rows of the trail that the oldest last head does not cover."
    yield Figure("rows without anchor", behind, "{row}", covered, heads, "", "warning" if behind else "")


def _tables(state: Compliance) -> Iterator[FactTable]:
    roles = [Column(name, "As this role sees it.", name) for name in state.roles]
    demands = tuple(asdict(demand) | {"tables": ", ".join(demand.tables)} for demand in state.demands)
    proofs = tuple(asdict(proof) | {"about": f"{proof.table}.{proof.column}"} for proof in state.proofs)
    no_proofs = state.no_proofs or "No column is masked where it is stored."
    for name, caption, note, columns, key, rows, empty, states in (
        ("columns", "Roles by classified column", "'ranklake roles explain ROLE TABLE' tells the same, and why.",
         (*_COLUMNS, *roles), ["about"], state.columns, "No table has any.", _STATES),
        ("grants", "Grants and their use", "'ranklake grants review' tells it by grant, with names.",
         _GRANTS, ["role"], state.grants, "There are none.", {}),
        ("anchors", "Anchors of the audit trail", "Without [audit] witness the heads lie beside the table alone.",
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

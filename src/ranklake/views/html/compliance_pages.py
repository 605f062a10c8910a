"""The compliance page: who sees what, grants, keys, trail, encryption, and the data-protection record."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from ranklake.retention.report.compliance import Compliance
from ranklake.retention.report.record import Activity
from ranklake.views.html.figures import Column, FactTable, Figure, Source, sourced, time_text
from ranklake.views.html.shell import Entry, Page, digest_of
from ranklake.views.html.site import Section
from ranklake.views.words import counted

SECTION: Final = "compliance"
HOME: Final = f"{SECTION}/index.html"
_STATES: Final = {"seen": "warning"}
_PROOF_STATES: Final = {"masked": "passed", "unmasked": "failing", "due": "warning", "unseen": "unchecked"}
_DEMAND_STATES: Final = {"met": "passed", "differs": "failing", "unknown": "unchecked"}


def _days(value: int) -> str:
    return f"{value:,} d"


_COLUMNS: Final = (
    Column("table and column", "Of those whose values are about somebody, or open something.", "about"),
    Column("class", "By its contract.", "class"),
    Column("mask", "That its contract asks for.", "mask"),
)
_GRANTS: Final = (
    Column("role", "Its name.", "role"),
    Column("teams", "Whose rows and runs it sees.", "teams"),
    Column("grants", "In force, or taken and not reviewed.", "grants", "{grant}", is_number=True),
    Column("queries", "As that role by those who have it, as far back as the log of queries goes.", "queries",
           "{query}", is_number=True),
    Column("last used", "The last of them.", "last_used", text=time_text),
    Column("next end", "When the first of them ends.", "next_end", text=time_text),
    Column("to review", "Unused for long, or taken without approval.", "to_review", "{grant}", is_number=True),
)  # fmt: skip
_ANCHORS: Final = (
    Column("anchor", "Where heads of the audit trail are kept.", "place"),
    Column("rows", "That the last head there covers.", "rows", "{row}", is_number=True),
)
_KEYS: Final = (
    Column("setting", "In ranklake.toml.", "setting"),
    Column("reference", "What kind of place the key comes from; the place stands on no page.", "kind"),
    Column("age", "Of the key that is used now.", "age_days", "d", is_number=True, text=_days),
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
    Column("values", "Distinct values that were looked at.", "values", "{value}", is_number=True),
    Column("in clear", "Those that the mask cannot have left.", "unmasked", "{value}", is_number=True),
    Column("first", "Date of the first of those.", "first", text=time_text),
    Column("last", "Date of the last.", "last", text=time_text),
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


def section(found: Compliance) -> Section:
    """Return the compliance page as a section of its own."""
    is_failing = any(one.state == "failing" for one in found.needs)
    state = "failing" if is_failing else "unchecked" if found.no_roles else "warning" if found.needs else "passed"
    told = [f"{counted(len(found.needs), 'thing')} to look at"] if found.needs else []
    told += [f"Roles see classified columns as they are in {counted(found.unmasked, 'case')}"] if found.unmasked else []
    headline = found.no_roles or "; ".join(told) or "No role sees a classified column as it is"
    digest = digest_of(found)
    page = Page(HOME, "Compliance", "overview.html", partial(_facts, found, headline, state), digest)
    return Section(SECTION, "Compliance", state, headline, HOME, (page,), (Entry("Compliance", "page", state, HOME),))


def _facts(found: Compliance, headline: str, state: str) -> Mapping[str, Any]:
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "hint": f"under the policies {found.policies}",
        "needs": [(one, "") for one in found.needs],
        "more": 0,
        "figures": list(_figures(found)),
        "charts": [],
        "tables": list(_fact_tables(found)),
    }


def _figures(found: Compliance) -> Iterator[Figure]:
    views = Source("", "", "'ranklake roles explain ROLE TABLE' says which words of the roles' file say so.")
    yield Figure("classified columns", len(found.columns), "{column}", "Of all tables, by their contracts.", views, "")
    said = "Pairs of a role and a classified column in which the role sees the values as they are."
    unknown = found.no_roles
    yield Figure("seen unmasked", None if unknown else found.unmasked, "{pair}", said, views, "",
                 "warning" if found.unmasked else "", unknown)  # fmt: skip
    row, source = found.trail.one, sourced("trail", found.trail, "'ranklake audit verify' proves it.")
    yield Figure("rows of the trail", row["rows"], "{row}", "Of the audit trail, which is one chain.", source, "rows")
    behind = row["rows"] - min((one["rows"] for one in found.anchors), default=0)
    heads = Source("", "", "Each row's head is written down at once; a witness is a place outside the lake.")
    yield Figure("rows without anchor", behind, "{row}", "Rows of the trail that the oldest last head does not cover.",
                 heads, "", "warning" if behind else "")  # fmt: skip


def _fact_tables(found: Compliance) -> Iterator[FactTable]:
    views = Source("columns", "", "'ranklake roles explain ROLE TABLE' tells the same, and why.")
    each = [Column(name, "As this role sees it.", name) for name in found.roles]
    yield FactTable("Roles by classified column", views, (*_COLUMNS, *each), ["about"], "columns", found.columns, {},
                    _STATES, "No table has any.")  # fmt: skip
    review = Source("grants", "", "'ranklake grants review' tells it by grant, with names.")
    yield FactTable("Grants and their use", review, _GRANTS, ["role"], "grants", found.grants, empty="There are none.")
    heads = Source("anchors", "", "Without [audit] witness the heads lie beside the table alone.")
    yield FactTable("Anchors of the audit trail", heads, _ANCHORS, ["place"], "anchors", found.anchors)
    keys = Source("keys", "", "References of ranklake.toml, and since when the newest key of each is in use.")
    yield FactTable("Keys", keys, _KEYS, ["setting"], "keys", found.keys)
    stores = Source("places", "", "The stores were asked. Files of tables are not encrypted by ranklake itself.")
    places = tuple(asdict(one) for one in found.places)
    yield FactTable("Encryption and residency", stores, _PLACES, ["place"], "places", places)
    asked = Source("demands", "", "'places' in the policies says what is demanded; 'ranklake doctor' tells the same.")
    demands = tuple(asdict(one) | {"tables": ", ".join(one.tables)} for one in found.demands)
    yield FactTable("Demands of policies on places", asked, _DEMANDS, ["demand", "place", "what"], "demands", demands,
                    states=_DEMAND_STATES, empty="No policy demands encryption or a region.")  # fmt: skip
    samples = Source("proofs", "", "'ranklake check' looks at the same, and fails where values are in clear.")
    proofs = tuple(asdict(one) | {"about": f"{one.table}.{one.column}"} for one in found.proofs)
    none = found.no_proofs or "No column is masked where it is stored."
    yield FactTable("Proof of masks by values", samples, _PROOFS, ["about", "place"], "proofs", proofs,
                    states=_PROOF_STATES, empty=none)  # fmt: skip
    made = Source("record", "", "Contracts, policies and roles say it; 'ranklake report record' prints all of it.")
    rows = tuple(map(_row, found.record))
    yield FactTable("Data-protection record", made, _RECORD, ["table"], "record", rows, empty="No table needs one.")


def _row(one: Activity) -> dict[str, str]:
    return {
        "table": one.table,
        "data": "; ".join(f"{name}: {', '.join(columns)}" for name, columns in one.classes.items()),
        "kept": "not deleted by time" if one.period_days is None else f"{one.period_days:,} days ({one.rule})",
        "purpose": one.purpose,
        "basis": one.basis,
        "recipients": ", ".join(one.recipients) or "no role",
        "owner": one.owner,
    }

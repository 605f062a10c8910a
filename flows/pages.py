"""The Markdown page of a stage's run. Pure formatting: nothing is computed here.

Names come from training processes and file names, so values are escaped: they cannot add markup or table rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.pipeline.headlines import headline
from ranklake.printable import counted, printable
from ranklake.redaction.redact import redact

Done = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses that a page may link to.

    Attributes
    ----------
    tables
        Address of the task run of each table, by the table's name.
    report
        Base address of the report's pages; empty if unknown.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    report: str = ""

    def to_report(self, words: str, path: str) -> str:
        """Return a link to a page of the report; empty if its address is unknown."""
        return f"[{words}]({self.report.rstrip('/')}/{path})" if self.report else ""


MOST_ROWS: Final = 200
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|~&]|(?<=:)/(?=/))")
"""Characters of Markdown's inline syntax, and slashes that would make an address a link."""


def cell_text(value: object) -> str:
    """Return a value as the text of a cell in a Markdown table."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _MARKUP.sub(r"\\\1", str(redact(printable(str(value)))))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], links: Mapping[str, str] | None = None) -> str:
    """Return a Markdown table of at most `MOST_ROWS` rows; first cells with an entry in `links` become links."""
    all_rows = list(rows)
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for first, *rest in all_rows[:MOST_ROWS]:
        link = (links or {}).get(str(first))
        cell = f"[{cell_text(first)}]({link})" if link else cell_text(first)
        lines.append(f"| {' | '.join([cell, *map(cell_text, rest)])} |")
    if len(all_rows) > MOST_ROWS:
        lines.append(f"\nand {len(all_rows) - MOST_ROWS:,} more")
    return "\n".join(lines)


def page(stage: str, done: Done, links: Links | None = None) -> str:
    """Return the page of a stage's run; empty for stages without a page."""
    format_page = _PAGES.get(stage)
    if format_page is None:
        return ""
    parts = [part for part in format_page(done, links or Links()) if part]
    if done.get("damaged"):
        parts += ["## Damaged files", table(("table", "file", "what"), map(_damage, done["damaged"]))]
        parts.append("`ranklake replay` makes their dates anew from the segments.")
    return "\n\n".join(parts)


def findings(done: Done) -> list[dict[str, Any]]:
    """Return the failed checks as table rows: those of this run, and earlier ones whose rows are still in the table."""
    result = [("now", check) for check in done["unsound"]] + [("before", check) for check in done["standing"]]
    return [
        {
            "table": check["table"],
            "date": str(check["partition_date"]),
            "check": check["check_id"],
            "severity": check["severity"],
            "status": check["status"],
            "rows failed": check["rows_failed"],
            "of": check["rows_checked"],
            "moved to rejects": check["quarantined_rows"],
            "what": str(redact(printable(check["message"] or ""))),
            "since": since,
        }
        for since, check in result[:MOST_ROWS]
    ]


def _ingest(done: Done, links: Links) -> Iterable[str]:
    del links
    yield f"{counted(done['segments'], 'segment')} in {counted(len(done['plans']), 'plan')}, {done['elapsed_s']:.1f} s"
    fates = (("stored", "rows_stored"), ("quarantined", "rows_rejected"), ("seen before", "rows_duplicate"))
    yield table(("rows", "count"), [(words, done[name]) for words, name in fates])
    counts = [("segments that cannot be read", done["unreadable"]), ("old segments purged", done["purged"])]
    counts += [(f"segments refused: {why}", count) for why, count in done["refused"].items()]
    counts += [(f"segments that wait for the key {key}", count) for key, count in done["waiting"].items()]
    yield table(("what else", "count"), [count for count in counts if count[1]]) if any(n for _, n in counts) else ""
    if done["held"]:
        rows = [(why, count, done["held_first"].get(why)) for why, count in done["held"].items()]
        yield table(("files of the spool left alone", "count", "first"), rows)


def _check(done: Done, links: Links) -> Iterable[str]:
    yield "**passed**" if done["passed"] else "**failed**: a check of severity error or critical failed"
    changed = f"{counted(done['partitions'], 'partition')} checked, {done['unchanged']:,} unchanged"
    yield f"{changed}; {counted(done['quarantined_rows'], 'row')} moved to the table `rejects`"
    if done["checks"]:
        yield table(("checks", "count"), done["checks"].items())
    yield links.to_report("All tables and checks, with their history", "quality/index.html")
    rows = findings(done)
    if rows:
        counts: dict[tuple[str, str], int] = {}
        for row in rows:
            key = (row["severity"], row["status"])
            counts[key] = counts.get(key, 0) + 1
        yield table(("severity", "status", "count"), [(*key, count) for key, count in sorted(counts.items())])
        yield table(list(rows[0]), [list(row.values()) for row in rows], links.tables)


def _rollup(done: Done, links: Links) -> Iterable[str]:
    written = [rollup for rollup in done["rollups"] if rollup["partitions"]]
    yield f"{len(written)} of {len(done['rollups'])} rollups changed"
    columns = ("rollup", "partitions", "of computed", "rows", "version", "seconds", "first date", "last date")
    rows = [
        (
            *(rollup["name"], len(rollup["partitions"]), rollup["computed"], rollup["rows"], rollup["version"]),
            *(f"{rollup['seconds']:.2f}", rollup["partitions"][0], rollup["partitions"][-1]),
        )
        for rollup in written
    ]
    yield table(columns, rows, links.tables) if rows else ""
    kept_back = sorted({tuple(place) for rollup in done["rollups"] for place in rollup.get("kept_back", ())})
    if kept_back:
        yield "**held back** by checks; what needs them stays as it is (`ranklake quality held`):"
        yield table(("table", "partition"), kept_back, links.tables)


def _upkeep(done: Done, links: Links) -> Iterable[str]:
    del links
    merged = f"{counted(done['files_before'], 'file')} merged into {done['files_after']:,}"
    yield f"{merged}, {done['merged_bytes']:,} bytes; {done['elapsed_s']:.1f} s"
    purged = done["purged"].items()
    yield table(("purged", "files"), purged) if purged else ""
    yield f"checkpoints: {', '.join(map(cell_text, done['checkpoints']))}" if done["checkpoints"] else ""
    if done["scrubbed"]:
        yield f"{counted(done['scrubbed']['files'], 'file')} read whole, {done['scrubbed']['size_bytes']:,} bytes"


def _catalog(done: Done, links: Links) -> Iterable[str]:
    del links
    yield table(("catalog of", "rows"), ((name, rows) for name, rows in done.items() if name != "changes"))
    if changes := done.get("changes"):
        yield "Names, units and columns that changed lately; `ranklake catalog changes` tells all."
        yield table(
            ("of", "name", "when", "what"), [(row["kind"], row["name"], row["at"][:16], row["what"]) for row in changes]
        )


def _report(done: Done, links: Links) -> Iterable[str]:
    written = headline("report", done)[0]
    published = done["published"]
    sections = [section for name, section in done.items() if name not in {"published", "broken"}]
    yield table(
        ("section", "state", "in words"),
        [(section["title"], section["state"], section["headline"]) for section in sections],
    )
    if done["broken"]:
        yield table(("cannot be made", "why"), done["broken"].items())
    yield f"{written}, {published['removed']:,} removed; they are in {cell_text(published['out'])}"
    yield links.to_report("Open the report", "index.html")


def _retention_plan(done: Done, links: Links) -> Iterable[str]:
    del links
    plan = done["plan"]
    if plan is None:
        yield f"Nothing is past its retention period on {done['as_of']}: nothing to approve."
        return
    name = plan["retention_plan"]
    size = f"{counted(plan['rows'], 'row')} in {counted(plan['files'], 'file')}, {plan['bytes']:,} bytes"
    yield f"Plan `{name}` as of {done['as_of']}: {size}. It is **{plan['state']}**."
    if plan["state"] == "planned":
        yield f"Nothing was removed. To approve it:\n\n    ranklake retain approve {name} --by NAME --reason TEXT"
    if plan["state"] in {"planned", "approved"}:
        yield f"Once it is approved, somebody else applies it:\n\n    ranklake retain apply {name}"
        yield f"or runs the flow `ranklake-retention_apply` with `plan` = `{name}`."
    columns = ("table", "date", "class", "kept days", "goes before", "rows", "bytes", "files", "reason")
    names = (
        "table",
        "partition_date",
        "retention_class",
        "period_days",
        "cutoff_date",
        "rows",
        "bytes",
        "files",
        "reason",
    )
    yield table(columns, [[item[field] for field in names] for item in plan["items"]])


def _retention_apply(done: Done, links: Links) -> Iterable[str]:
    del links
    outcome = "applied" if done["applied_now"] else "was applied before; nothing done"
    alone = " by the one who approved it (single operator)" if done["single_operator"] else ""
    yield f"Plan `{done['retention_plan']}` {outcome}{alone}: {counted(done['rows'], 'row')}, {done['bytes']:,} bytes."
    if done["swept"]:
        yield f"{counted(done['swept']['segments'], 'segment')} of the spool deleted, whose rows are gone."


def _verify_artifacts(done: Done, links: Links) -> Iterable[str]:
    del links
    altered = [artifact for artifact in done["artifacts"] if not artifact["verified"]]
    size = f"{counted(len(done['artifacts']), 'artifact')}, {done['hashed_bytes']:,} bytes"
    yield f"{size} hashed again: {len(altered):,} not as recorded; {done['waiting']:,} wait for the next run."
    if done["not_allowed"]:
        yield f"{done['not_allowed']:,} not opened: allow their places by `[artifacts] allow` in ranklake.toml."
    if altered:
        yield table(
            ("run", "artifact", "what"),
            [(artifact["run"], artifact["name"], artifact["verdict"]) for artifact in altered],
        )


def _backups(done: Done, links: Links) -> Iterable[str]:
    del links
    if not done["places"] and not done["failed"]:
        yield "No place is configured under `[backup]`, or none is due."
    if done["failed"]:
        yield table(("place", "failed"), [(failure["place"], failure["reason"]) for failure in done["failed"]])
    for place in done["places"]:
        facts = ", ".join(f"{name} {value:,.0f}" for name, value in place.items() if name != "place")
        yield f"{place['place']}: {facts}"


def _doctor(done: Done, links: Links) -> Iterable[str]:
    del links
    yield ", ".join(f"{count:,} {state}" for state, count in done["counts"].items())
    rows = [(finding["check"], finding["state"], finding["what"], finding["remedy"]) for finding in done["findings"]]
    yield table(("check", "state", "what", "what to do"), rows) if rows else "Nothing is wrong."


def _damage(damage: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(list(damage.values())[:3])


def _slo(done: Done, links: Links) -> Iterable[str]:
    del links
    rows = [
        (each["slo"], each["subject"], each["status"], each["alert"], each["attained_ratio"], each["budget_used_ratio"])
        for each in done["objectives"]
        if each["status"] != "no_data"
    ]
    heads = ("objective", "subject", "status", "alert", "attained", "budget used")
    yield table(heads, rows) if rows else "Nothing to judge yet."


_PAGES: Final[Mapping[str, Callable[[Done, Links], Iterable[str]]]] = {
    "ingest": _ingest,
    "check": _check,
    "rollup": _rollup,
    "upkeep": _upkeep,
    "catalog": _catalog,
    "slo": _slo,
    "report": _report,
    "retention_plan": _retention_plan,
    "retention_apply": _retention_apply,
    "verify_artifacts": _verify_artifacts,
    "backup": _backups,
    "drill": _backups,
    "doctor": _doctor,
}

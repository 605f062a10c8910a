"""Rules for plans of each kind, checked whenever a plan is read, before anything acts on it.

A plan is a file in the bucket, and who may write there may write one. So none is believed for being there: its paths
lie in the folders of their tables, dates and counts agree, and a kind does what it is for and nothing else. Which
rules are of which kind stands in `ranklake.lake.plans.kinds`; whether what a plan says is true of the lake is looked at
by `ranklake.lake.plans.verification`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final

from ranklake.lake.tables.live_files import DATA_PATH

_TABLE: Final = re.compile(r"[a-z][a-z0-9_]*")
_DATA: Final = re.compile(DATA_PATH)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RELEASE: Final = re.compile(r"qr-[0-9a-f]{16}")
_DOTS: Final = frozenset({".", ".."})
_MOST_OVERLAYS: Final = 10**10
_SAYS: Final = frozenset({"quality_results", "disowned"})
"""Tables in which a quarantine says why."""
_REJECTS: Final = "rejects"
_FOLDED: Final = "downsampled"
_RELEASES: Final = "quality_releases"

Body = Mapping[str, Any]
Rules = Callable[[Body], Iterator[str]]


def is_data_path(path: str, day: str | None = None) -> bool:
    """Whether a path can be a data file's, relative to its table's folder, of a date (ISO) or of any."""
    return _DATA.fullmatch(path) is not None and (day is None or path.startswith(f"date={day}/"))


def is_spool_path(path: str) -> bool:
    """Whether a path can be that of a file in a spool; it may have any name, but leads nowhere else."""
    parts = path.split("/")
    return "\0" not in path and not _DOTS & set(parts) and "segments" in parts


def segment_paths(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield all paths that a segment of an ingest plan would have read; what is none counts as an empty one."""
    yield from (row["path"], *row["others"])
    earlier = row.get("earlier", [])
    for entry in earlier if isinstance(earlier, list) else [None]:
        path = entry.get("path") if isinstance(entry, dict) else None
        yield path if isinstance(path, str) else ""


def segment_faults(body: Body) -> Iterator[str]:
    """Yield what is wrong with the segments of an ingest plan, and with the contracts that it was composed under."""
    number = body.get("contracts", 0)
    if type(number) is not int or not 0 <= number < _MOST_OVERLAYS:
        yield "contracts is no number of an overlay"
    for place, row in enumerate(body["segments"]):
        for path in segment_paths(row):
            if not is_spool_path(path):
                yield f"segments[{place}] lies outside the spool"
        if not row["table"] or "/" in row["table"] or row["table"] in _DOTS:
            yield f"segments[{place}].table is not a folder name"
        if not _DIGEST.fullmatch(row["sha256"]):
            yield f"segments[{place}].sha256 is not a digest"
        if min(row["bytes"], row["rows"]) < 0:
            yield f"segments[{place}] counts below zero"


def file_faults(body: Body) -> Iterator[str]:
    """Yield what is wrong with the files of an action plan of any kind."""
    faults = list(_place_faults(body))
    yield from faults or _count_faults(body)


def of_actions(faults: Rules) -> Rules:
    """Return the rules of a kind of action plan: its own are looked at where tables and paths are some."""

    @wraps(faults)
    def every(body: Body) -> Iterator[str]:
        if wrong := list(_place_faults(body)):
            yield from wrong
        else:
            yield from _count_faults(body)
            yield from faults(body)

    return every


def _place_faults(body: Body) -> Iterator[str]:
    """Yield tables and paths that are none."""
    tables = {*body["remove"], *body["kept"], *body["account"], *(row["table"] for row in body["add"])}
    for name in sorted(table for table in tables if not _TABLE.fullmatch(table)):
        yield f"table {name[:40]!r} is not a table name"
    for place, row in enumerate(body["add"]):
        if not is_data_path(row["path"], row["partition"]):
            yield f"add[{place}].path lies outside its partition"
    for table, rows in body["remove"].items():
        for place, row in enumerate(rows):
            if not is_data_path(row["path"], row["date"]):
                yield f"remove.{table}[{place}].path lies outside its partition"
    for table, paths in body["kept"].items():
        if not all(map(is_data_path, paths)):
            yield f"kept.{table} has a path outside its table"


def _count_faults(body: Body) -> Iterator[str]:
    """Yield counts that do not agree with one another."""
    for place, row in enumerate(body["add"]):
        if row["rows"] < 0 or row["size_bytes"] < 0 or _row_count(row["stats"]) != row["rows"]:
            yield f"add[{place}] counts other rows than its statistics"
    gone = [row for rows in body["remove"].values() for row in rows]
    if any(row["num_records"] < 0 or row["size_bytes"] < 0 for row in gone):
        yield "a removed file counts below zero"
    if len({(table, row["path"]) for table, rows in body["remove"].items() for row in rows}) < len(gone):
        yield "a file is removed twice"
    coming = [(row["table"], row["path"]) for row in body["add"]]
    going = {(table, row["path"]) for table, rows in body["remove"].items() for row in rows}
    if len(set(coming)) < len(coming) or going & set(coming):
        yield "a file is added twice, or is what it replaces"
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    folds = {_FOLDED} if facts.get(_FOLDED) else frozenset()  # aggregates come in the place of others' rows
    added = {table: 0 if table in folds else _added(body, table) for table in body["remove"]}
    if dict(body["account"]) != {table: rows - _removed(body, table) for table, rows in added.items()}:
        yield "account is not what its files come to"


def _row_count(stats: str) -> object:
    try:
        parsed = json.loads(stats)
    except ValueError:
        return None
    return parsed.get("numRecords") if isinstance(parsed, dict) else None


def _added(body: Body, table: str) -> int:
    return sum(row["rows"] for row in body["add"] if row["table"] == table)


def _removed(body: Body, table: str) -> int:
    return sum(row["num_records"] for row in body["remove"].get(table, []))


def _changed_dates(body: Body) -> bool:
    """Whether a date of a table would hold another number of rows than before."""
    before: dict[tuple[str, str], int] = defaultdict(int)
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    after: Counter[tuple[str, str]] = Counter()
    for row in body["add"]:
        after[row["table"], row["partition"]] += row["rows"]
    return dict(before) != dict(after)


def _deletions(body: Body, what: str) -> Iterator[str]:
    if body["purge"]:
        yield f"a {what} deletes files"


def _keeping_rows(what: str) -> Rules:
    """Return the rules of a kind that writes rows again: each date has as many as before, and nothing is deleted."""

    @of_actions
    def faults(body: Body) -> Iterator[str]:
        if _changed_dates(body):
            yield f"a {what} changes how many rows a date holds"
        yield from _deletions(body, what)

    return faults


compaction_faults: Final = _keeping_rows("merge")
renumber_faults: Final = _keeping_rows("renumbering")


@of_actions
def migration_faults(body: Body) -> Iterator[str]:
    """Yield how a migration would lose rows, or names other files than come and go.

    One that says so may have rows on other dates than before, or dates that were computed and have other rows; whether
    it may say so, its verification looks.
    """
    computed = body["facts"].get("computed", [])
    if not _is_computed(computed):
        yield "computed is not files that go, files that come, and a digest"
        return
    outs, ins = ({path for one in computed for path in one[side]} for side in ("out", "in"))
    kept = {
        **body,
        "add": [row for row in body["add"] if row["path"] not in ins],
        "remove": {name: [row for row in rows if row["path"] not in outs] for name, rows in body["remove"].items()},
    }
    if any(_added(kept, name) != _removed(kept, name) for name in {*kept["remove"], *body["account"]}):
        yield "a migration changes how many rows a table holds"
    elif _changed_dates(kept):
        yield "a migration changes how many rows a date holds"
    days = [({path[:15] for path in one["out"]}, {path[:15] for path in one["in"]}) for one in computed]
    if any(len(out) != 1 or out != come for out, come in days):
        yield "a date was computed, and files of others come or go with it"
    yield from _deletions(body, "migration")
    pairs = body["facts"]["pairs"]
    gone = {row["path"] for rows in body["remove"].values() for row in rows}
    come = {row["path"] for row in body["add"]}
    if {old for old, _ in pairs} | outs != gone or {new for _, new in pairs} | ins != come:
        yield "pairs are not the files that come and go"


def _is_computed(computed: object) -> bool:
    """Whether something is what a migration says of dates that it computed."""
    return isinstance(computed, list) and all(
        isinstance(one, dict)
        and one.keys() == {"out", "in", "of"}
        and isinstance(one["of"], str)
        and all(
            isinstance(one[side], list) and all(isinstance(path, str) for path in one[side]) for side in ("out", "in")
        )
        for one in computed
    )


@of_actions
def replay_faults(body: Body) -> Iterator[str]:
    """Yield how a replay would take rows away, or reach beyond its table."""
    if any(rows < 0 for rows in body["account"].values()):
        yield "a replay takes rows away"
    if {row["table"] for row in body["add"]} - set(body["remove"]) or len(body["remove"]) > 1:
        yield "a replay is of more than one table"
    yield from _deletions(body, "replay")


@of_actions
def quarantine_faults(body: Body) -> Iterator[str]:
    """Yield how rows would go that are not put into quarantine."""
    if any(rows > 0 for rows in body["account"].values()) or _REJECTS in body["remove"]:
        yield "a quarantine brings rows"
    if -sum(body["account"].values()) != _added(body, _REJECTS):
        yield "a quarantine takes out other rows than it puts into rejects"
    if {row["table"] for row in body["add"]} - {*body["remove"], _REJECTS, *_SAYS}:
        yield "a quarantine brings rows to other tables"
    yield from _deletions(body, "quarantine")


@of_actions
def release_faults(body: Body) -> Iterator[str]:
    """Yield how a release would do anything but let rows go back from ``rejects``, and write down that it was done."""
    name = body["facts"].get("release") if isinstance(body.get("facts"), dict) else None
    if not isinstance(name, str) or not _RELEASE.fullmatch(name):
        yield "facts name no release"
    if {table for table, rows in body["remove"].items() if rows} - {_REJECTS}:
        yield "a release takes rows out of other tables than rejects"
    if sum(body["account"].values()) or any(rows < 0 for table, rows in body["account"].items() if table != _REJECTS):
        yield "a release brings other rows than it takes out of rejects"
    if {row["table"] for row in body["add"]} - {*body["remove"], _RELEASES}:
        yield "a release brings rows to other tables"
    if [row["rows"] for row in body["add"] if row["table"] == _RELEASES] != [1]:
        yield "a release does not write down that it was applied"
    yield from _deletions(body, "release")

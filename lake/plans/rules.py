"""Rules for plans of each kind, checked whenever a plan is read, before anything acts on it.

A plan is a file in the bucket, and who may write there may write one. So none is believed for being there: its paths
lie in the folders of their tables, dates and counts agree, and a kind does what it is for and nothing else. Which
rules are of which kind stands in `ranklake.lake.plans.kinds`; whether what a plan says is true of the lake is looked at
by `ranklake.lake.plans.verification`.

A retention's plan may say of files that they stay for some days of grace, so that it can be cancelled:

    applied ─▶ rows out of tables, files kept ─▶ cancelled: the rows come back in new files
                                              └▶ over: a plan of kind ``purge`` deletes the files

Of a date that goes whole, or whose values are masked, its old files are kept; of one of which only some rows go, files
of those rows, which no commit names.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Final

from ranklake.lake.store.json_shape import Nullable, fault
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
    added = {table: 0 if table in folds else _added_files(body, table) for table in body["remove"]}
    if dict(body["account"]) != {table: rows - _removed_files(body, table) for table, rows in added.items()}:
        yield "account is not what its files come to"


def _row_count(stats: str) -> object:
    try:
        parsed = json.loads(stats)
    except ValueError:
        return None
    return parsed.get("numRecords") if isinstance(parsed, dict) else None


def _added_files(body: Body, table: str) -> int:
    return sum(row["rows"] for row in body["add"] if row["table"] == table)


def _removed_files(body: Body, table: str) -> int:
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
    if any(_added_files(kept, name) != _removed_files(kept, name) for name in {*kept["remove"], *body["account"]}):
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
    if -sum(body["account"].values()) != _added_files(body, _REJECTS):
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


GRACE: Final = "grace"
"""Among the facts of a retention's plan, where files are kept."""
REPLACED: Final = "kept"
"""Among the facts of an erasure's plan: kept files that held rows of the subject, and what took their place."""

_RETENTION_PLAN: Final = re.compile(r"rp-[0-9a-f]{16,64}")
_REGISTER: Final = "retention_plans"
_DOWNSAMPLED: Final = "downsampled"
_FILE: Final = {"path": str, "size_bytes": int, "num_records": int, "date": str}
SHAPE: Final[Mapping[str, Any]] = {
    "until": str,
    "uptime": Nullable((str, float)),
    "versions": {...: int},
    "aside": {...: [_FILE]},
}
"""When it ends (ISO); the machine's uptime when it began; the contract versions that the files are under, by table; and
files of rows that went of dates of which others stayed."""
REPLACED_SHAPE: Final[Mapping[Any, Any]] = {...: [{"path": str, "by": [{**_FILE, "version": int}]}]}
"""By table, each with its path, and the files that have its other rows, under a contract version."""


def grace_faults(body: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a retention would keep files in another way than it can be cancelled, or purged."""
    grace = facts.get(GRACE)
    if grace is None:
        return
    if (wrong := fault(grace, SHAPE, GRACE)) is not None:
        yield f"facts say of kept files what is not so: {wrong}"
        return
    if body["purge"]:
        yield "a retention keeps files, and deletes them"
    yield from _path_faults((table, row) for table, rows in grace["aside"].items() for row in rows)


def replaced_faults(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield faults of an erasure whose replacement files do not hold fewer rows than the kept ones."""
    replaced = facts.get(REPLACED, {})
    if (wrong := fault(replaced, REPLACED_SHAPE, REPLACED)) is not None:
        yield f"facts say of kept files what is not so: {wrong}"
        return
    yield from _path_faults((table, row) for table, some in replaced.items() for one in some for row in one["by"])


def _path_faults(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    if not all(is_data_path(row["path"], row["date"]) and row["num_records"] > 0 for _, row in rows):
        yield "a kept file lies outside its partition, or has no rows"


def kept_rows(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the table and the file of everything that a retention's plan keeps; nothing where it keeps none."""
    facts = body.get("facts") or {}
    if GRACE not in facts:
        return
    aside: Mapping[str, Any] = facts[GRACE]["aside"]
    thinned = {(table, row["date"]) for table, rows in aside.items() for row in rows}
    for table, rows in body["remove"].items():
        yield from ((table, row) for row in rows if (table, row["date"]) not in thinned)
    for table, rows in aside.items():
        yield from ((table, row) for row in rows)


@of_actions
def cancellation_faults(body: Body) -> Iterator[str]:
    """Yield how a cancellation would do anything but bring back rows of one retention plan, and write that down."""
    yield from _names_plan(body)
    if body["purge"]:
        yield "a cancellation deletes files"
    before: Counter[tuple[str, str]] = Counter()
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    after: Counter[tuple[str, str]] = Counter()
    for row in body["add"]:
        after[row["table"], row["partition"]] += row["rows"]
    if any(after[place] < rows for place, rows in before.items() if place[0] != _DOWNSAMPLED):
        yield "a cancellation takes rows away"
    if any(rows > before[place] for place, rows in after.items() if place[0] == _DOWNSAMPLED and before[place]):
        yield "a cancellation brings aggregates"


@of_actions
def purge_faults(body: Body) -> Iterator[str]:
    """Yield how a purge would change any table but its register; which files it deletes says the plan it is about."""
    yield from _names_plan(body)
    if body["purge"] or any(body["remove"].values()) or {row["table"] for row in body["add"]} != {_REGISTER}:
        yield "a purge changes tables"


def _names_plan(body: Body) -> Iterator[str]:
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    if fault(facts, {"retention_plan": _RETENTION_PLAN, "of": int}, "facts") is not None:
        yield "facts name no retention plan, or none of the lake's plans"
    if body["remove"].get(_REGISTER) or [row["rows"] for row in body["add"] if row["table"] == _REGISTER] != [1]:
        yield "it does not write down what it did, or takes such a row away"

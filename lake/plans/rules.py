"""Rules for plans of each kind, checked whenever a plan is read, before it is carried out.

A plan is a file in the bucket, so anyone who may write to the bucket can write one. Every plan is therefore validated:
its paths must be in the folders of their tables, dates and counts must agree, and a kind must make only the changes
for which it exists. `ranklake.lake.plans.kinds` assigns rules to kinds. `ranklake.lake.plans.verification` compares a
plan with the lake.

A retention plan may keep the removed files for some days of grace, so that it can be cancelled:

    applied ─▶ rows removed from tables, files kept ─▶ cancelled: new files restore the rows
                                                     └▶ expired: a plan of kind ``purge`` deletes the files

For a date that is removed completely or masked, its old files are kept. For a date that loses only some rows, new files
with those rows are kept, which no commit names.
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
_REASONS: Final = frozenset({"quality_results", "disowned"})
"""Tables to which a quarantine adds the reasons."""
_REJECTS: Final = "rejects"
_FOLDED: Final = "downsampled"
_RELEASES: Final = "quality_releases"

Body = Mapping[str, Any]
Rules = Callable[[Body], Iterator[str]]


def is_data_path(path: str, day: str | None = None) -> bool:
    """Whether a path, relative to its table's folder, is valid for a data file, of this date (ISO) if given."""
    return _DATA.fullmatch(path) is not None and (day is None or path.startswith(f"date={day}/"))


def is_spool_path(path: str) -> bool:
    """Whether a path is valid for a file in a spool: any name, below a folder ``segments``, without ``..``."""
    parts = path.split("/")
    return "\0" not in path and not _DOTS & set(parts) and "segments" in parts


def segment_paths(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield all paths of a segment in an ingest plan; an empty path in place of each invalid value."""
    yield from (row["path"], *row["others"])
    earlier = row.get("earlier", [])
    for entry in earlier if isinstance(earlier, list) else [None]:
        path = entry.get("path") if isinstance(entry, dict) else None
        yield path if isinstance(path, str) else ""


def segment_faults(body: Body) -> Iterator[str]:
    """Yield violations in the segments of an ingest plan, and in the number of its overlay."""
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
    """Return the complete rules of a kind of action plan: general rules first, then `faults` if all paths are valid."""

    @wraps(faults)
    def all_faults(body: Body) -> Iterator[str]:
        if place_faults := list(_place_faults(body)):
            yield from place_faults
        else:
            yield from _count_faults(body)
            yield from faults(body)

    return all_faults


def _place_faults(body: Body) -> Iterator[str]:
    """Yield violations in table names and paths."""
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
    """Yield contradictions between counts, and files that are listed twice."""
    for place, row in enumerate(body["add"]):
        if row["rows"] < 0 or row["size_bytes"] < 0 or _row_count(row["stats"]) != row["rows"]:
            yield f"add[{place}] counts other rows than its statistics"
    removed_rows = [row for rows in body["remove"].values() for row in rows]
    if any(row["num_records"] < 0 or row["size_bytes"] < 0 for row in removed_rows):
        yield "a removed file counts below zero"
    removed = {(table, row["path"]) for table, rows in body["remove"].items() for row in rows}
    if len(removed) < len(removed_rows):
        yield "a file is removed twice"
    added = [(row["table"], row["path"]) for row in body["add"]]
    if len(set(added)) < len(added) or removed & set(added):
        yield "a file is added twice, or is what it replaces"
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    uncounted = {_FOLDED} if facts.get(_FOLDED) else frozenset()  # aggregates replace rows of other tables
    counts = {table: 0 if table in uncounted else _added_rows(body, table) for table in body["remove"]}
    if dict(body["account"]) != {table: rows - _removed_rows(body, table) for table, rows in counts.items()}:
        yield "account is not what its files come to"


def _row_count(stats: str) -> object:
    try:
        parsed = json.loads(stats)
    except ValueError:
        return None
    return parsed.get("numRecords") if isinstance(parsed, dict) else None


def _added_rows(body: Body, table: str) -> int:
    return sum(row["rows"] for row in body["add"] if row["table"] == table)


def _removed_rows(body: Body, table: str) -> int:
    return sum(row["num_records"] for row in body["remove"].get(table, []))


def _changes_counts(body: Body) -> bool:
    """Whether the number of rows of any partition would change."""
    before: dict[tuple[str, str], int] = defaultdict(int)
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    after: Counter[tuple[str, str]] = Counter()
    for row in body["add"]:
        after[row["table"], row["partition"]] += row["rows"]
    return dict(before) != dict(after)


def _deletions(body: Body, noun: str) -> Iterator[str]:
    if body["purge"]:
        yield f"a {noun} deletes files"


def _rewrite_rules(noun: str) -> Rules:
    """Return the rules of a kind that rewrites rows: each partition keeps its number of rows; no file is deleted."""

    @of_actions
    def faults(body: Body) -> Iterator[str]:
        if _changes_counts(body):
            yield f"a {noun} changes how many rows a date holds"
        yield from _deletions(body, noun)

    return faults


compaction_faults: Final = _rewrite_rules("merge")
renumber_faults: Final = _rewrite_rules("renumbering")


@of_actions
def migration_faults(body: Body) -> Iterator[str]:
    """Yield violations in a migration plan, which may not lose rows, and must list pairs of all replaced files.

    Dates of derived tables that the migration computed again (`computed`) may have another number of rows. The plan's
    verification checks whether they were computed.
    """
    computed = body["facts"].get("computed", [])
    if not _is_computed(computed):
        yield "computed is not files that go, files that come, and a digest"
        return
    outs, ins = ({path for entry in computed for path in entry[side]} for side in ("out", "in"))
    rewritten = {
        **body,
        "add": [row for row in body["add"] if row["path"] not in ins],
        "remove": {name: [row for row in rows if row["path"] not in outs] for name, rows in body["remove"].items()},
    }
    names = {*rewritten["remove"], *body["account"]}
    if any(_added_rows(rewritten, name) != _removed_rows(rewritten, name) for name in names):
        yield "a migration changes how many rows a table holds"
    elif _changes_counts(rewritten):
        yield "a migration changes how many rows a date holds"
    folders = [({path[:15] for path in entry["out"]}, {path[:15] for path in entry["in"]}) for entry in computed]
    if any(len(before) != 1 or before != after for before, after in folders):
        yield "a date was computed, and files of others come or go with it"
    yield from _deletions(body, "migration")
    pairs = body["facts"]["pairs"]
    removed = {row["path"] for rows in body["remove"].values() for row in rows}
    added = {row["path"] for row in body["add"]}
    if {old for old, _ in pairs} | outs != removed or {new for _, new in pairs} | ins != added:
        yield "pairs are not the files that come and go"


def _is_computed(computed: object) -> bool:
    """Whether a value has the form of the dates that a migration computed: a list of {out, in, of}."""
    return isinstance(computed, list) and all(
        isinstance(entry, dict)
        and entry.keys() == {"out", "in", "of"}
        and isinstance(entry["of"], str)
        and all(
            isinstance(entry[side], list) and all(isinstance(path, str) for path in entry[side])
            for side in ("out", "in")
        )
        for entry in computed
    )


@of_actions
def replay_faults(body: Body) -> Iterator[str]:
    """Yield violations in a replay plan, which may not remove rows or change more than one table."""
    if any(rows < 0 for rows in body["account"].values()):
        yield "a replay takes rows away"
    if {row["table"] for row in body["add"]} - set(body["remove"]) or len(body["remove"]) > 1:
        yield "a replay is of more than one table"
    yield from _deletions(body, "replay")


@of_actions
def quarantine_faults(body: Body) -> Iterator[str]:
    """Yield violations in a quarantine plan, which must add to ``rejects`` as many rows as it removes elsewhere."""
    if any(rows > 0 for rows in body["account"].values()) or _REJECTS in body["remove"]:
        yield "a quarantine brings rows"
    if -sum(body["account"].values()) != _added_rows(body, _REJECTS):
        yield "a quarantine takes out other rows than it puts into rejects"
    if {row["table"] for row in body["add"]} - {*body["remove"], _REJECTS, *_REASONS}:
        yield "a quarantine brings rows to other tables"
    yield from _deletions(body, "quarantine")


@of_actions
def release_faults(body: Body) -> Iterator[str]:
    """Yield violations in a release plan, which may only move rows back from ``rejects`` and register itself."""
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
"""Key of a retention plan's facts: the files that it keeps during the days of grace."""
REPLACED: Final = "kept"
"""Key of an erasure plan's facts: kept files with rows of the subject, and the files that replace them."""

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
"""Shape of `GRACE`: its end (ISO time); the machine's uptime at its begin; contract versions of the files, by table;
and, by table, files with the removed rows of dates that keep other rows."""
REPLACED_SHAPE: Final[Mapping[Any, Any]] = {...: [{"path": str, "by": [{**_FILE, "version": int}]}]}
"""Shape of `REPLACED`, by table: the path of a kept file, and the files that contain its other rows, with the contract
version of each."""


def grace_faults(body: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield violations in the files that a retention plan keeps for cancellation."""
    grace = facts.get(GRACE)
    if grace is None:
        return
    if (problem := fault(grace, SHAPE, GRACE)) is not None:
        yield f"facts say of kept files what is not so: {problem}"
        return
    if body["purge"]:
        yield "a retention keeps files, and deletes them"
    yield from _path_faults(row for rows in grace["aside"].values() for row in rows)


def replaced_faults(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield violations in the files with which an erasure plan replaces kept files."""
    replaced = facts.get(REPLACED, {})
    if (problem := fault(replaced, REPLACED_SHAPE, REPLACED)) is not None:
        yield f"facts say of kept files what is not so: {problem}"
        return
    yield from _path_faults(row for kept_files in replaced.values() for file in kept_files for row in file["by"])


def _path_faults(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    if not all(is_data_path(row["path"], row["date"]) and row["num_records"] > 0 for row in rows):
        yield "a kept file lies outside its partition, or has no rows"


def kept_rows(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (table, file) of all files that a retention plan keeps for cancellation."""
    facts = body.get("facts") or {}
    if GRACE not in facts:
        return
    aside: Mapping[str, Any] = facts[GRACE]["aside"]
    partial_dates = {(table, row["date"]) for table, rows in aside.items() for row in rows}
    for table, rows in body["remove"].items():
        yield from ((table, row) for row in rows if (table, row["date"]) not in partial_dates)
    for table, rows in aside.items():
        yield from ((table, row) for row in rows)


@of_actions
def cancellation_faults(body: Body) -> Iterator[str]:
    """Yield violations in a cancellation, which may only restore rows of one retention plan and register itself."""
    yield from _register_faults(body)
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
    """Yield violations in a purge, which may only change the register. The retention plan lists the files to delete."""
    yield from _register_faults(body)
    if body["purge"] or any(body["remove"].values()) or {row["table"] for row in body["add"]} != {_REGISTER}:
        yield "a purge changes tables"


def _register_faults(body: Body) -> Iterator[str]:
    """Yield violations in the reference to a retention plan and in the new row of the register."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    if fault(facts, {"retention_plan": _RETENTION_PLAN, "of": int}, "facts") is not None:
        yield "facts name no retention plan, or none of the lake's plans"
    if body["remove"].get(_REGISTER) or [row["rows"] for row in body["add"] if row["table"] == _REGISTER] != [1]:
        yield "it does not write down what it did, or takes such a row away"

"""Grace: what a retention's plan says of files that stay for some days, so that it can be cancelled.

    applied ─▶ rows out of tables, files kept ─▶ cancelled: the rows come back in new files
                                              └▶ over: a plan of kind ``purge`` deletes the files

Of a date that goes whole, or whose values are masked, its old files are kept; of one of which only some rows go, files
of those rows, which no commit names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ranklake.lake.plans.rules import Body, is_data_path, of_actions
from ranklake.lake.store.json_shape import Maybe, fault

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
    "uptime": Maybe((str, float)),
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
    """Yield how an erasure would put other files in the place of kept ones than such that hold less."""
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

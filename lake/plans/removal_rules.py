"""Rules for plans of kinds ``retention`` and ``erasure``: partitions or rows go, and aggregates may come."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ranklake.lake.plans.grace import grace_faults, replaced_faults
from ranklake.lake.plans.rules import Body, of_actions

Places = set[tuple[str, str]]
"""Tables and dates."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RETENTION_PLAN: Final = re.compile(r"rp-[0-9a-f]{16,64}")
_REGISTER: Final = "retention_plans"
_DOWNSAMPLED: Final = "downsampled"
_ARCHIVES: Final = "archives"
_ARCHIVE: Final = re.compile(r"ar-[0-9a-f]{16}")


@of_actions
def retention_faults(body: Body) -> Iterator[str]:
    """Yield how a retention would do anything but let partitions go, or rows of them."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    name = facts.get("retention_plan")
    if not isinstance(name, str) or not _RETENTION_PLAN.fullmatch(name):
        yield "facts name no retention plan"
    elif not is_raw(facts.get("quarantined", {})):
        yield "facts name other raw bytes than digests"
    left: Counter[tuple[str, str]] = Counter()
    for row in body["add"]:
        left[row["table"], row["partition"]] += row["rows"]
    before: Counter[tuple[str, str]] = Counter()
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    masked, folded = (_places(facts.get(one, {})) for one in ("masked", "downsampled"))
    if masked is None or folded is None:
        yield f"facts name other {'masked' if masked is None else 'downsampled'} dates than dates by table"
        return
    if any(left[place] != before[place] for place in masked):
        yield "a retention changes how many rows a date holds of which it masks values"
    if any(left[place] or not before[place] for place in folded):
        yield "a retention downsamples a date that keeps its rows, or has none"
    own = [row["rows"] for row in body["add"] if row["table"] == _REGISTER]
    yield from _archive_faults(body, facts)
    yield from grace_faults(body, facts)
    spared = masked | {(_DOWNSAMPLED, day) for _, day in folded}
    own_rows = {_REGISTER, _ARCHIVES}
    shrinks = {place: rows for place, rows in left.items() if place[0] not in own_rows and place not in spared}
    if own != [1] or any(rows >= before[place] for place, rows in shrinks.items()):
        yield "a retention brings rows"


def _archive_faults(body: Body, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield how what a retention says of archives does not fit what it writes down of them."""
    made, ended = facts.get("archived", {}), facts.get("archives_ended", {})
    days = list(made.values()) if isinstance(made, dict) else [None]
    manifests = [one for some in days for one in (some.values() if isinstance(some, dict) else [None])]
    if not all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in manifests):
        yield "facts name other archives than manifests by table and date"
    if not _is_lists(ended, _ARCHIVE):
        yield "facts name other archives that end than archives"
        return
    written = sum(row["rows"] for row in body["add"] if row["table"] == _ARCHIVES)
    if written != len(manifests) + sum(len(some) for days in ended.values() for some in days.values()):
        yield "a retention does not write down what it archives, or other archives"
    if body["remove"].get(_ARCHIVES):
        yield "a retention takes archives out of their register"


def _places(dates: object) -> Places | None:
    """Return the dates that facts name by table; None where they are something else."""
    if not isinstance(dates, Mapping) or not all(isinstance(days, list) for days in dates.values()):
        return None
    return {(table, day) for table, days in dates.items() for day in days if isinstance(day, str)}


def is_raw(digests: object) -> bool:
    """Whether something is digests by table and date."""
    return _is_lists(digests, _DIGEST)


def _is_lists(value: object, form: re.Pattern[str]) -> bool:
    """Whether something is lists of texts of a form, by table and date."""
    if not isinstance(value, dict):
        return False
    lists = [some for days in value.values() for some in (days.values() if isinstance(days, dict) else [None])]
    return all(
        isinstance(some, list) and all(isinstance(one, str) and form.fullmatch(one) for one in some) for some in lists
    )


_ERASURE: Final = re.compile(r"er-[0-9a-f]{16}")
_ERASURES: Final = "erasures"
_NAMED: Final = "segments"
"""Table whose rows stay, with pseudonyms in the place of names."""
_BOOKS: Final = frozenset(
    {"audit", "disowned", "ingest_plans", "lineage", "migrations", "quality_releases", "retention_plans"}
)


@of_actions
def erasure_faults(body: Body) -> Iterator[str]:
    """Yield how an erasure would do anything but take rows out, and write down that it was applied."""
    facts = body["facts"] if isinstance(body.get("facts"), dict) else {}
    name = facts.get("erasure")
    if not isinstance(name, str) or not _ERASURE.fullmatch(name):
        yield "facts name no erasure"
    if not is_raw(facts.get("quarantined", {})):
        yield "facts name other raw bytes than digests"
    if touched := _BOOKS & {*body["remove"], *(row["table"] for row in body["add"])}:
        yield f"an erasure changes the books: {min(touched)}"
    if body["remove"].get(_ERASURES) or [row["rows"] for row in body["add"] if row["table"] == _ERASURES] != [1]:
        yield "an erasure does not write down that it was applied, or takes such a row away"
    yield from replaced_faults(facts)
    yield from _count_faults(body)


def _count_faults(body: Body) -> Iterator[str]:
    """Yield dates that would have more rows than before; of names, any other number.

    As many are right where files are written again as they are: words of the subject were in their dictionaries.
    """
    before: Counter[tuple[str, str]] = Counter()
    after: Counter[tuple[str, str]] = Counter()
    for table, rows in body["remove"].items():
        for row in rows:
            before[table, row["date"]] += row["num_records"]
    for row in body["add"]:
        if row["table"] != _ERASURES:
            after[row["table"], row["partition"]] += row["rows"]
    for place in sorted({*before, *after}):
        if (before[place] != after[place]) if place[0] == _NAMED else (after[place] > before[place]):
            yield f"an erasure brings rows: {place[0]} {place[1]}"

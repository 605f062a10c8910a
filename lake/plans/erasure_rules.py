"""Rules for plans that erase: see `ranklake.lake.plans.rules`."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from ranklake.lake.plans.grace import replaced_faults
from ranklake.lake.plans.retention_rules import is_raw
from ranklake.lake.plans.rules import Body, of_actions

_ERASURE: Final = re.compile(r"er-[0-9a-f]{16}")
_REGISTER: Final = "erasures"
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
    if body["remove"].get(_REGISTER) or [row["rows"] for row in body["add"] if row["table"] == _REGISTER] != [1]:
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
        if row["table"] != _REGISTER:
            after[row["table"], row["partition"]] += row["rows"]
    for place in sorted({*before, *after}):
        if (before[place] != after[place]) if place[0] == _NAMED else (after[place] > before[place]):
            yield f"an erasure brings rows: {place[0]} {place[1]}"

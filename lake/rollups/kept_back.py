"""What checks hold back: output dates and runs that depend on it stay as they were, and due.

Nothing is left out of an output: half of a step's ranks, or a run without one of its days, would be wrong in a way that
nobody sees. What was published before is still there, and what was not is missing as a whole.
"""

from collections.abc import Collection, Mapping
from datetime import date

from ranklake.lake.rollups.inputs import WHOLE, Key, day_of


def without(
    due: Mapping[date, dict[Key, str]], kept_back: Collection[Key]
) -> tuple[dict[date, dict[Key, str]], set[Key]]:
    """Return the dates of a partition rollup that may be computed, and the partitions for which the others may not."""
    if not kept_back:
        return dict(due), set()
    may: dict[date, dict[Key, str]] = {}
    why: set[Key] = set()
    for day, inputs in due.items():
        held = {key for key in kept_back if _is_read(key, inputs, day)}
        why |= held
        if not held:
            may[day] = inputs
    return may, why


def _is_read(key: Key, inputs: Collection[Key], day: date) -> bool:
    """Return whether a date is computed from a partition: by itself, or with all of its table up to that date."""
    return key in inputs or ((key[0], WHOLE) in inputs and day_of(key[1]) <= day)

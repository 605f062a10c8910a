"""Steps done: how many, and which, in words; the one way in which they are counted."""

from ranklake.insight.runs.asking import Row


def steps_done(row: Row) -> str:
    """Return which steps a row of a summary tells of, such as ``150 steps (0 to 149)``.

    They are numbered from 0, so the last of 150 is 149, and a rank that dies after it is in step 150.
    """
    count, first, last = row["steps"], row["first_step"], row["last_step"]
    if count is None:
        return "an unknown number of steps"
    if not count or first is None or last is None:
        return "no step" if not count else f"{count:,} steps"
    which = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    return f"{count:,} step{'' if count == 1 else 's'} ({which})"

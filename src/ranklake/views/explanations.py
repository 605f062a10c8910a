"""Explanations of failed checks as lines of text."""

from collections.abc import Iterator

from ranklake.printable import printable
from ranklake.quality.why.explanation import Explanation, Told
from ranklake.views.words import counted


def explanation_lines(one: Explanation) -> list[str]:
    """Return what there is to say of one failure: the check, what explains it, keys of rows."""
    about = f" ({one.column})" if one.column else ""
    lines = [f"{one.table} {one.partition_date}  {one.check_id}{about}  {one.severity}"]
    return [*lines, *(f"  {line}" for line in _facts(one)), ""]


def _facts(one: Explanation) -> Iterator[str]:
    if one.unknown:
        yield one.unknown
        if one.message:
            yield printable(one.message)
        if one.observed and one.observed not in (one.message or ""):
            yield f"observed: {printable(one.observed)}"
        return
    yield f"{one.failed:,} of {counted(one.rows, 'row')} fail"
    if one.best is not None:
        yield f"best explained by {_named(one.best)}: {_counts(one.best)}"
        if one.alike:
            yield f"as many rows: {', '.join(_named(each) for each in one.alike)}"
    elif one.nearest is not None:
        held = f"{one.nearest.share:.0%} of the failing rows"
        yield f"nothing stands out; nearest is {_named(one.nearest)} with {held}: {_counts(one.nearest)}"
    for sample in one.samples:
        yield "row " + " ".join(f"{name}={value}" for name, value in sample.items())


def _named(one: Told) -> str:
    return f"{one.facet} {one.value}"


def _counts(one: Told) -> str:
    here = f"{one.failed:,} of its {counted(one.rows, 'row')} fail"
    if not one.rest_rows:
        return f"{here}; there are no others"
    times = "" if one.lift is None else f", {one.lift:,.1f} times as often"
    return f"{here}, {one.rest_failed:,} of the other {one.rest_rows:,}{times}"

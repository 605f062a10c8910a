"""``ranklake tag``: names, tags, notes and summary values of a run, during the run or after it."""

from collections.abc import Iterator
from typing import Any

import click

from ranklake.capture.common.values import BadValueError
from ranklake.capture.provenance.annotations import PERSON, annotation
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, overriding, spool_option
from ranklake.commands.spool_rows import send_rows
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import annotations_of
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import find_run
from ranklake.printable import counted
from ranklake.segments.segment import RUN_NAME
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("run")
@click.argument("tags", nargs=-1, metavar="[TAG[=VALUE]]…")
@click.option("--remove", multiple=True, metavar="TAG", help="Remove a tag; repeatable.")
@click.option("--name", metavar="TEXT", help="Display name.")
@click.option("--note", multiple=True, metavar="TEXT", help="Note, free text; repeatable.")
@click.option("--summary", multiple=True, metavar="NAME=VALUE", help="Summary value; repeatable.")
@json_option
@overriding(
    "--lake", place="lake.uri", metavar="URI", help="Lake whose runs RUN is looked up in; default: as configured."
)
@spool_option
@with_context
def tag(
    context: Context,
    *,
    run: str,
    tags: tuple[str, ...],
    remove: tuple[str, ...],
    name: str | None,
    note: tuple[str, ...],
    summary: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add tags, a name, notes and summary values to RUN; the next ingest stores them in the lake.

    Each is a row of the table annotations. Nothing is overwritten: the latest name, tag or summary value is valid. RUN
    may be the beginning of a name, or a display name, if a lake is configured.
    """
    try:
        rows = [
            *(annotation("tag", tag, removed=True, source=PERSON) for tag in remove),
            *(annotation("tag", key, value, source=PERSON) for key, value in _pairs(tags)),
            *([annotation("name", value=name, source=PERSON)] if name is not None else []),
            *(annotation("note", value=text, source=PERSON) for text in note),
            *(annotation("summary", key, _summary_value(value), source=PERSON) for key, value in _pairs(summary)),
        ]
    except BadValueError as error:
        raise RanklakeError(str(error), where="ranklake tag", hint="write TAG, TAG=VALUE, or text") from error
    if not rows:
        raise RanklakeError(
            "no tag, name, note or summary value", where="ranklake tag", hint="write a tag, --name, --note or --summary"
        )
    run = _find_run(context, run)
    unknown = _missing_tags(context, run, remove)
    send_rows(context, run, rows)
    if as_json:
        plain_rows = [{key: row[key] for key in row if key != "author"} for row in rows]
        show_json({"run": run, "rows": plain_rows, "unknown_tags": list(unknown)})
    else:
        tell(*(f"{run} has no tag {tag} in the lake; {hint}" for tag, hint in unknown.items()), err=True)
        tell(f"{counted(len(rows), 'row')} about {run} written to the spool; run 'ranklake ingest' to store them")


def _missing_tags(context: Context, run: str, tags: tuple[str, ...]) -> dict[str, str]:
    """Return the tags that a run lacks in the lake, each with a suggestion; nothing without a lake.

    A tag may not be ingested yet, so it is removed all the same.
    """
    if not context.config.lake.uri or not tags:
        return {}
    result = annotations_of(
        run, asking(context.open_lake())(statements.annotations(statements.run_condition((run,)))).rows
    ).tags
    return {
        tag: did_you_mean(tag, result) or "if it is still in the spool, it is removed once ingested"
        for tag in tags
        if tag not in result
    }


def _pairs(pairs: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    for item in pairs:
        key, sign, value = item.partition("=")
        yield key, value if sign else None


def _summary_value(value: str | None) -> Any:  # noqa: ANN401 - a number or text
    if value is None:
        raise BadValueError("a summary value is missing")
    try:
        return float(value)
    except ValueError:
        return value


def _find_run(context: Context, run: str) -> str:
    """Return the run that a name or its beginning stands for; without a lake, `run` must be the whole name."""
    if context.config.lake.uri:
        return find_run(asking(context.open_lake()), run)
    if not RUN_NAME.fullmatch(run):
        raise RanklakeError(f"{run!r} is not a run's name", where="ranklake tag", hint="name a lake to look it up in")
    return run

"""Medium: one image, table, confusion matrix or text of a run, with its bytes, as a role sees it."""

import base64
import binascii
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask
from ranklake.insight.runs.media import COLUMNS, key_condition

MOST_NAMES: Final = 1000
_MOST: Final = 1000


class MediumError(RanklakeError):
    """A run has no such medium, or its bytes are not to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One of a run's media.

    Attributes
    ----------
    attempt, rank, step, ts
        Which process showed it, of which step (None outside of steps), and when.
    others
        How many others there are that answer to the same name, step and rank.
    raw
        Its bytes: of an image the file's, else UTF-8.
    sql
        What gave them.
    """

    run: str
    name: str
    kind: str
    media_type: str
    attempt: int
    rank: int
    step: int | None
    ts: datetime
    others: int
    raw: bytes = field(repr=False)
    sql: str


def media_names(ask: Ask, run: str) -> Answered:
    """Return a row for each name and kind of a run's media, at most `MOST_NAMES`."""
    return ask(statements.of_run("media_names", run, most=MOST_NAMES))


def medium(ask: Ask, run: str, name: str, step: int | None = None, rank: int | None = None) -> Medium:
    """Return the latest medium of a name, or the latest of a step or rank.

    Raises
    ------
    MediumError
        There is none, or the role does not see its bytes.
    UnseenError
        The role sees no media.
    """
    wanted = {"step": step, "rank": rank}
    more = "".join(f" AND {column} = {number}" for column, number in wanted.items() if number is not None)
    rows = ask(statements.of_run("media_named", run, name, more=more, most=_MOST)).seen().rows
    if not rows:
        raise _no_such(ask, run, name, step, rank)
    row = rows[0]
    hidden = ""
    for column in COLUMNS:
        found = ask(statements.of_run("media_bytes", run, column=column, keys=key_condition(row)))
        hidden = hidden or found.reason
        if found.rows:
            return Medium(
                run=run, name=row["name"], kind=row["kind"], media_type=row["media_type"] or "", attempt=row["attempt"],
                rank=row["rank"], step=row["step"], ts=row["ts"], others=len(rows) - 1,
                raw=_raw(row["kind"], found.one["held"], name), sql=found.sql,
            )  # fmt: skip
    hint = "use a role that sees it as it is" if hidden else ""
    raise MediumError(hidden or "the role sees nothing of its content", where=f"medium {name!r}", hint=hint)


def _raw(kind: str, held: str, name: str) -> bytes:
    if kind != "image":
        return held.encode("utf-8", "replace")
    try:
        return base64.b64decode(held, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediumError("what is stored is no base64", where=f"medium {name!r}") from error


def _no_such(ask: Ask, run: str, name: str, step: int | None, rank: int | None) -> MediumError:
    of_name = ask(statements.of_run("media_named", run, name, more="", most=_MOST)).rows
    if of_name:
        asked = [f"{what} {number}" for what, number in (("step", step), ("rank", rank)) if number is not None]
        steps = sorted({row["step"] for row in of_name if row["step"] is not None})
        hint = f"it has steps {', '.join(map(str, steps[:12]))}{', …' if len(steps) > 12 else ''}" if steps else ""  # noqa: PLR2004
        return MediumError(f"none of {' and '.join(asked)}", where=f"medium {name!r} of run {run}", hint=hint)
    known = [str(row["name"]) for row in media_names(ask, run).rows]
    hint = did_you_mean(name, known) if known else "it showed nothing; record with run.media(name, value)"
    return MediumError("no such medium", where=f"{name!r} of run {run}", hint=hint)

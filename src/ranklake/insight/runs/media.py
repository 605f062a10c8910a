"""Media of a run: its images, tables, confusion matrices and texts, as a role sees them."""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.lake.query.literal import literal

MOST_MEDIA: Final = 60
MOST_OF_A_NAME: Final = 3
MOST_STEPS: Final = 10_000
MOST_BYTES: Final = 600_000
"""Most bytes of media in a page: less than a third of the page."""
FOR_ROLES: Final = "images, tables and texts may be about persons, so only pages for a role that sees them have them"
COLUMNS: Final = ("content", "personal_text", "personal_image")
_CAPTION: Final = "caption"
_ALL: Final = ("*",)

Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Media:
    """Media of a run.

    Attributes
    ----------
    listed
        One row per medium, without its bytes: for each name the latest first, at most `MOST_OF_A_NAME`.
    held
        Bytes as text, or base64 for images, by `key`. Other media appear only in `listed`.
    captions
        Captions by `key`; only for roles, since they are free text.
    withheld
        Why the bytes of some media that fit are missing; empty if none are.
    sources
        Queries of the bytes.
    """

    listed: QueriedFacts
    held: Mapping[Key, str] = field(default_factory=dict)
    captions: Mapping[Key, str] = field(default_factory=dict)
    withheld: str = ""
    sources: tuple[QueriedFacts, ...] = ()


def key(row: Row) -> Key:
    """Return the key of a medium: incarnation, segment and slot."""
    return row["incarnation"], row["segment"], row["slot"]


def key_condition(row: Row) -> str:
    """Return the SQL condition that selects one medium."""
    return _condition(key(row))


def _condition(medium_key: Key) -> str:
    incarnation, segment, slot = medium_key
    return f"(incarnation = {incarnation} AND segment = {segment} AND slot = {slot})"


def media(
    ask: Ask,
    run: str,
    *,
    is_for_role: bool,
    names: Sequence[str] = _ALL,
    until: int | None = None,
    each: int = MOST_OF_A_NAME,
    most_bytes: int = MOST_BYTES,
) -> Media:
    """Return the media of a run: for a role as it sees each column, else without personal data.

    Parameters
    ----------
    names
        Patterns of names.
    until
        Last step whose media are shown; media without a step are shown only if it is None.
    each, most_bytes
        Most media per name, the latest first, and most bytes in total.
    """
    limits = "" if until is None else f" AND step <= {until}"
    if tuple(names) != _ALL:
        wanted_names = [str(row["name"]) for row in media_names(ask, run).rows if matches(str(row["name"]), names)]
        limits += f" AND name IN ({', '.join(map(literal, wanted_names)) or 'NULL'})"
    listed = ask(statements.of_run("media", run, limits=limits, each=each, most=MOST_MEDIA))
    wanted = list(_fitting(listed.rows, most_bytes))
    if not wanted:
        return Media(listed)
    keys = " OR ".join(map(_condition, wanted))
    columns = (*COLUMNS, _CAPTION) if is_for_role else COLUMNS[:1]
    answers = {name: ask(statements.of_run("media_bytes", run, column=name, keys=keys)) for name in columns}
    held: dict[Key, str] = {}
    room = most_bytes
    for row in (row for name in COLUMNS if name in answers for row in answers[name].rows):
        size = _page_bytes(row["held"])  # regardless of the row's own claims
        if size <= room:
            room -= size
            held[key(row)] = row["held"]
    captions = {key(row): row["held"] for row in answers[_CAPTION].rows} if is_for_role else {}
    reasons = "; ".join(dict.fromkeys(one.reason for one in answers.values() if one.reason))
    withheld = "" if len(held) == len(wanted) else reasons if is_for_role else FOR_ROLES
    return Media(listed, held, captions, withheld, tuple(answers.values()))


def media_steps(ask: Ask, run: str, names: Sequence[str]) -> list[int]:
    """Return the steps at which a run has media of names that match, rising, at most `MOST_STEPS`."""
    sql = f"SELECT DISTINCT name, step FROM media WHERE run = {literal(run)} AND step IS NOT NULL ORDER BY step"  # noqa: S608 - quoted
    return list(dict.fromkeys(int(row["step"]) for row in ask(sql).rows if matches(str(row["name"]), names)))[
        :MOST_STEPS
    ]


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _fitting(rows: Iterable[Row], room: int) -> Iterable[Key]:
    """Yield the keys of media that fit a page, in order, by the sizes in their rows as base64."""
    for row in rows:
        size = (row["bytes"] or 0) * 4 // 3
        if 0 <= size <= room:
            room -= size
            yield key(row)


def _page_bytes(text: str) -> int:
    """Estimate the bytes of a text on a page, after escaping markup."""
    return len(text.encode("utf-8", "replace")) + 4 * sum(map(text.count, "<>&'\""))


MOST_NAMES: Final = 1000
_MOST: Final = 1000


class MediumError(RanklakeError):
    """A run has no such medium, or its bytes are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One of a run's media.

    Attributes
    ----------
    attempt, rank, step, ts
        Process and step that logged it (None outside of steps), and when.
    others
        Number of other media with the same name, step and rank.
    raw
        Its bytes: an image file, else UTF-8.
    sql
        Query of the bytes.
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


def media_names(ask: Ask, run: str) -> QueriedFacts:
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
        answer = ask(statements.of_run("media_bytes", run, column=column, keys=key_condition(row)))
        hidden = hidden or answer.reason
        if answer.rows:
            return Medium(
                run=run, name=row["name"], kind=row["kind"], media_type=row["media_type"] or "", attempt=row["attempt"],
                rank=row["rank"], step=row["step"], ts=row["ts"], others=len(rows) - 1,
                raw=_raw(row["kind"], answer.first_row["held"], name), sql=answer.sql,
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

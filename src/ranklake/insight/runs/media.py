"""Media of a run: which images, tables, matrices and texts it showed, and those bytes that may be told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask, Row

MOST_MEDIA: Final = 60
MOST_OF_A_NAME: Final = 3
MOST_BYTES: Final = 600_000
"""Of all that a page has, as they are written: less than a third of it."""
FOR_ROLES: Final = "images, tables and texts may be about persons, so only pages for a role that sees them have them"
COLUMNS: Final = ("content", "personal_text", "personal_image")
_CAPTION: Final = "caption"

Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Media:
    """What a run showed.

    Attributes
    ----------
    listed
        A row a medium, without its bytes: of each name the latest first, at most `MOST_OF_A_NAME`.
    held
        Bytes as text, base64 of images, by `key`; of those that are not there `listed` tells all that is told.
    captions
        By `key`; told to roles alone, since they are what somebody wrote.
    withheld
        Why some are not held; empty if all that fit are.
    sources
        The questions that gave the bytes.
    """

    listed: Answered
    held: Mapping[Key, str] = field(default_factory=dict)
    captions: Mapping[Key, str] = field(default_factory=dict)
    withheld: str = ""
    sources: tuple[Answered, ...] = ()


def key(row: Row) -> Key:
    """Return what tells a medium apart."""
    return row["incarnation"], row["segment"], row["slot"]


def key_condition(row: Row) -> str:
    """Return what is true in SQL of this medium alone."""
    return _condition(key(row))


def _condition(of: Key) -> str:
    incarnation, segment, slot = of
    return f"(incarnation = {incarnation} AND segment = {segment} AND slot = {slot})"


def media(ask: Ask, run: str, *, is_for_role: bool) -> Media:
    """Return what a run showed: to a role as it sees each column, else what is about nobody."""
    listed = ask(statements.of_run("media", run, each=MOST_OF_A_NAME, most=MOST_MEDIA))
    wanted = list(_fitting(listed.rows))
    if not wanted:
        return Media(listed)
    keys = " OR ".join(map(_condition, wanted))
    columns = (*COLUMNS, _CAPTION) if is_for_role else COLUMNS[:1]
    answers = {name: ask(statements.of_run("media_bytes", run, column=name, keys=keys)) for name in columns}
    held: dict[Key, str] = {}
    room = MOST_BYTES
    for row in (row for name in COLUMNS if name in answers for row in answers[name].rows):
        size = _written(row["held"])  # whatever the row says of itself
        if size <= room:
            room -= size
            held[key(row)] = row["held"]
    captions = {key(row): row["held"] for row in answers[_CAPTION].rows} if is_for_role else {}
    reasons = "; ".join(dict.fromkeys(one.reason for one in answers.values() if one.reason))
    withheld = "" if len(held) == len(wanted) else reasons if is_for_role else FOR_ROLES
    return Media(listed, held, captions, withheld, tuple(answers.values()))


def _fitting(rows: Iterable[Row]) -> Iterable[Key]:
    """Yield those that fit a page by what they say of themselves, the first ones first; images in base64."""
    room = MOST_BYTES
    for row in rows:
        size = (row["bytes"] or 0) * 4 // 3
        if 0 <= size <= room:
            room -= size
            yield key(row)


def _written(text: str) -> int:
    """Return about how many bytes a text takes on a page, where markup is written as text."""
    return len(text.encode("utf-8", "replace")) + 4 * sum(map(text.count, "<>&'\""))

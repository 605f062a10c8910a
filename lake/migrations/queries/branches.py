"""Templates of Jinja with branches: each way through them is a text of its own, and all must agree on every edit."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ranklake.lake.migrations.queries.findings import Edit, Outcome
from ranklake.lake.migrations.queries.placeholders import Span

MOST_WAYS: Final = 32
"""More ways through a text are not looked at."""

_TAG: Final = re.compile(r"\{%[-+]?\s*(\w+).*?%\}", re.DOTALL)


@dataclass(slots=True)
class _Part:
    """A piece of a template: text, or branches of which one counts."""

    begin: int
    end: int = 0
    branches: list[list["_Part"]] = field(default_factory=list)


def ways(text: str) -> list[list[Span]] | None:
    """Return, for each way through the branches of a text, what is not on it; None for too many, or for none to follow.

    The first is empty where the text has no branches: all of it is on the way.
    """
    parts, end = _parts(text, list(_TAG.finditer(text)), 0)
    if parts is None or end >= 0:
        return None
    found = [list(one) for one in islice(_through(parts), MOST_WAYS + 1)]
    return found if len(found) <= MOST_WAYS else None


def _parts(text: str, tags: Sequence["re.Match[str]"], number: int) -> tuple[list[_Part] | None, int]:
    """Return the branches from a tag on, and the tag that ends them; -1 where the text does."""
    found: list[_Part] = []
    while number < len(tags):
        word = tags[number][1]
        if word in {"elif", "else", "endif", "endfor"}:
            return found, number
        if word not in {"if", "for"}:
            number += 1
            continue
        part = _Part(tags[number].end())
        begins = [tags[number].end()]
        is_whole, last = word == "for", word
        while last not in {"endif", "endfor"}:
            inner, number = _parts(text, tags, number + 1)
            if inner is None or number < 0:
                return None, -1
            last = tags[number][1]
            is_whole |= last == "else"
            part.branches.append([_Part(begins[-1], tags[number].start()), *inner])
            begins.append(tags[number].end())
        if not is_whole:
            part.branches.append([])
        part.end = tags[number].end()
        found.append(part)
        number += 1
    return found, -1


def _through(parts: Sequence[_Part]) -> Iterator[list[Span]]:
    """Yield what is left out on each way through some parts."""
    if not parts:
        yield []
        return
    first, *rest = parts
    for chosen in first.branches:
        for inner in _through(chosen[1:]):
            out = [(one[0].begin, one[0].end) for one in first.branches if one and one is not chosen]
            for later in _through(rest):
                yield [*out, *inner, *later]


def without(text: str, out: Sequence[Span]) -> str:
    """Return a text of the same length without some of its pieces."""
    for begin, end in out:
        text = text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
    return text


def agreed(ways_: Sequence[tuple[Sequence[Span], Outcome]]) -> tuple[list[Edit], Edit | None]:
    """Return the edits of all ways, and the first on which not all agree that have its place."""
    every = sorted({edit for _, came in ways_ for edit in came.edits})
    for edit in every:
        for out, came in ways_:
            is_there = not any(begin <= edit.begin and edit.end <= end for begin, end in out)
            if is_there and edit not in came.edits:
                return every, edit
    return every, None

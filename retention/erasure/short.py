"""Values that are too short to be looked for as words: they count where they are all that a column of a table holds.

Likewise in JSON, under a key that is called like the column: so have it rejected rows, statistics of Delta's log and
plans. Not in text, such as logs and command lines: there a short word may be anything.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.retention.subjects.keys import folded

_ESCAPE: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
_DEEPEST: Final = 4
"""Backslashes more, before each letter that is escaped, where JSON is in JSON in JSON."""
_ROOM: Final = 64
"""Bytes of quotes, escapes and blanks between a key and its value in JSON."""


@dataclass(frozen=True)
class Short:
    """Short values, folded, and names of the columns in which they count."""

    values: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    spelt: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, values: Iterable[str], columns: Iterable[str]) -> Self:
        """Return values as they count in columns."""
        given = list(values)
        forms = {form for one in given for form in (one, one.lower(), one.upper(), folded(one))}
        spelt = frozenset(
            json.dumps(one, ensure_ascii=ascii_only)[1:-1] for one in forms for ascii_only in (True, False)
        )
        return cls(frozenset(map(folded, given)), frozenset(columns), spelt)

    def is_all_of(self, column: str, text: object) -> bool:
        """Return whether a text is all that a column holds of one."""
        return column in self.columns and isinstance(text, str) and folded(text) in self.values

    def rows(self, column: str, values: pa.Array) -> pa.Array:
        """Return which values of a column of text are one; no NULL."""
        kind = values.type
        if pa.types.is_dictionary(kind):
            return pc.fill_null(self.rows(column, values.dictionary).take(values.indices), fill_value=False)
        if column not in self.columns or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return pa.repeat(pa.scalar(value=False), len(values))
        return pa.array([self.is_all_of(column, text) for text in values.to_pylist()], pa.bool_())

    @cached_property
    def longest(self) -> int:
        """Bytes that one takes in JSON at most, with its key."""
        sizes = (max((len(one.encode()) for one in some), default=0) for some in (self.columns, self.spelt))
        return sum(sizes) + _ROOM if self.columns else 0

    @cached_property
    def _in_json(self) -> re.Pattern[str]:
        """A key and its value, how often ever the quotes are escaped."""
        keys = "|".join(map(re.escape, sorted(self.columns)))
        return re.compile(rf'(\\*"(?:{keys})\\*"\s*:\s*\\*"\s*)([^"]{{1,{self._longest}}}?)(\s*\\*")', re.IGNORECASE)

    @cached_property
    def _longest(self) -> int:
        return max((len(one) for one in self.spelt), default=0) + _DEEPEST * max(map(len, self.values), default=0)

    def _is_value(self, match: re.Match[str]) -> bool:
        return folded(_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), match[2])) in self.values

    def count(self, raw: bytes) -> int:
        """Return how often bytes, as JSON, hold one."""
        if not self.columns:
            return 0
        return sum(map(self._is_value, self._in_json.finditer(raw.decode("utf-8", "replace"))))

    def replaced(self, text: str, by: str) -> str:
        """Return JSON with something in the place of each."""

        def other(match: re.Match[str]) -> str:
            return f"{match[1]}{by}{match[3]}" if self._is_value(match) else match[0]

        return self._in_json.sub(other, text) if self.columns else text


NO_SHORT: Final = Short()

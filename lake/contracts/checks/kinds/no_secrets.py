"""``no_secrets``: no operational text holds what looks like a credential or an e-mail address.

What recording redacts (`ranklake.redaction`) is looked for again: rows may come from elsewhere. Of each column up to
1,000 distinct texts of a batch are looked at. Results name columns and counts, never a text.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_TEXTS: Final = 1_000
_SHORTEST: Final = 6
_LONGEST: Final = 20_000
_EMAIL: Final = re.compile(
    r"(?<![\w.+/@-])[\w.+-]{1,64}@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,24}(?![\w/:@-])", re.IGNORECASE
)


def _part(check: Check, batch: "Batch") -> dict[str, tuple[int, int]]:
    """Return rows looked at, and rows with such a text, of each column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del check
    found = {}
    for name in batch.rows.column_names:
        column = batch.rows[name]
        text = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not pa.types.is_string(text) or column.null_count == len(column):
            continue
        words = column
        if pa.types.is_dictionary(column.type):
            words = pa.chunked_array([chunk.dictionary for chunk in column.chunks], text)
        distinct = pc.unique(words).drop_null()
        telling = [word for word in distinct.slice(0, _TEXTS).to_pylist() if _tells(word)]
        plain = column.cast(text) if telling else column
        rows = int(pc.sum(pc.is_in(plain, value_set=pa.array(telling, text))).as_py() or 0) if telling else 0
        found[name] = (len(column) - column.null_count, rows)
    return found


def _tells(text: str) -> bool:
    from ranklake.redaction.redact import redact_names

    if len(text) < _SHORTEST or text.isdecimal():
        return False
    text = text[:_LONGEST]
    return redact_names(text) != text or ("@" in text and _EMAIL.search(text) is not None)


def _judge(check: Check, parts: Sequence[dict[str, tuple[int, int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import listed

    del check, about
    rows: dict[str, list[int]] = {}
    for part in parts:
        for name, (looked, telling) in part.items():
            known = rows.setdefault(name, [0, 0])
            rows[name] = [known[0] + looked, known[1] + telling]
    lines = [f"{name}: {telling:,} rows" for name, (_, telling) in rows.items() if telling]
    if not rows:
        return Finding(unknown="there was no text to judge")
    checked, wrong = (max(some[at] for some in rows.values()) for at in (0, 1))
    return Finding(checked, min(wrong, checked), listed(lines), "no credential and no e-mail address")


KIND = CheckKind(
    name="no_secrets",
    wrong=lambda _: "operational text looks like a credential or an e-mail address",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(_part, _judge, reads_text=True),
)

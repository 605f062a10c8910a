"""Checks that nothing stands where it must not."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch, empty_summary
from ranklake.lake.contracts.model import Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_NO_SECRETS_TEXTS: Final = 1_000
_NO_SECRETS_SHORTEST: Final = 6
_NO_SECRETS_LONGEST: Final = 20_000
_NO_SECRETS_EMAIL: Final = re.compile(
    r"(?<![\w.+/@-])[\w.+-]{1,64}@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,24}(?![\w/:@-])", re.IGNORECASE
)


def _no_secrets_part(check: Check, batch: "Batch") -> dict[str, tuple[int, int]]:
    """Return rows looked at, and rows with such a text, of each column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del check
    counts = {}
    for name in batch.rows.column_names:
        column = batch.rows[name]
        text = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not pa.types.is_string(text) or column.null_count == len(column):
            continue
        words = column
        if pa.types.is_dictionary(column.type):
            words = pa.chunked_array([chunk.dictionary for chunk in column.chunks], text)
        distinct = pc.unique(words).drop_null()
        telling = [word for word in distinct.slice(0, _NO_SECRETS_TEXTS).to_pylist() if _no_secrets_tells(word)]
        plain = column.cast(text) if telling else column
        rows = int(pc.sum(pc.is_in(plain, value_set=pa.array(telling, text))).as_py() or 0) if telling else 0
        counts[name] = (len(column) - column.null_count, rows)
    return counts


def _no_secrets_tells(text: str) -> bool:
    from ranklake.redaction.redact import redact_names

    if len(text) < _NO_SECRETS_SHORTEST or text.isdecimal():
        return False
    text = text[:_NO_SECRETS_LONGEST]
    return redact_names(text) != text or ("@" in text and _NO_SECRETS_EMAIL.search(text) is not None)


def _no_secrets_judge(check: Check, parts: Sequence[dict[str, tuple[int, int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of

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
    return Finding(checked, min(wrong, checked), first_of(lines), "no credential and no e-mail address")


NO_SECRETS = CheckKind(
    name="no_secrets",
    wrong=lambda _: "operational text looks like a credential or an e-mail address",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(_no_secrets_part, _no_secrets_judge, reads_text=True),
)
"""``no_secrets``: no operational text holds what looks like a credential or an e-mail address.

What recording redacts (`ranklake.redaction`) is looked for again: rows may come from elsewhere. Of each column up to
1,000 distinct texts of a batch are looked at. Results name columns and counts, never a text.
"""


def _protected_judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    del check, parts
    rows = max(about.rows, 1)
    columns = ", ".join(about.classified_statistics)
    return Finding(rows, rows if columns else 0, columns, "no statistics of classified columns")


PROTECTED = CheckKind(
    name="protected",
    wrong=lambda _: "the Delta log holds statistics of classified columns",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(empty_summary, _protected_judge),
)
"""``protected``: the Delta log holds no extremes of classified columns. They would outlive an erasure."""

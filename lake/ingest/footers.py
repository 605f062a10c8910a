"""Reads untrusted footers: JSON that is checked against a table of shapes before it is used."""

import json
import re
from typing import Any, Final

from ranklake.lake.ingest.newer import NEWER_FORMAT, NewerSegmentError
from ranklake.lake.store.json_shape import Maybe, UpTo, fault
from ranklake.segments.segment import FORMAT, RUN_NAME, NotASegmentError, SegmentFooter

FOOTER_BYTES: Final = 2**20
_INT32: Final = range(2**31)
_COUNT: Final = range(10**15 + 1)
"""Rows of a process in its life: more than any can record, and a thousand of them still add up in 64 bits."""
_NS: Final = range(-(2**63), 2**63)
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_REASON: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}")
_REQUIRED: Final[dict[str, Any]] = {
    "table": _TABLE,
    "contract_version": range(1, 2**31),
    "run": RUN_NAME,
    "attempt": _INT32,
    "rank": _INT32,
    "world_size": _INT32,
    "incarnation": range(2**63),
    "segment": _INT32,
    "rows": _COUNT,
}
_OPTIONAL: Final[dict[str, Any]] = {
    "rows_before": _COUNT,
    "gaps": UpTo(1000, {_REASON: _COUNT}),
    "gaps_before": _COUNT,
    "anchors": [(_NS, _NS)],
    "clock": [UpTo(16, [Maybe(_NS)])],
    "boot_id": str,
    "final": bool,
    "totals": UpTo(1000, {_TABLE: (_COUNT, _COUNT)}),
    "writer": str,
    "key_id": str,
    "ranks": (_INT32, _INT32),
    "added_version": range(1, 2**31),
    "format": int,
}


def read_footer(raw: bytes) -> SegmentFooter:
    """Return what a segment says of itself. Raises `NewerSegmentError`; `NotASegmentError` never quotes it."""
    if len(raw) > FOOTER_BYTES:
        raise NotASegmentError(f"the footer is larger than {FOOTER_BYTES} bytes")
    try:
        facts = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise NotASegmentError("the footer is not a segment's") from error
    there = facts.keys() if isinstance(facts, dict) else ()
    shape = _REQUIRED | {name: one for name, one in _OPTIONAL.items() if name in there}
    wrong = fault(facts, shape, "footer")
    if wrong is not None:
        raise NotASegmentError(f"the {wrong}")
    if facts.get("format", FORMAT) > FORMAT:
        raise NewerSegmentError(NEWER_FORMAT)
    return SegmentFooter.from_facts(facts)

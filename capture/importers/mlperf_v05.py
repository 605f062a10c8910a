"""MLPerf's lines of v0.5: ``:::MLPv0.5.0 BENCHMARK SECONDS (FILE:LINE) KEY: VALUE``, as entries of later versions.

Trainers wrote them to the standard output and to a logger, so many stand twice in a log.
"""

import json
import re
from typing import Any, Final

MARKER: Final = ":::MLPv0."
_LINE: Final = re.compile(
    r":::MLPv0\.\d+\.\d+ (?P<benchmark>\S+) (?P<seconds>\d{9,11}(?:\.\d+)?) \((?P<place>[^)]*)\) (?P<key>\w+)"
    r"(?:: (?P<value>.*))?"
)
_EPOCHS: Final = {"train_epoch": "epoch_start"}
_INTERVAL: Final = ("_start", "_stop")


def entry(text: str) -> dict[str, Any] | None:
    """Return what a line says, as ``:::MLLOG`` lines do; None if it is none of v0.5."""
    found = _LINE.search(text)
    if found is None:
        return None
    try:
        value = json.loads(found["value"]) if found["value"] else None
    except (ValueError, RecursionError):
        value = found["value"]
    key = _EPOCHS.get(found["key"], found["key"])
    metadata: dict[str, Any] = {"file": found["place"]}
    if key == "epoch_start":
        metadata["epoch_num"] = value
    if isinstance(value, dict):
        if "success" in value:
            metadata["status"] = "success" if value["success"] else "aborted"
        metadata |= {"epoch_num": value["epoch"]} if "epoch" in value else {}
        value = value.get("value")
    kind = "INTERVAL" if key.endswith(_INTERVAL) else "POINT_IN_TIME"
    at = round(float(found["seconds"]) * 1000)
    said = {"key": key, "time_ms": at, "value": value, "event_type": kind, "metadata": metadata, "text": found[0]}
    return said | {"benchmark": found["benchmark"]}

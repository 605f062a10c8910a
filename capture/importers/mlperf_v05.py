"""MLPerf's lines of v0.5 and v0.6, as entries of later versions.

:::MLPv0.5.0 BENCHMARK SECONDS (FILE:LINE) KEY: VALUE     many stand twice in a log: trainers told a logger, too
:::MLL SECONDS KEY: {"value": VALUE, "metadata": {...}}   v0.6
"""

import json
import re
from typing import Any, Final

MARKERS: Final = (":::MLPv0.", ":::MLL ")
_LINE_06: Final = re.compile(r":::MLL (?P<seconds>\d{1,11}(?:\.\d+)?) (?P<key>\w+): (?P<value>\{.*\})")
_LINE: Final = re.compile(
    r":::MLPv0\.\d+\.\d+ (?P<benchmark>\S+) (?P<seconds>\d{9,11}(?:\.\d+)?) \((?P<place>[^)]*)\) (?P<key>\w+)"
    r"(?:: (?P<value>.*))?"
)
_EPOCHS: Final = {"train_epoch": "epoch_start"}
_INTERVAL: Final = ("_start", "_stop")


def entry(text: str) -> dict[str, Any] | None:
    """Return what a line says, as ``:::MLLOG`` lines do; None if it is none of v0.5 or v0.6."""
    found = _LINE.search(text)
    if found is None:
        return _entry_06(text)
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


def _entry_06(text: str) -> dict[str, Any] | None:
    found = _LINE_06.search(text)
    try:
        told = json.loads(found["value"]) if found else None
    except (ValueError, RecursionError):
        told = None
    if found is None or not isinstance(told, dict):
        return None
    kind = "INTERVAL" if found["key"].endswith(_INTERVAL) else "POINT_IN_TIME"
    metadata = told["metadata"] if isinstance(told.get("metadata"), dict) else {}
    at = round(float(found["seconds"]) * 1000)
    return {"key": found["key"], "time_ms": at, "value": told.get("value"), "event_type": kind, "metadata": metadata}

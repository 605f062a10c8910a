"""NCCL RAS: reads the reports of ``ncclras --format=json``: communicators, their ranks, and missing ranks.

    {"nccl_version": "2.30.3", "timestamp": "2026-06-11 11:44:19", "communicators": [{"hash": "0x8f", "size": 8,
     "ranks": [{"rank": 0, "host": "10.0.0.1", "pid": 7, "cuda_dev": 0, "status": {"async_error": 0, …},
                "collective_counts": {"AllReduce": 1204}}],
     "missing_ranks": [{"rank": 7, "status": {"unresponsive": true, …}}]}]}

Source: ``src/ras/client_support.cc`` of NCCL 2.30. Each rank of each communicator becomes an event ``nccl_ras``. Its
severity is ``error`` if the rank is missing or reports an error, and ``warning`` if it launched fewer collectives of a
kind than others. A report of a healthy run may show such differences, too. The rank is that of the process and device
in its largest communicator. The time has no zone, and is read as UTC.
"""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.units import moment_ns

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

EVENT: Final = "nccl_ras"
_MAX_BYTES: Final = 1 << 28
_SUCCESS: Final = (0, 7)
"""ncclSuccess and ncclInProgress (`nccl.h`); other results are errors."""
_HINT: Final = "save one: ncclras --format=json > FILE"

Json = dict[str, Any]
Place = tuple[Any, Any, Any]
"""Host, process and device of a rank."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a report. Raises `SourceError` if the file is no report."""
    try:
        report = json.loads(source.read_all(_MAX_BYTES))
    except (ValueError, RecursionError):
        raise SourceError("not JSON", where=source.name, hint=_HINT) from None
    if not isinstance(report, dict) or not isinstance(report.get("communicators"), list):
        raise SourceError("not a report of NCCL's RAS", where=source.name, hint=_HINT)
    at_ns = moment_ns(str(report.get("timestamp")))
    if at_ns is None:
        raise SourceError("the report has no timestamp", where=source.name, hint=_HINT)
    communicators = [item for item in report["communicators"] if _is_communicator(item)]
    for item in report["communicators"]:
        if not _is_communicator(item):
            recording.refuse("events", "the communicator needs hash, size and ranks", json.dumps(item))
    ranks = _ranks(communicators)
    recording.world_size = max([item["size"] for item in communicators] + [1])
    hosts: dict[int, str] = {}
    for item in communicators:
        for rank, host, severity, facts in _members(item, ranks):
            recording.row("events", at_ns, rank, event=EVENT, severity=severity,
                          attributes=json.dumps(facts, sort_keys=True))  # fmt: skip
            if host and rank not in hosts:
                hosts[rank] = host
                recording.row("ranks", at_ns, rank, host=host)
    version = report.get("nccl_version")
    recording.labels["times"] = "zone not stated, taken as UTC"
    recording.facts = {"job": recording.run, "world_size": recording.world_size if communicators else None}
    if isinstance(version, str):
        recording.facts["nccl_version"] = version


def _is_communicator(item: object) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("hash"), str)
        and type(item.get("size")) is int
        and 0 < item["size"] < 1 << 24
        and isinstance(item.get("ranks"), list)
        and all(_is_rank(rank) for rank in (*item["ranks"], *(item.get("missing_ranks") or [])))
    )


def _is_rank(rank: object) -> bool:
    return isinstance(rank, dict) and type(rank.get("rank")) is int and 0 <= rank["rank"] < 1 << 24


def _place(rank: Json) -> Place:
    return str(rank.get("host")), rank.get("pid"), rank.get("cuda_dev")


def _ranks(communicators: list[Json]) -> dict[Place, int]:
    """Return for each process and device its rank in its largest communicator."""
    ranks: dict[Place, int] = {}
    for item in sorted(communicators, key=lambda item: item["size"]):
        ranks |= {_place(rank): rank["rank"] for rank in (*item["ranks"], *(item.get("missing_ranks") or []))}
    return ranks


def _members(item: Json, ranks: dict[Place, int]) -> Iterator[tuple[int, str, str, Json]]:
    """Yield rank, host, severity and facts of each rank of a communicator."""
    group = {"group": item["hash"], "group_size": item["size"]}
    most: dict[str, int] = {}
    for rank in item["ranks"]:
        for name, count in _collective_counts(rank).items():
            most[name] = max(most.get(name, 0), count)
    for rank in item["ranks"]:
        status = rank["status"] if isinstance(rank.get("status"), dict) else {}
        counts = _collective_counts(rank)
        behind = {name: {"launched": count, "most": most[name]} for name, count in counts.items() if count < most[name]}
        errors = {key: status[key] for key in ("init_state", "async_error")
                  if type(status.get(key)) is int and status[key] not in _SUCCESS}  # fmt: skip
        facts = group | errors | ({"behind": behind} if behind else {})
        facts |= {key: True for key in ("abort_flag", "destroy_flag", "finalize_called") if status.get(key) is True}
        severity = "error" if errors else "warning" if behind or "abort_flag" in facts else "info"
        yield ranks[_place(rank)], _host(rank), severity, facts | {"counts": counts}
    for rank in item.get("missing_ranks") or []:
        status = rank["status"] if isinstance(rank.get("status"), dict) else {}
        flags = {key: True for key in ("unresponsive", "considered_dead") if status.get(key) is True}
        yield ranks[_place(rank)], _host(rank), "error", group | {"missing": True} | flags


def _collective_counts(rank: Json) -> dict[str, int]:
    """Return the number of collectives that a rank launched, by kind, without invalid numbers."""
    counts = rank.get("collective_counts")
    items = counts.items() if isinstance(counts, dict) else ()
    return {name: count for name, count in items if type(count) is int and 0 <= count < 1 << 63}


def _host(rank: Json) -> str:
    host = rank.get("host")
    return host if isinstance(host, str) and host != "unknown" else ""


FORMAT: Final = Format(
    summary="reports of NCCL's RAS subsystem: ncclras --format=json",
    recognises="JSON with nccl_version and communicators",
    read=read,
    table="events",
    mark=re.compile(rb'"communicators_count"\s*:|"missing_ranks_count"\s*:'),
    nothing=("the report has no communicator", "save it while the job runs: ncclras --format=json > FILE"),
    own_run=False,
)

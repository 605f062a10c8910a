"""Meta: reads meta.frames back, which has everything needed to seal a stream's files, in its process or another."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from ranklake.capture.common.gaps import FOUND_WHEN_SEALING, UNSEALABLE
from ranklake.capture.spool import frames
from ranklake.capture.spool.clock import Anchor
from ranklake.capture.spool.stream import META_FILE
from ranklake.lake.contracts.load import contract, table_names
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.segments.segment import ClockReading

T = TypeVar("T")

ENDED: Final[dict[str, Any]] = {"k": "ended"}
"""The frame behind the event ``rank_end``."""


_CLOCK_FIELDS: Final = len(fields(ClockReading)) - 1


@dataclass(frozen=True, slots=True)
class Metric:
    """What a series is.

    Attributes
    ----------
    weight
        Under sampling, how many values each of its values stands for.
    edge
        What `edge_flag` says of all its rows.
    low, high, outside
        Range of its values, and the policy for those that are not in it.
    """

    name: str
    kind: str
    weight: float | None = None
    edge: str | None = None
    low: float | None = None
    high: float | None = None
    outside: str = "flag"


@dataclass(frozen=True, slots=True)
class SpanName:
    """What all spans of one name id have in common."""

    name: str
    kind: str
    stream: str | None = None
    dp_rank: int | None = None
    pp_rank: int | None = None
    tp_rank: int | None = None
    ep_rank: int | None = None
    cp_rank: int | None = None
    process_group: str | None = None
    group_size: int | None = None
    device_time: int | None = None
    trace_id: str | None = None


@dataclass(slots=True)
class Meta:
    """What the frames say, summed up.

    Attributes
    ----------
    anchors
        As read, in file order.
    clock
        What the kernel said of its clocks at them, by their monotonic time.
    metrics, schemas, spans
        Definitions by id; a schema is the metrics of a mapping's values, in order.
    rows, assigned
        Per table, over all sealed segments: rows, and gaps that their footers carry.
    gaps
        Counted so far, by (table, reason), whether or not a footer carries them.
    taken
        The part of `gaps` that footers carry.
    sealed
        Pairs (table, segment) that were sealed, and the gaps that their footers carry.
    dropped
        Those of them that were given up.
    aside
        Pairs (table, segment) of files that could not be sealed, whose rows are gaps.
    highest
        Highest segment number sealed, per table.
    overlay, own_step_columns
        Contracts of an operator's that the process recorded by, and numbers that they add to a step's slot, in order.
    masks
        How the process masked columns, by table and column.
    ended
        True if the process said that it ended.
    final
        True once the last ``events`` segment was sealed.
    damaged
        True if a frame was lost: then cumulative counts are lower bounds.
    """

    anchors: list[Anchor] = field(default_factory=list)
    clock: dict[int, ClockReading] = field(default_factory=dict)
    metrics: dict[int, Metric] = field(default_factory=dict)
    schemas: dict[int, tuple[int, ...]] = field(default_factory=dict)
    spans: dict[int, SpanName] = field(default_factory=dict)
    rows: "Counter[str]" = field(default_factory=Counter)
    assigned: "Counter[str]" = field(default_factory=Counter)
    gaps: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    taken: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    sealed: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    aside: set[tuple[str, int]] = field(default_factory=set)
    dropped: set[tuple[str, int]] = field(default_factory=set)
    highest: dict[str, int] = field(default_factory=dict)
    overlay: Overlay | None = None
    own_step_columns: tuple[str, ...] = ()
    masks: dict[str, dict[str, str]] = field(default_factory=dict)
    ended: bool = False
    final: bool = False
    damaged: bool = False

    def contract(self, table: str) -> Contract:
        """Return the contract that rows of a table are sealed by. Raises `UnknownTableError`, `ContractError`."""
        return contract(table, self.overlay)

    def knows(self, table: str) -> bool:
        """Whether ranks record a table of this name, by one."""
        return table in table_names(self.overlay) and self.contract(table).envelope

    def pending(self, table: str) -> dict[str, int]:
        """Return the gaps of a table that no footer carries yet, by reason."""
        left = self.gaps - self.taken
        return {reason: rows for (of, reason), rows in sorted(left.items()) if of == table}

    def tables_with_pending(self) -> list[str]:
        """Return the tables that have such gaps, sorted."""
        return sorted({table for table, _ in self.gaps - self.taken if self.knows(table)})

    def add_aside(self, table: str, segment: int, rows: int) -> None:
        """Take a file that cannot be sealed into account; twice counts once."""
        if (table, segment) not in self.aside:
            self.aside.add((table, segment))
            self.gaps[table, UNSEALABLE] += rows

    def add_sealed(self, table: str, segment: int, rows: int, gaps: dict[str, int], *, final: bool) -> None:
        """Take a sealed segment into account; twice counts once."""
        if (table, segment) in self.sealed:
            return
        self.sealed[table, segment] = gaps
        self.highest[table] = max(segment, self.highest.get(table, -1))
        self.rows[table] += rows
        self.assigned[table] += sum(gaps.values())
        for reason, count in gaps.items():
            if reason not in FOUND_WHEN_SEALING:
                self.taken[table, reason] += count
        self.final = self.final or (final and table == "events")

    def add_dropped(self, table: str, segment: int, rows: int, gaps: dict[str, int], reason: str) -> None:
        """Take into account that a sealed segment was given up; twice counts once.

        Its rows are gaps now, and the gaps that its footer carried wait for another.
        """
        if (table, segment) in self.dropped:
            return
        self.dropped.add((table, segment))
        self.rows[table] -= rows
        self.assigned[table] -= sum(gaps.values())
        self.gaps[table, reason] += rows
        for carried, count in gaps.items():
            if carried in FOUND_WHEN_SEALING:  # was never noted as a gap
                self.gaps[table, reason] += count
            else:
                self.taken[table, carried] -= count


def aside_frame(table: str, segment: int, rows: int) -> dict[str, Any]:
    """Return the frame that says that a file could not be sealed."""
    return {"k": "aside", "t": table, "s": segment, "r": rows}


def sealed_frame(table: str, segment: int, rows: int, gaps: dict[str, int], *, final: bool) -> dict[str, Any]:
    """Return the frame that says that a segment was sealed."""
    return {"k": "sealed", "t": table, "s": segment, "r": rows, "g": gaps, "f": final}


def dropped_frame(table: str, segment: int, rows: int, gaps: dict[str, int], reason: str) -> dict[str, Any]:
    """Return the frame that says that a sealed segment was given up."""
    return {"k": "dropped", "t": table, "s": segment, "r": rows, "g": gaps, "why": reason}


def read_meta(folder: Path) -> Meta:
    """Read a stream's meta.frames; frames of unknown kinds (of a later version) are passed over. Raises `OSError`."""
    return sum_up(frames.read(folder / META_FILE))


def sum_up(scan: frames.Scan) -> Meta:
    """Return what frames say; those of unknown kinds are passed over."""
    meta = Meta(damaged=bool(scan.damaged) or not scan.frames)
    for frame in scan.frames:
        try:
            _take(meta, frame)
        except (KeyError, TypeError, ValueError):
            meta.damaged = True
    return meta


def _take(meta: Meta, frame: frames.Frame) -> None:  # noqa: C901, PLR0912 - a case for each kind of frame
    """Take what a frame says. Raises `KeyError`, `TypeError` or `ValueError` for one that is damaged."""
    match frame.get("k"):
        case "anchor":
            meta.anchors.append((int(frame["m"]), int(frame["w"])))
            if "c" in frame:
                meta.clock[int(frame["m"])] = ClockReading(int(frame["m"]), *frame["c"][:_CLOCK_FIELDS])
        case "metric":
            low, high, outside = frame.get("r", (None, None, "flag"))
            meta.metrics[int(frame["i"])] = Metric(
                str(frame["n"]),
                str(frame["kind"]),
                weight=_optional(frame.get("w"), float),
                edge=_optional(frame.get("e"), str),
                low=_optional(low, float),
                high=_optional(high, float),
                outside=str(outside),
            )
        case "schema":
            meta.schemas[int(frame["i"])] = tuple(int(series) for series in frame["of"])
        case "span":
            meta.spans[int(frame["i"])] = SpanName(**{k: value for k, value in frame.items() if k not in {"k", "i"}})
        case "gaps":
            for table, reason, rows in frame["n"]:
                meta.gaps[str(table), str(reason)] += int(rows)
        case "aside":
            meta.add_aside(str(frame["t"]), int(frame["s"]), int(frame["r"]))
        case "sealed":
            gaps = dict(frame["g"])
            meta.add_sealed(str(frame["t"]), int(frame["s"]), int(frame["r"]), gaps, final=bool(frame["f"]))
        case "dropped":
            gaps = dict(frame["g"])
            meta.add_dropped(str(frame["t"]), int(frame["s"]), int(frame["r"]), gaps, str(frame["why"]))
        case "ended":
            meta.ended = True
        case "overlay":
            files = {str(name): str(text) for name, text in frame["f"].items()}
            meta.overlay = Overlay(files, "the stream's overlay")
            meta.own_step_columns = tuple(str(name) for name in frame["c"])
        case "masks":
            masks = {
                str(table): {str(name): str(mask) for name, mask in of.items()} for table, of in frame["t"].items()
            }
            meta.masks = masks


def _optional(given: Any, kind: Callable[[Any], T]) -> T | None:  # noqa: ANN401 - JSON
    return None if given is None else kind(given)

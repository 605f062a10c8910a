"""Meta: read meta.frames, which has all facts that any process needs to seal a stream's files."""

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
"""The frame written after the event ``rank_end``."""


_CLOCK_FIELDS: Final = len(fields(ClockReading)) - 1


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a series.

    Attributes
    ----------
    weight
        If the series is sampled, the number of values that each kept value represents.
    edge
        Value of `edge_flag` in all its rows.
    low, high, outside
        Range of its values, and the policy for values outside the range.
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
    """Facts that all spans with the same name id share."""

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
    """The state of a stream, from its frames.

    Attributes
    ----------
    anchors
        Anchors in file order.
    clock
        The kernel's clock state at anchors, by their monotonic time.
    metrics, schemas, spans
        Definitions by id; a schema lists the metrics of a mapping's values, in order.
    rows, assigned
        Per table, over all sealed segments: rows, and gaps counted in footers.
    gaps
        Gaps so far by (table, reason), whether or not a footer counts them.
    taken
        The part of `gaps` that footers count.
    sealed
        Sealed segments as (table, segment), each with the gaps in its footer.
    dropped
        Sealed segments that were evicted before they were sent.
    aside
        Files that could not be sealed, as (table, segment); their rows are gaps.
    highest
        Highest sealed segment number per table.
    overlay, own_step_columns
        An operator's contracts that the process used, and the numbers that they add to a step's slot, in order.
    masks
        Masks that the process applied, by table and column.
    ended
        True if the process recorded its end.
    final
        True after the last ``events`` segment was sealed.
    damaged
        True if a frame was lost: cumulative counts are then lower bounds.
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
        """Return the contract for sealing rows of a table. Raises `UnknownTableError`, `ContractError`."""
        return contract(table, self.overlay)

    def has_table(self, table: str) -> bool:
        """Whether a contract defines a table of this name that ranks record."""
        return table in table_names(self.overlay) and self.contract(table).envelope

    def pending(self, table: str) -> dict[str, int]:
        """Return the gaps of a table that no footer counts yet, by reason."""
        uncounted = sorted((self.gaps - self.taken).items())
        return {reason: rows for (gap_table, reason), rows in uncounted if gap_table == table}

    def tables_with_pending(self) -> list[str]:
        """Return the tables with gaps that no footer counts yet, sorted."""
        return sorted({table for table, _ in self.gaps - self.taken if self.has_table(table)})

    def add_aside(self, table: str, segment: int, rows: int) -> None:
        """Count the rows of a file that cannot be sealed as gaps. A second call for the file has no effect."""
        if (table, segment) not in self.aside:
            self.aside.add((table, segment))
            self.gaps[table, UNSEALABLE] += rows

    def add_sealed(self, table: str, segment: int, rows: int, gaps: dict[str, int], *, final: bool) -> None:
        """Add the rows and gaps of a sealed segment. A second call for the segment has no effect."""
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
        """Count the rows of an evicted segment as gaps. A second call for the segment has no effect.

        The gaps in its footer become pending again, for the footer of another segment.
        """
        if (table, segment) in self.dropped:
            return
        self.dropped.add((table, segment))
        self.rows[table] -= rows
        self.assigned[table] -= sum(gaps.values())
        self.gaps[table, reason] += rows
        for footer_reason, count in gaps.items():
            if footer_reason in FOUND_WHEN_SEALING:  # only the footer counted it
                self.gaps[table, reason] += count
            else:
                self.taken[table, footer_reason] -= count


def aside_frame(table: str, segment: int, rows: int) -> dict[str, Any]:
    """Return the frame of a file that could not be sealed."""
    return {"k": "aside", "t": table, "s": segment, "r": rows}


def sealed_frame(table: str, segment: int, rows: int, gaps: dict[str, int], *, final: bool) -> dict[str, Any]:
    """Return the frame of a sealed segment."""
    return {"k": "sealed", "t": table, "s": segment, "r": rows, "g": gaps, "f": final}


def dropped_frame(table: str, segment: int, rows: int, gaps: dict[str, int], reason: str) -> dict[str, Any]:
    """Return the frame of an evicted segment."""
    return {"k": "dropped", "t": table, "s": segment, "r": rows, "g": gaps, "why": reason}


def read_meta(folder: Path) -> Meta:
    """Read a stream's meta.frames. Raises `OSError`."""
    return sum_up(frames.read(folder / META_FILE))


def sum_up(scan: frames.Scan) -> Meta:
    """Return the state that frames describe. Frames of unknown kinds, from a later version, are ignored."""
    meta = Meta(damaged=bool(scan.damaged) or not scan.frames)
    for frame in scan.frames:
        try:
            _apply_frame(meta, frame)
        except (KeyError, TypeError, ValueError):
            meta.damaged = True
    return meta


def _apply_frame(meta: Meta, frame: frames.Frame) -> None:  # noqa: C901, PLR0912 - a case for each kind of frame
    """Apply a frame to the state. Raises `KeyError`, `TypeError` or `ValueError` for a damaged frame."""
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
                str(table): {str(name): str(mask) for name, mask in columns.items()}
                for table, columns in frame["t"].items()
            }
            meta.masks = masks


def _optional(value: Any, convert: Callable[[Any], T]) -> T | None:  # noqa: ANN401 - JSON
    return None if value is None else convert(value)

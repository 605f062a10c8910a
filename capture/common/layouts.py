"""Layouts: what one fixed-width slot of each lane holds.

The commit word ``mark`` is the last field of every layout and is written by the same `pack_into` call as the rest.
That call stores its fields in order, through a function pointer each, and a killed process's stores reach the page
cache in program order: a slot with its mark is whole. (Power failure is another matter: pages reach the disk in any
order, hence the checks when sealing.)

A layout never changes once released: another shape is another lane name, so that old files stay readable.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np


MARK: Final = 0x6C6B6E72
ABSENT: Final = -(1 << 63)  # an integer that is not known; NULL when sealed
ROW_WIDTH: Final = 16  # values of one `rows` slot; a wider mapping takes several

_NUMPY: Final = {"q": "<i8", "d": "<f8", "I": "<u4", "i": "<i4"}


@dataclass(frozen=True)
class Layout:
    """Fields of one slot, little-endian, without padding between them.

    Attributes
    ----------
    lane
        Names the slot files.
    table
        Where the rows go.
    fields
        Pairs of name and `struct` code; ``16d`` is an array.
    file_bytes
        Size of a slot file: what is sealed at the latest.
    """

    lane: str
    table: str
    fields: tuple[tuple[str, str], ...]
    file_bytes: int

    @cached_property
    def packer(self) -> struct.Struct:
        """The `struct.Struct` of a slot."""
        return struct.Struct("<" + "".join(code for _, code in self.fields))

    @property
    def slot_bytes(self) -> int:
        """Size of a slot."""
        return self.packer.size

    @property
    def is_rewritten(self) -> bool:
        """Whether slots are written again and again; they hold two copies of their state then."""
        return any(name == "a_sequence" for name, _ in self.fields)

    def offset(self, name: str) -> int:
        """Return where a field begins in its slot, in bytes."""
        at = [field for field, _ in self.fields].index(name)
        return struct.calcsize("<" + "".join(code for _, code in self.fields[:at]))

    def dtype(self) -> "np.dtype[np.void]":
        """Return the numpy structure of a slot."""
        import numpy as np  # recording needs no numpy, sealing has it already

        return np.dtype(
            [
                (name, _NUMPY[code]) if len(code) == 1 else (name, _NUMPY[code[-1]], (int(code[:-1]),))
                for name, code in self.fields
            ]
        )


PHASES: Final = ("data", "forward", "backward", "optimizer", "collective", "checkpoint", "evaluation")

STEPS: Final = Layout(
    "steps",
    "steps",
    (
        ("start_ns", "q"),
        ("duration_ns", "q"),
        ("step", "q"),
        *((f"{phase}_ns", "q") for phase in PHASES),
        ("tokens", "q"),
        ("samples", "q"),
        ("loss", "d"),
        ("grad_norm", "d"),
        ("lr", "d"),
        ("memory_allocated_bytes", "q"),
        ("memory_reserved_bytes", "q"),
        ("present", "I"),  # bit 0 loss, 1 grad_norm, 2 lr: a float has no value to spare for "not there"
        ("mark", "I"),
    ),
    1 << 19,
)
STEP_FLOATS: Final = ("loss", "grad_norm", "lr")

OWN_WIDTH: Final = 32
"""Numbers that an overlay may add to a step's row."""
OWN_STEPS: Final = Layout(
    "own_steps",
    "steps",
    (*STEPS.fields[:-1], ("own", f"{OWN_WIDTH}d"), ("own_present", "I"), ("mark", "I")),
    1 << 20,
)
"""Steps with numbers that an overlay adds, in the order that meta.frames says; begins as `STEPS` does."""

SCALARS: Final = Layout(
    "scalars",
    "scalars",
    (("time_ns", "q"), ("step", "q"), ("value", "d"), ("series", "I"), ("mark", "I")),
    1 << 22,
)

ROWS: Final = Layout(
    "rows",
    "scalars",
    (("time_ns", "q"), ("step", "q"), ("values", f"{ROW_WIDTH}d"), ("schema", "I"), ("mark", "I")),
    1 << 22,
)

SPANS: Final = Layout(
    "spans",
    "spans",
    (
        ("start_ns", "q"),
        ("duration_ns", "q"),
        ("step", "q"),
        ("span_id", "q"),
        ("parent_id", "q"),
        ("bytes", "q"),
        ("microbatch", "i"),  # -1 for none
        ("sequence", "I"),  # one more than the collective's number in its group, modulo 2^32; 0 for none
        ("name", "I"),
        ("mark", "I"),
    ),
    1 << 22,
)

INTERVAL_STATE: Final = (
    ("end_ns", "q"),
    ("step", "q"),
    ("count", "q"),  # all values
    ("finite", "q"),  # those that the figures below are of
    ("min", "d"),
    ("max", "d"),
    ("mean", "d"),
    ("m2", "d"),  # sum of squared distances from the mean
    ("last", "d"),
    ("sequence", "q"),
)

BUCKETS: Final = 160  # of each sign in a `histograms` slot; OpenTelemetry's default, too

HISTOGRAM_STATE: Final = (
    ("end_ns", "q"),
    ("step", "q"),
    ("zero_count", "q"),
    ("nan_count", "q"),
    ("infinite_count", "q"),
    ("sum", "d"),
    ("min", "d"),
    ("max", "d"),
    ("scale", "i"),
    ("positive_offset", "i"),
    ("negative_offset", "i"),
    ("unused", "i"),
    ("positive_counts", f"{BUCKETS}q"),
    ("negative_counts", f"{BUCKETS}q"),
    ("sequence", "q"),
)


def _duplicated_fields(state: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a state that a slot holds in two copies; the one with the higher sequence number counts."""
    return tuple((f"{copy}_{name}", code) for copy in "ab" for name, code in state)


INTERVALS: Final = Layout(
    "intervals",
    "scalars",
    (("start_ns", "q"), *_duplicated_fields(INTERVAL_STATE), ("unused", "10q"), ("series", "I"), ("mark", "I")),
    1 << 18,
)

HISTOGRAMS: Final = Layout(
    "histograms",
    "distributions",
    (("start_ns", "q"), *_duplicated_fields(HISTOGRAM_STATE), ("series", "I"), ("mark", "I")),
    1 << 20,
)

SLOT_LANES: Final = {layout.lane: layout for layout in (STEPS, SCALARS, ROWS, SPANS, INTERVALS, HISTOGRAMS)}
FRAME_LANES: Final = (
    "runs",
    "ranks",
    "annotations",
    "events",
    "logs",
    "artifacts",
    "datasets",
    "media",
    "inferences",
    "gpu_samples",
    "host_samples",
    "jobs",
    "pools",
)
"""Tables whose rows are too wide, too few or too various for slots."""
WRITTEN: Final = "_written"
"""Behind a lane's name: its files are not mapped, but written record by record: `ranklake.capture.lanes.written`."""
_EVERY: Final = SLOT_LANES | {OWN_STEPS.lane: OWN_STEPS}
LAYOUT_OF_LANE: Final = _EVERY | {name + WRITTEN: layout for name, layout in _EVERY.items()}


def table_of(lane: str) -> str:
    """Return the table that a lane's rows belong to; a lane of frames has its table's name."""
    layout = LAYOUT_OF_LANE.get(lane)
    return lane if layout is None else layout.table


def row_packer(width: int) -> struct.Struct:
    """Return the packer of a `rows` slot that holds `width` values: the fields of `ROWS`, the spare values skipped."""
    return struct.Struct(f"<qq{width}d{8 * (ROW_WIDTH - width)}xII")


STEP_COUNTS: Final = frozenset({"tokens", "samples"})
STEP_NAMES: Final = {
    **{name: name for name in (*STEP_FLOATS, *STEP_COUNTS)},
    **{f"train/{name}": name for name in STEP_FLOATS},
}
"""Columns of ``steps`` by the names that `run.log` takes for them."""

METRIC_OF: Final = {name: f"train/{name}" for name in (*STEP_FLOATS, *STEP_COUNTS)}
"""The same values as metrics, for when no step is running."""

"""Layouts: the fields of a fixed-width slot, for each lane.

The commit word ``mark`` is the last field of every layout. One `pack_into` call writes all fields in order, through one
function pointer per field, and the stores of a killed process reach the page cache in program order. So a slot with its
mark is complete. After a power failure this does not hold, because pages reach the disk in any order; sealing checks
for it.

A released layout never changes. A different layout gets a new lane name, so that old files stay readable.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np


MARK: Final = 0x6C6B6E72
ABSENT: Final = -(1 << 63)  # an unknown integer; NULL when sealed
ROW_WIDTH: Final = 16  # values of one `rows` slot; a larger mapping takes several slots

_NUMPY: Final = {"q": "<i8", "d": "<f8", "I": "<u4", "i": "<i4"}


@dataclass(frozen=True)
class Layout:
    """Fields of one slot, little-endian, without padding between them.

    Attributes
    ----------
    lane
        First part of the slot files' names.
    table
        Table of the rows.
    fields
        Pairs of name and `struct` code; ``16d`` is an array.
    file_bytes
        Size of a slot file. A full file is sealed.
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
        """Size of a slot in bytes."""
        return self.packer.size

    @property
    def is_rewritten(self) -> bool:
        """Whether slots are overwritten repeatedly. Such slots have two copies of their state."""
        return any(name == "a_sequence" for name, _ in self.fields)

    def offset(self, name: str) -> int:
        """Return the offset of a field in its slot, in bytes."""
        index = [field for field, _ in self.fields].index(name)
        return struct.calcsize("<" + "".join(code for _, code in self.fields[:index]))

    def dtype(self) -> "np.dtype[np.void]":
        """Return the numpy dtype of a slot."""
        import numpy as np  # not at the top: recording must not import numpy; sealing has already

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
        ("present", "I"),  # bit 0 loss, 1 grad_norm, 2 lr: no float value can mean "missing"
        ("mark", "I"),
    ),
    1 << 19,
)
STEP_FLOATS: Final = ("loss", "grad_norm", "lr")

OWN_WIDTH: Final = 32
"""Most numbers that an overlay may add to a step's row."""
OWN_STEPS: Final = Layout(
    "own_steps",
    "steps",
    (*STEPS.fields[:-1], ("own", f"{OWN_WIDTH}d"), ("own_present", "I"), ("mark", "I")),
    1 << 20,
)
"""Steps with the numbers that an overlay adds, in the order given in meta.frames. The first fields are `STEPS`'."""

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
        ("sequence", "I"),  # number of the collective in its group, plus 1, modulo 2^32; 0 for none
        ("name", "I"),
        ("mark", "I"),
    ),
    1 << 22,
)

INTERVAL_STATE: Final = (
    ("end_ns", "q"),
    ("step", "q"),
    ("count", "q"),  # all values
    ("finite", "q"),  # finite values; the statistics below are of these
    ("min", "d"),
    ("max", "d"),
    ("mean", "d"),
    ("m2", "d"),  # sum of squared distances from the mean
    ("last", "d"),
    ("sequence", "q"),
)

BUCKETS: Final = 160  # buckets per sign in a `histograms` slot, as in OpenTelemetry's default

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
    """Return the fields of two copies of a state. The copy with the higher sequence number is the current one."""
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
"""Tables whose rows are too wide, too few or too different in size for slots."""
WRITTEN: Final = "_written"
"""Suffix of a lane whose files are written record by record instead of mapped: `ranklake.capture.lanes.written`."""
_ALL_SLOT_LANES: Final = SLOT_LANES | {OWN_STEPS.lane: OWN_STEPS}
LAYOUT_OF_LANE: Final = _ALL_SLOT_LANES | {name + WRITTEN: layout for name, layout in _ALL_SLOT_LANES.items()}


def table_of(lane: str) -> str:
    """Return the table of a lane's rows. A lane of frames is named after its table."""
    layout = LAYOUT_OF_LANE.get(lane)
    return lane if layout is None else layout.table


def row_packer(width: int) -> struct.Struct:
    """Return the packer of a `rows` slot with `width` values: the fields of `ROWS`, unused values skipped."""
    return struct.Struct(f"<qq{width}d{8 * (ROW_WIDTH - width)}xII")


STEP_COUNTS: Final = frozenset({"tokens", "samples"})
STEP_NAMES: Final = {
    **{name: name for name in (*STEP_FLOATS, *STEP_COUNTS)},
    **{f"train/{name}": name for name in STEP_FLOATS},
}
"""Columns of ``steps``, by the names under which `run.log` accepts them."""

METRIC_OF: Final = {name: f"train/{name}" for name in (*STEP_FLOATS, *STEP_COUNTS)}
"""Names of the same values as metrics, used when no step is running."""

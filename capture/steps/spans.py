"""Spans: write rows of ``spans``, with ids, names, and the rank's coordinates in the mesh."""

from functools import partial
from typing import Any, Final

from ranklake.capture.common.gaps import BAD_VALUE, RefusedError
from ranklake.capture.common.layouts import SPANS
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer
from ranklake.capture.lanes.series import Series
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.progress import Progress

_AXES: Final = {
    **{axis: f"{axis}_rank" for axis in ("dp", "pp", "tp", "ep", "cp")},
    "data": "dp_rank",
    "dp_shard": "dp_rank",
    "fsdp": "dp_rank",
    "pipeline": "pp_rank",
    "tensor": "tp_rank",
    "expert": "ep_rank",
    "context": "cp_rank",
}
"""Columns of spans, by the names of axes in meshes."""


class Spans:
    """Objects that all writers of spans in one run share.

    Attributes
    ----------
    common
        Columns of all spans: the trace id, and the rank's coordinates in the mesh.
    next_id
        Returns the next span id, unique in the process.
    put
        Writes a row; its arguments are the fields of `ranklake.capture.common.layouts.SPANS`.
    """

    def __init__(self, sink: Sink, progress: Progress, series: Series, lane: AnyLane, trace_id: str | None) -> None:
        self.sink, self.progress, self.series, self.lane = sink, progress, series, lane
        self.common: dict[str, str | int] = {} if trace_id is None else {"trace_id": trace_id}
        self._step_number: int | None = None
        self.next_id = progress.span_ids.__next__
        self.put = partial(lane.put, SPANS.packer.pack_into)

    def number(self, name: str, kind: str, **facts: str | int | None) -> int | None:
        """Return the number of a span's name. If it is refused, count a gap and return None."""
        try:
            columns = {key: value for key, value in facts.items() if value is not None}
            return self.series.span(name, kind, **columns, **self.common)
        except RefusedError as refused:
            self.sink.refuse("spans", refused.reason, refused.detail)
            return None

    def step_number(self) -> int | None:
        """Return the number of the name of steps' spans, cached; see `number`."""
        if self._step_number is None:
            self._step_number = self.number("step", "step")
        return self._step_number

    def locate(self, mesh: Any, axes: dict[str, object]) -> None:  # noqa: ANN401 - torch's, or any value
        """Set the coordinates of all later spans; see `ranklake.capture.Run.coordinates`."""
        coordinates: dict[str, object] = {}
        self._step_number = None
        try:
            for name in () if mesh is None else mesh.mesh_dim_names or ():
                coordinates[name] = mesh.get_local_rank(name)
            coordinates |= axes
            for name, place in coordinates.items():
                if name in _AXES and place is not None:
                    self.common[_AXES[name]] = integer(place) & 0x7FFFFFFF
        except (BadValueError, DeviceValueError) as error:
            self.sink.refuse("spans", BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.sink.trouble("reading the mesh", error)

"""Hours of a cluster's devices, as many as a test wants, for pages and their speed."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
from rollup_inputs import NOON

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract


def device_hours(nodes, hours):
    """Return rows of ``gpu_hourly``: 8 devices a node; node 0 is held and idle, the others busier by their number."""
    of = np.arange(nodes * 8 * hours)
    device, hour = of // hours, of % hours
    node = device // 8
    busy = np.where(node == 0, 0.0, 3600 * (0.2 + 0.7 * node / nodes))
    start = np.datetime64((NOON - timedelta(hours=hours - 1)).replace(tzinfo=None), "us")
    moments = start + hour * np.timedelta64(1, "h")
    columns = {
        "hour": moments,
        "date": moments.astype("datetime64[D]"),
        "host": [f"pc-ada-{number}" for number in node],
        "device_uuid": [f"GPU-{number:06d}" for number in device],
        "sample_count": np.full(len(of), 3600),
        "observed_s": np.full(len(of), 3600.0),
        "busy_observed_s": np.full(len(of), 3600.0),
        "allocated_s": np.full(len(of), 3600.0),
        "idle_allocated_s": np.where(node == 0, 3600.0, 0.0),
        "energy_observed_s": np.zeros(len(of)),
        "busy_s": busy,
    }
    schema = arrow_schema(contract("gpu_hourly"))
    arrays = [
        pa.array(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(len(of), field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)

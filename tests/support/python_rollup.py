"""The rollup `run_epochs` as a function of Arrow tables, for tests of rollups in Python."""

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.rollups.declaration import PythonBody

COLUMNS = {"scalars": ("run", "attempt", "ts", "step", "metric", "value", "date")}


def run_epochs(inputs, values):
    """Return what `run_epochs.sql` says, of the same rows."""
    told = inputs["scalars"]
    value = told["value"]
    fits = pc.and_(pc.greater_equal(value, 0.0), pc.less(value, 2147483647.0))
    wanted = pc.and_(pc.equal(told["date"], values["date"]), pc.equal(told["metric"], "train/epoch"))
    told = told.filter(pc.and_(wanted, fits))
    told = told.append_column("epoch", pc.floor(told["value"]).cast(pa.int32()))
    keys = ["run", "attempt", "epoch", "date"]
    ends = [("ts", "min"), ("ts", "max"), ("step", "min"), ("step", "max")]
    found = told.group_by(keys, use_threads=False).aggregate(ends)
    return found.rename_columns([*keys, "ts", "end_ts", "first_step", "last_step"])


EPOCHS = PythonBody(run_epochs, COLUMNS)

"""A lake of runs that scripts recorded: metrics, settings, summary values, artifacts."""

from ranklake import capture
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

HOSTILE = 'it\'s "x" $run {scalars} --'
RUNS = {
    "first": ({"lr": 0.1, "opt": "adam", "model": {"depth": 2}}, [3.0, 0.5], 0.9),
    "second": ({"lr": 1, "opt": "sgd"}, [0.25, 2.5], 0.7),
    "third": ({"lr": "auto"}, [1.5, float("nan")], None),
}


def logged_lake(folder, **start):
    """Return a lake of `RUNS`: an evaluation loss at two steps, a metric without steps, one with a hostile name."""
    for name, (config, losses, best) in RUNS.items():
        with capture.start(
            run=name, spool=str(folder / "spool"), local_dir=str(folder), config=config, samplers="off", **start
        ) as run:
            for step, loss in enumerate(losses):
                run.log({"eval/loss": loss, HOSTILE: step}, step=step)
            run.log({"files": 7})
            if best is not None:
                run.summary["best acc"] = best
                run.tags.add("kept", stage=name)
    lake = Lake.create(str(folder / "lake"))
    ingest(lake, Spool(str(folder / "spool")), InProcess())
    run_rollups(lake)
    return lake

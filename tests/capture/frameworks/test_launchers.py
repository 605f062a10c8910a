"""The frameworks' own ways to start ranks, as a new user would: no name, no rank, nothing set."""

import os
import subprocess
import sys
from textwrap import indent

import pytest
from recorded import attributes, check_books, gaps, rows

LIGHTNING = """
import sys, warnings
import torch
from ranklake import capture
HOW = sys.argv[1]
if HOW == "autolog":
    capture.autolog(spool="spool", local_dir="local")
import lightning.pytorch as pl
warnings.simplefilter("ignore")

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        return self.net(batch).square().mean()
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    torch.set_num_threads(1)
    callbacks = []
    if HOW == "callback":
        from ranklake.capture.frameworks.lightning import RanklakeCallback
        callbacks = [RanklakeCallback(spool="spool", local_dir="local")]
    trainer = pl.Trainer(
        devices=2, accelerator="cpu", strategy=sys.argv[2], max_epochs=1, callbacks=callbacks, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )
    batches = torch.utils.data.DataLoader(torch.ones(16, 8), batch_size=2)
    trainer.fit(Module(), batches, batches)
"""
IN_MAIN = LIGHTNING.replace("\nif HOW", '\nif __name__ == "__main__" and HOW').replace(
    "autolog(", 'autolog(job="mine", '
)
TRAINING = """torch.set_num_threads(1)
accelerator = accelerate.Accelerator(cpu=True{options})
{begin}
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = torch.utils.data.DataLoader(torch.ones(16, 8), batch_size=2)
net, optimizer, batches = accelerator.prepare(net, optimizer, batches)
for batch in batches:
    accelerator.backward(net(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
"""
"""What both scripts of Accelerate do."""
ACCELERATE = f"""
import torch
import accelerate
from ranklake import capture

def train():
    capture.autolog(spool="spool", local_dir="local")
{indent(TRAINING.format(options="", begin=""), "    ")}
"""
TRACKER = f"""
import torch
import accelerate
from ranklake.capture.frameworks.accelerate import RanklakeTracker

{TRAINING.format(
    options=', log_with=[RanklakeTracker(spool="spool", local_dir="local")]',
    begin='accelerator.init_trackers("project", config={"rate": 0.1})',
)}
"""  # fmt: skip


def train(folder, script, *command):
    """Run a script in a folder; return what it said of ranklake."""
    (folder / "train.py").write_text(script)
    unset = ("RANKLAKE_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(unset)}
    whole = [sys.executable, *command]
    done = subprocess.run(
        whole, cwd=folder, env={**environ, "OMP_NUM_THREADS": "1", "RANKLAKE_CAPTURE_ANNOUNCE": "off"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    check_books(folder / "spool")
    assert gaps(folder / "spool") == {}
    return [line for line in done.stderr.splitlines() if "ranklake:" in line]


def check_ranks(folder, launcher, *, begun_by_parent=False):
    """Two ranks of one run, each with its steps; one row of ``runs``, whose world has two.

    A process that began the run and then started the ranks has a row beside that: it says the smaller world.
    """
    spool = folder / "spool"
    steps = rows(spool, "steps")
    assert sorted((row["rank"], row["step"]) for row in steps) == [(rank, n) for rank in (0, 1) for n in range(4)]
    (name,) = {row["run"] for table in ("steps", "events", "spans", "runs") for row in rows(spool, table)}
    *others, run = sorted(rows(spool, "runs"), key=lambda row: row["world_size"])
    assert [row["world_size"] for row in others] == [1] * begun_by_parent
    assert (run["run"], run["rank"], run["world_size"], run["launcher"]) == (name, 0, 2, launcher)
    starts = [row for row in rows(spool, "events") if row["event"] == "rank_start"]
    assert {(row["rank"], attributes(row)["world_size"]) for row in starts} >= {(0, 2), (1, 2)}
    assert all(row["forward_time_s"] > 0 and row["backward_time_s"] > 0 for row in steps)


@pytest.mark.frameworks
@pytest.mark.parametrize("how", ["callback", "autolog"])
def test_lightning_starts_processes_of_its_own(tmp_path, how):
    """``devices=2, strategy="ddp"``: each is its rank, and the forward pass is timed though DDP calls the module."""
    assert train(tmp_path, LIGHTNING, "train.py", how, "ddp") == []
    check_ranks(tmp_path, "lightning")


@pytest.mark.frameworks
def test_lightning_spawns_processes(tmp_path):
    """``strategy="ddp_spawn"``: each is its rank."""
    assert train(tmp_path, LIGHTNING, "train.py", "callback", "ddp_spawn") == []
    check_ranks(tmp_path, "multiprocessing")


@pytest.mark.frameworks
@pytest.mark.parametrize("strategy", ["ddp_notebook", "ddp_spawn"])
def test_lightning_starts_ranks_from_a_process_that_has_a_run(tmp_path, strategy):
    """Autolog in the parent: forked or spawned, each child is a rank of the parent's run, in the parent's spool."""
    assert train(tmp_path, IN_MAIN, "train.py", "autolog", strategy) == []
    check_ranks(tmp_path, "multiprocessing", begun_by_parent=True)
    assert all(row["run"].startswith("mine-") for row in rows(tmp_path / "spool", "steps"))


@pytest.mark.frameworks
def test_accelerate_launches(tmp_path):
    """``accelerate launch``: each is its rank."""
    script = ACCELERATE + 'if __name__ == "__main__":\n    train()\n'
    options = ("--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no")
    command = ("-m", "accelerate.commands.launch", *options, "--dynamo_backend=no")
    assert train(tmp_path, script, *command, "train.py") == []
    check_ranks(tmp_path, "torchrun")  # which it starts


@pytest.mark.frameworks
def test_accelerate_launches_from_a_notebook(tmp_path):
    """``accelerate.debug_launcher``, which forks: each is its rank."""
    script = ACCELERATE + 'if __name__ == "__main__":\n    accelerate.debug_launcher(train, num_processes=2)\n'
    assert train(tmp_path, script, "train.py") == []
    check_ranks(tmp_path, "multiprocessing")


@pytest.mark.frameworks
def test_accelerates_tracker_records_each_rank(tmp_path):
    """A tracker in ``log_with``: Accelerate begins trackers on the main process only, and each rank has its steps."""
    assert train(tmp_path, TRACKER, "-m", "torch.distributed.run", "--nproc_per_node=2", "train.py") == []
    check_ranks(tmp_path, "torchrun")
    ends = [(row["rank"], row["event"]) for row in rows(tmp_path / "spool", "events")]
    assert {(rank, "fit_end") for rank in (0, 1)} <= set(ends)
    assert {row["config"] for row in rows(tmp_path / "spool", "runs")} == {'{"rate":0.1}'}

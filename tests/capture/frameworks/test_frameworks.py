"""Real frameworks train real small models, each in a process of its own; the rows are what the training saw."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import attributes, check_books, gaps, rows

from ranklake.capture.assets.merkle_digest import merkle_digest

TRAIN = Path(__file__).with_name("train.py")
BOTH = pytest.mark.parametrize("options", [(), ("--auto",)], ids=["one line", "autolog"])
PARTS = ("data", "forward", "backward", "collective", "optimizer")


def train(folder, what, *options, ranks=1, environ=None):
    """Train; return what each rank saw."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    paths = [str(folder / name) for name in ("spool", "local", "said")]
    command = [sys.executable, *launcher, str(TRAIN), what, *paths, *options]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RANKLAKE_")}
    environ = {**clean, "OMP_NUM_THREADS": "1", "RANKLAKE_CAPTURE_ANNOUNCE": "off", **(environ or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environ)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [line for line in done.stderr.splitlines() if "ranklake:" in line and "unknown metric" not in line]
    assert told == []
    check_books(folder / "spool")
    assert gaps(folder / "spool") == {}
    return [json.loads((folder / f"said-{rank}").read_text()) for rank in range(ranks)]


def steps_of(folder, rank=0, run="run"):
    return [row for row in rows(folder / "spool", "steps") if row["rank"] == rank and row["run"] == run]


def check_steps(found, said):
    """Each step once, with the numbers that training saw, and phases that are no more than the step."""
    assert [row["step"] for row in found] == list(range(len(said)))
    for row, saw in zip(found, said, strict=True):
        for name, value in saw.items():
            assert row[name] == (None if value is None else pytest.approx(value, rel=1e-5)), (name, row)
        parts = [row[f"{part}_time_s"] or 0 for part in PARTS]
        assert all(row[f"{part}_time_s"] > 0 for part in PARTS if part != "collective"), row
        assert sum(parts) <= row["step_time_s"] * 1.001


def micro_batches(folder, step, name="forward"):
    spans = [row for row in rows(folder / "spool", "spans") if row["run"] == "run"]
    return sorted(row["microbatch"] for row in spans if row["step"] == step and row["name"] == name)


def events(folder, name):
    return [row for row in rows(folder / "spool", "events") if row["event"] == name]


@pytest.mark.slow
def test_plain_torch(tmp_path):
    """Autolog alone: a step a step of the optimizer; the loss where a step has one backward; evaluation is no step."""
    (said,) = train(tmp_path, "plain")
    check_steps(steps_of(tmp_path), said)
    assert micro_batches(tmp_path, 0) == [0]
    assert micro_batches(tmp_path, 5) == micro_batches(tmp_path, 5, "backward") == [0, 1]


@pytest.mark.slow
def test_plain_torch_on_two_ranks(tmp_path):
    """Each rank has its own steps, and DDP's all-reduce is timed without being told of the model."""
    said = train(tmp_path, "ddp", ranks=2)
    spans = rows(tmp_path / "spool", "spans")
    for rank in range(2):
        check_steps(steps_of(tmp_path, rank), said[rank])
        buckets = [row for row in spans if row["rank"] == rank and row["name"] == "all_reduce"]
        assert {row["step"] for row in buckets} == set(range(len(said[rank])))
        assert all(row["collective_time_s"] > 0 for row in steps_of(tmp_path, rank))


@pytest.mark.frameworks
def test_a_scaled_loss_is_recorded_unscaled(tmp_path):
    """With torch's gradient scaler and mixed precision."""
    (said,) = train(tmp_path, "scaled")
    check_steps(steps_of(tmp_path), said)


@pytest.mark.frameworks
@BOTH
def test_lightning(tmp_path, options):
    """Fits, a run each as their numbers begin anew: steps, accumulation, validation, checkpoint, config, failure."""
    (said,) = train(tmp_path, "lightning", *options)
    assert said.pop() == "failed"
    first, second = said[:8], said[8:]
    found = steps_of(tmp_path)
    losses = [{"loss": (first[i] + first[i + 1]) / 2} for i in range(0, 8, 2)]
    check_steps(found, losses)
    assert [row["lr"] for row in found] == pytest.approx([0.1, 0.1, 0.05, 0.05])
    assert all(row["grad_norm"] > 0 for row in found)
    assert micro_batches(tmp_path, 1) == [0, 1]
    assert [row["step"] for row in steps_of(tmp_path, run="run-fit2")] == [0]
    assert steps_of(tmp_path, run="run-fit2")[0]["loss"] == pytest.approx(sum(second[:2]) / 2, rel=1e-5)
    scalars = rows(tmp_path / "spool", "scalars")
    values = sorted((row["metric"], row["step"]) for row in scalars if row["run"] == "run")
    own = [value for value in values if value[0] in {"mine", "val_loss", "of_epoch"}]
    assert own == [*(("mine", step) for step in range(4)), ("of_epoch", 1), ("of_epoch", 3),
                   ("val_loss", 1), ("val_loss", 3)]  # fmt: skip
    assert [row["kind"] for row in rows(tmp_path / "spool", "spans") if row["name"] == "evaluation"]
    (failure,) = (row for row in events(tmp_path, "failure") if row["run"] == "run-fit2")
    assert "a batch is missing" in failure["message"]
    assert len([row for row in events(tmp_path, "checkpoint") if row["run"] == "run"]) == 2
    check_checkpoints(tmp_path, 2)
    check_config(tmp_path, "rate", "hf_xxx")


def check_checkpoints(folder, count, run="run", failed=()):
    """Checkpoints that are still there have the digest of what is there; the others a reason, or what they had."""
    every = [row for row in rows(folder / "spool", "artifacts") if row["run"] == run and row["action"] != "loaded"]
    found = [row for row in every if not row["action"].endswith("_failed")]
    assert [row["action"] for row in every if row not in found] == list(failed)
    assert [(row["kind"], row["action"]) for row in found] == [("checkpoint", "created")] * count
    kept = [row for row in found if Path(row["uri"]).exists()]
    assert kept
    for row in kept:
        again = merkle_digest(row["uri"])
        assert (row["sha256"], row["bytes"], row["file_count"]) == (again.sha256, again.size_bytes, again.file_count)
    assert all(row["sha256"] or attributes(row)["unavailable"]["sha256"] for row in found)


def check_load(folder, step):
    """Find one load, of the checkpoint of a step, verified by the bytes that it was saved with."""
    (row,) = (row for row in rows(folder / "spool", "artifacts") if row["action"] == "loaded")
    (made,) = (one for one in rows(folder / "spool", "artifacts") if one["action"] == "created" and one["step"] == step)
    assert (row["uri"], row["sha256"], row["verified"]) == (made["uri"], made["sha256"], True)
    assert (row["step"], row["exception_type"]) == (step, None)
    assert row["duration_ns"] > 0


def check_config(folder, name, secret):
    """Find the hyperparameters in the run's row, the planted token nowhere."""
    known = [row["config"] for row in rows(folder / "spool", "runs")]
    assert any(name in (text or "") for text in known)
    for file in [*(folder / "spool").rglob("*"), *(folder / "local").rglob("*")]:
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    for table in ("runs", "events"):
        assert secret not in str(rows(folder / "spool", table))


@pytest.mark.frameworks
@BOTH
def test_transformers(tmp_path, options):
    """The Trainer's steps, with its own numbers; its means, its evaluations, its checkpoint, its arguments."""
    (history,) = train(tmp_path, "transformers", *options)
    found = steps_of(tmp_path)
    check_steps(found, [{"lr": 0.1}] * 4)
    means = [entry["loss"] for entry in history if "loss" in entry]
    losses = [row["loss"] for row in found]
    assert [sum(losses[:2]) / 2, sum(losses[2:]) / 2] == pytest.approx(means, abs=1e-3)
    assert micro_batches(tmp_path, 2) == [0, 1]
    scalars = rows(tmp_path / "spool", "scalars")
    evals = [(row["step"], row["value"]) for row in scalars if row["metric"] == "eval/loss"]
    assert evals == [(1, pytest.approx(history[1]["eval_loss"])), (3, pytest.approx(history[3]["eval_loss"]))]
    assert len([row for row in rows(tmp_path / "spool", "spans") if row["name"] == "evaluation"]) == 2
    (checkpoint,) = events(tmp_path, "checkpoint")
    assert checkpoint["message"] == "checkpoint-4"
    assert checkpoint["duration_ns"] > 0
    check_checkpoints(tmp_path, 1)
    check_config(tmp_path, "gradient_accumulation_steps", "hf_yyy")


@pytest.mark.frameworks
@pytest.mark.slow
def test_lightning_goes_on_from_a_checkpoint(tmp_path):
    """Its steps go on in the same run, in mixed precision, and each checkpoint has its digest."""
    (said,) = train(tmp_path, "lightning_resumed")
    check_steps(steps_of(tmp_path), said)
    assert "bf16-mixed" in str(rows(tmp_path / "spool", "runs")[0]["config"])
    assert [row["step"] for row in events(tmp_path, "checkpoint")] == [2, 4]
    check_checkpoints(tmp_path, 2)
    check_load(tmp_path, 2)


@pytest.mark.frameworks
@pytest.mark.slow
def test_transformers_goes_on_from_a_checkpoint(tmp_path):
    """Its steps go on in the same run, in mixed precision, and each checkpoint has its digest."""
    (history,) = train(tmp_path, "transformers_resumed")
    said = [{"lr": entry["learning_rate"]} for entry in history[-4:]]
    found = steps_of(tmp_path)
    check_steps(found, said)
    assert [row["loss"] for row in found] == pytest.approx([entry["loss"] for entry in history[-4:]], abs=1e-3)
    assert [row["step"] for row in events(tmp_path, "checkpoint")] == [2, 4]
    check_checkpoints(tmp_path, 2)
    check_load(tmp_path, 2)


@pytest.mark.frameworks
@pytest.mark.slow
def test_fsdps_first_version_on_two_ranks(tmp_path):
    """Each rank has its own steps; gathering and scattering are timed."""
    said = train(tmp_path, "fsdp1", ranks=2)
    spans = rows(tmp_path / "spool", "spans")
    for rank in range(2):
        check_steps(steps_of(tmp_path, rank), said[rank])
        for name in ("all_gather", "reduce_scatter_single"):
            timed = [row["step"] for row in spans if row["rank"] == rank and row["name"] == name]
            assert sorted(set(timed)) == list(range(len(said[rank])))
        assert all(row["collective_time_s"] > 0 for row in steps_of(tmp_path, rank))


@pytest.mark.frameworks
@BOTH
def test_accelerate(tmp_path, options):
    """Steps of accumulated batches, what the accelerator logs, its checkpoint."""
    (said,) = train(tmp_path, "accelerate", *options)
    check_steps(steps_of(tmp_path), said)
    assert micro_batches(tmp_path, 3) == [0, 1]
    (logged,) = (row for row in rows(tmp_path / "spool", "scalars") if row["metric"] == "eval/loss")
    assert (logged["value"], logged["step"]) == (0.5, 3)
    assert [row["message"] for row in events(tmp_path, "checkpoint")] == ["state"]
    check_checkpoints(tmp_path, 1, failed=["load_failed", "save_failed"])
    (row,) = (row for row in rows(tmp_path / "spool", "artifacts") if row["action"] == "loaded")
    assert (row["name"], row["verified"]) == ("state", True)
    if not options:
        assert events(tmp_path, "config") == []
        assert [json.loads(row["config"]) for row in rows(tmp_path / "spool", "runs")] == [{"rate": 0.1}]


def alone():
    """Return the environment of a process that is a group of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**group, "DS_ACCELERATOR": "cpu"}


@pytest.mark.frameworks
@BOTH
def test_deepspeed(tmp_path, options):
    """An engine with ZeRO-1 and accumulation on the CPU: steps, loss, norm, samples, its checkpoint."""
    pytest.importorskip("deepspeed", reason="`make test-frameworks` builds it", exc_type=ImportError)
    (said,) = train(tmp_path, "deepspeed", *options, environ=alone())
    found = steps_of(tmp_path)
    check_steps(found, said)
    assert [row["samples"] for row in found] == [4] * len(said)
    assert micro_batches(tmp_path, 3) == [0, 1]
    assert [row["message"] for row in events(tmp_path, "checkpoint")] == ["global_step4"]
    check_checkpoints(tmp_path, 1)


PRELUDE = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
os.chdir(sys.argv[1])
os.environ["RANKLAKE_LOCAL_SPOOL"] = "local"
data = [{"inputs": torch.ones(8), "labels": torch.ones(1)}] * 8
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for batch in DataLoader(data, batch_size=4):
        torch.nn.functional.mse_loss(model(batch["inputs"]), batch["labels"]).backward()
        optimizer.step()
"""
TRAIN_WITH = {
    "autolog(spool": ("", "train()"),
    "parse_args": (
        """
import argparse, sys
from ranklake import capture
sys.argv[1:] = ["--rate", "0.5"]
parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
""",
        "train()",
    ),
    "frameworks.lightning": (
        """
import lightning, warnings
warnings.simplefilter("ignore")
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.net(batch["inputs"]), batch["labels"])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
""",
        "trainer.fit(Module(), DataLoader(data, batch_size=4))",
    ),
    "frameworks.transformers": (
        """
import transformers
class Model(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, inputs, labels):
        return {"loss": torch.nn.functional.mse_loss(self.net(inputs), labels)}
model = Model(model)
args = transformers.TrainingArguments(output_dir="hf", max_steps=2, per_device_train_batch_size=4, report_to=[],
    use_cpu=True, save_strategy="no", disable_tqdm=True)
""",
        "trainer.train()",
    ),
    "frameworks.accelerate": ("import accelerate", "train()"),
    "frameworks.deepspeed": (
        """
import deepspeed
deepspeed.ops.__compatible_ops__ = {}
deepspeed.init_distributed(dist_backend="gloo")
config = {"train_micro_batch_size_per_gpu": 4}
""",
        """
for batch in DataLoader(data, batch_size=4):
    engine.backward(torch.nn.functional.mse_loss(engine(batch["inputs"]), batch["labels"]))
    engine.step()
torch.distributed.destroy_process_group()
""",
    ),
}
DOCUMENT = Path(__file__).parents[3] / "docs" / "frameworks.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "which",
    [pytest.param(name, marks=pytest.mark.frameworks if "frameworks" in name else ()) for name in TRAIN_WITH],
)
def test_what_the_document_says_works(tmp_path, which):
    """Each of its snippets, with a model around it, records two steps."""
    (snippet,) = (text for text in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if which in text)
    before, after = TRAIN_WITH[which]
    script = f"{PRELUDE}\n{before}\n{snippet}\n{after}"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **(alone() if which.endswith("deepspeed") else {})}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["step"] for row in rows(tmp_path / "spool", "steps")] == [0, 1]
    if which == "parse_args":
        assert [json.loads(row["config"]) for row in rows(tmp_path / "spool", "runs")] == [{"rate": 0.5}]

"""Trains a small model with a framework, in a process of its own: ``train.py WHAT SPOOL LOCAL SAID``.

Each function returns what it saw of its own training; the tests compare the rows with that.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from ranklake import capture
from ranklake.capture.frameworks.follower import FOLLOWED
from ranklake.capture.frameworks.patches import PATCHES

WHERE = {"spool": sys.argv[2], "local_dir": sys.argv[3], "run": "run"} if __name__ == "__main__" else {}
RANK = int(os.environ.get("RANK", "0"))


def data(rows=16):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 8, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def loop(model, optimizer, batches, *, every=1, clip=1.0):
    """Train one epoch in plain torch; return what each step saw."""
    said = []
    for number, (inputs, targets) in enumerate(batches):
        loss = torch.nn.functional.mse_loss(model(inputs), targets) / every
        loss.backward()
        if (number + 1) % every == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            said.append({"loss": loss.item() if every == 1 else None, "grad_norm": norm.item(), "lr": 0.1})
    return said


def plain():
    """Autolog and nothing else; then accumulation, evaluation in between, and another optimizer."""
    run = capture.autolog(**WHERE)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = loop(model, optimizer, DataLoader(data(), batch_size=4))
    model.eval()
    with torch.no_grad():
        model(data().tensors[0])
    model.train()
    assert capture.autolog(**WHERE) is run
    said += loop(model, optimizer, DataLoader(data(), batch_size=4), every=2)
    return said


def ddp():
    """Two ranks, by autolog."""
    torch.distributed.init_process_group("gloo")
    capture.autolog(**WHERE)
    model = torch.nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = loop(model, optimizer, DataLoader(data(32), batch_size=4, sampler=range(RANK, 32, 2)))
    torch.distributed.destroy_process_group()
    return said


def scaled():
    """With a gradient scaler the loss is the one before scaling."""
    capture.autolog(**WHERE)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    said = []
    for inputs, targets in DataLoader(data(), batch_size=4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        said.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": 0.1})
    return said


def lightning():
    """Two fits with accumulation, validation, checkpoints and a learning rate schedule; the second one fails."""
    if "--auto" in sys.argv:
        capture.autolog(**WHERE)
    import lightning.pytorch as pl

    said = []

    class Module(pl.LightningModule):
        def __init__(self, rate=0.1, token="hf_" + "x" * 34):
            super().__init__()
            self.save_hyperparameters()
            self.net, self.fails = net(), False

        def training_step(self, batch, _):
            if self.fails and self.global_step == 1:
                raise KeyError("a batch is missing")
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("mine", 7.0)
            self.log("of_epoch", loss, on_step=False, on_epoch=True)
            said.append(loss.item())
            return loss

        def validation_step(self, batch, _):
            self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.rate)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def trainer(folder):
        callbacks = []
        if "--auto" not in sys.argv:
            from ranklake.capture.frameworks.lightning import RanklakeCallback

            callbacks = [RanklakeCallback(**WHERE)]
        return pl.Trainer(
            max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=1.0, callbacks=callbacks, logger=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, log_every_n_steps=1,
            accelerator="cpu", devices=1,
        )  # fmt: skip

    warnings.simplefilter("ignore")
    folder = Path(sys.argv[4]).parent / "lightning"
    loader = DataLoader(data(), batch_size=4)
    trainer(folder).fit(Module(), loader, DataLoader(data(), batch_size=8))
    failing = Module()
    failing.fails = True
    try:
        trainer(folder).fit(failing, loader)
    except KeyError:
        said.append("failed")
    return said


def lightning_resumed():
    """Fit in mixed precision, and go on from its checkpoint with another Trainer."""
    import lightning.pytorch as pl

    from ranklake.capture.frameworks.lightning import RanklakeCallback

    said = []

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            said.append({"loss": loss.item(), "lr": 0.1})
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    warnings.simplefilter("ignore")
    folder = Path(sys.argv[4]).parent / "lightning"
    path = None
    for steps in (2, 4):
        trainer = pl.Trainer(
            max_steps=steps, precision="bf16-mixed", callbacks=[RanklakeCallback(**WHERE)], logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, accelerator="cpu",
            devices=1, gradient_clip_val=1.0,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(data(32), batch_size=4), ckpt_path=path)
        path = folder / f"step-{steps}.ckpt"
        trainer.save_checkpoint(path, weights_only=False)
    return said


class TransformersModel(torch.nn.Module):
    """What the Trainer of Transformers trains: it gives the loss with what it predicts."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, inputs, labels):
        """Return the loss and what was predicted."""
        out = self.net(inputs)
        return {"loss": torch.nn.functional.mse_loss(out.float(), labels), "logits": out}


def transformers_resumed():
    """Train in mixed precision, and go on from the checkpoint with another Trainer."""
    import transformers as hf

    from ranklake.capture.frameworks.transformers import RanklakeCallback

    rows = [dict(zip(("inputs", "labels"), row, strict=True)) for row in data(32)]
    history = []
    for steps in (2, 4):
        args = hf.TrainingArguments(
            output_dir=str(Path(sys.argv[4]).parent / "hf"), max_steps=steps, per_device_train_batch_size=4,
            learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", bf16=True, logging_steps=1, save_steps=2,
            report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = hf.Trainer(TransformersModel(), args, train_dataset=rows, callbacks=[RanklakeCallback(**WHERE)])
        trainer.train(resume_from_checkpoint=steps > 2)
        history += [entry for entry in trainer.state.log_history if "loss" in entry]
    return history


def fsdp1():
    """Two ranks shard a model by FSDP's first version, in mixed precision; by autolog."""
    from torch.distributed import fsdp

    torch.distributed.init_process_group("gloo")
    capture.autolog(**WHERE)
    kind = torch.bfloat16
    mixed = fsdp.MixedPrecision(param_dtype=kind, reduce_dtype=torch.float32)
    model = fsdp.FullyShardedDataParallel(net(), mixed_precision=mixed, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for inputs, targets in DataLoader(data(32), batch_size=4, sampler=range(RANK, 32, 2)):
        loss = torch.nn.functional.mse_loss(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said.append({"loss": loss.item(), "lr": 0.1})
    torch.distributed.destroy_process_group()
    return said


def transformers():
    """Train by the Trainer of Transformers, with accumulation, evaluation and a checkpoint."""
    import transformers as hf

    rows = [dict(zip(("inputs", "labels"), row, strict=True)) for row in data()]
    callbacks = []
    if "--auto" in sys.argv:
        capture.autolog(**WHERE)
    else:
        from ranklake.capture.frameworks.transformers import RanklakeCallback

        callbacks = [RanklakeCallback(**WHERE)]
    args = hf.TrainingArguments(
        output_dir=str(Path(sys.argv[4]).parent / "hf"), max_steps=4, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", max_grad_norm=1.0,
        logging_steps=2, eval_strategy="steps", eval_steps=2, save_steps=4, report_to=[], use_cpu=True,
        disable_tqdm=True, hub_token="hf_" + "y" * 34,
    )  # fmt: skip
    trainer = hf.Trainer(TransformersModel(), args, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)
    trainer.train()
    return trainer.state.log_history


def accelerate():
    """Accelerate with accumulation, a tracker, its log and a checkpoint."""
    import accelerate as hf

    config = {"rate": 0.1}
    if "--auto" in sys.argv:
        capture.autolog(**WHERE)
        accelerator = hf.Accelerator(gradient_accumulation_steps=2, cpu=True)
    else:
        from ranklake.capture.frameworks.accelerate import RanklakeTracker

        accelerator = hf.Accelerator(gradient_accumulation_steps=2, cpu=True, log_with=[RanklakeTracker(**WHERE)])
    accelerator.init_trackers("job", config=config)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=2))
    said, losses = [], []
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            said.append({"loss": sum(losses) / 2, "grad_norm": norm.item(), "lr": 0.1})
            losses.clear()
    accelerator.log({"eval/loss": 0.5}, step=3)
    state = Path(sys.argv[4]).parent / "state"
    accelerator.save_state(str(state))
    accelerator.load_state(str(state))
    for call, place in ((accelerator.load_state, state / "none"), (accelerator.save_state, state / "optimizer.bin")):
        try:
            call(str(place))
        except (ValueError, OSError):
            continue
        raise AssertionError(place)
    accelerator.end_training()
    return said


def deepspeed():
    """DeepSpeed with ZeRO-1 on gloo, accumulation and a checkpoint."""
    import deepspeed as ds

    ds.ops.__compatible_ops__ = {}  # it would compile one for gloo: minutes on a busy machine, and none is needed
    ds.init_distributed(dist_backend="gloo")
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
    config["zero_optimization"] = {"stage": 1}
    if "--auto" in sys.argv:
        capture.autolog(**WHERE)
    engine, *_ = ds.initialize(model=model, optimizer=optimizer, config=config)
    if "--auto" not in sys.argv:
        from ranklake.capture.frameworks.deepspeed import record

        record(engine, **WHERE)
    said, losses = [], []
    for inputs, targets in DataLoader(data(), batch_size=2):
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
        if len(losses) == 2:
            norm = float(engine.get_global_grad_norm())
            said.append({"loss": sum(losses) / 2, "grad_norm": norm, "lr": 0.1})
            losses.clear()
    engine.save_checkpoint(str(Path(sys.argv[4]).parent / "ds"))
    torch.distributed.destroy_process_group()
    return said


if __name__ == "__main__":
    torch.set_num_threads(1)
    told = globals()[sys.argv[1]]()
    if FOLLOWED:
        FOLLOWED[0].run.close()
        assert PATCHES._patches == []
    Path(f"{sys.argv[4]}-{RANK}").write_text(json.dumps(told))

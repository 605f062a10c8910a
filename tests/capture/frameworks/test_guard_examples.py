"""The guard's examples for Lightning and Transformers, as documented, over real frameworks."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from recorded import rows

from ranklake import capture

pytestmark = pytest.mark.frameworks
PAGE = (Path(__file__).parents[3] / "docs" / "guard.md").read_text(encoding="utf-8")


def documented(library, **names):
    """Return the class that the page's example for a library defines."""
    (text,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"{library}." in block)
    exec(text, names)
    return names["Guarded"]


@pytest.fixture
def run(tmp_path):
    """Give a run that is closed before the test looks at its rows."""
    return capture.start(run="run", spool=tmp_path / "spool", local_dir=tmp_path / "local")


def guard_events(folder):
    return [row for row in rows(folder / "spool", "events") if row["event"] == "guard"]


def test_lightning_hears_of_a_loss_that_is_not_finite(tmp_path, run):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch, number):
            return self.net(batch).mean() * (float("nan") if number == 2 else 1.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    warnings.simplefilter("ignore")
    guarded = documented("lightning", capture=capture, run=run, lightning=lightning)()
    trainer = lightning.Trainer(
        max_steps=3, callbacks=[guarded], logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, accelerator="cpu", devices=1,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(6, 2), batch_size=2))
    run.close()
    (event,) = guard_events(tmp_path)
    assert event["message"] == "the loss is nan"


def test_transformers_saves_where_the_loss_diverges(tmp_path, run):
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def forward(self, inputs, labels):
            return {"loss": self.net(inputs).mean() * 0 + labels.mean(), "logits": self.net(inputs)}

    data = [{"inputs": torch.zeros(1), "labels": torch.tensor([1.0 if n < 40 else 9.0])} for n in range(50)]
    guarded = documented("transformers", capture=capture, run=run, transformers=transformers)()
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path / "hf"), max_steps=50, per_device_train_batch_size=1, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    InOrder(Model(), args, train_dataset=data, callbacks=[guarded]).train()
    run.close()
    assert [row["message"][:11] for row in guard_events(tmp_path)] == ["the loss is"] * 2
    assert [path.name for path in (tmp_path / "hf").glob("checkpoint-*")] == ["checkpoint-48"]

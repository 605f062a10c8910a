"""Sweeps: a run says which trial of which sweep it is, by what the sweep's tool left in its surroundings."""

import json
import sys

import pytest

from tests.support.recorded import rows

PARAMETERS = "wandb_version: 1\nlr:\n  desc: null\n  value: 0.1\nopt.name:\n  value: adam\n"


def labels_and_config(place, **options):
    """Return labels and config of a run that starts and ends here."""
    place.start(**options).close()
    row = rows(place.spool, "runs")[-1]
    return [None if row[name] is None else json.loads(row[name]) for name in ("labels", "config")]


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """Give the variables of wandb's agent."""
    (tmp_path / "parameters.yaml").write_text(PARAMETERS)
    monkeypatch.setenv("WANDB_SWEEP_ID", "9k2fw1qz")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(tmp_path / "parameters.yaml"))


def test_of_wandb(place, wandb):
    """Its parameters are the config of a run that has none."""
    labels, config = labels_and_config(place)
    assert labels == {"sweep": "9k2fw1qz", "sweep_by": "wandb", "trial": "r1"}
    assert config == {"lr": 0.1, "opt.name": "adam"}


def test_what_the_script_says_stays(place, wandb):
    """Its own config, and labels of the same names."""
    labels, config = labels_and_config(place, config={"lr": 5}, labels={"trial": "mine", "team": "a"})
    assert labels == {"sweep": "9k2fw1qz", "sweep_by": "wandb", "trial": "mine", "team": "a"}
    assert config == {"lr": 5}


def test_of_hydra_in_its_folder(place, monkeypatch, tmp_path):
    """A process that a job of a multirun started finds what Hydra wrote; a job by itself is no sweep."""
    folder = tmp_path / "multirun" / "2026-03-01" / "10-00-00" / "3"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("- lr=0.2\n- +opt.wd=1e-4\n- name='a=b'\n- ~gone\n")
    monkeypatch.chdir(folder)
    assert labels_and_config(place) == [None, None]
    (folder.parent / "multirun.yaml").write_text("x: 1\n")
    labels, config = labels_and_config(place)
    assert labels == {"sweep": "2026-03-01/10-00-00", "sweep_by": "hydra", "trial": "3"}
    assert config["lr"] == 0.2
    assert config["name"] == "a=b"
    assert "gone" not in config


def test_of_optuna(place):
    """The trial that a caller of `start` holds, however deep."""
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    seen = []

    def train():
        seen.append(labels_and_config(place))

    def objective(trial):
        lr = trial.suggest_float("lr", 0.1, 0.2)
        train()
        return lr

    optuna.create_study(study_name="night").optimize(objective, n_trials=1)
    ((labels, config),) = seen
    assert labels == {"sweep": "night", "sweep_by": "optuna", "trial": "0"}
    assert 0.1 <= config["lr"] <= 0.2


@pytest.mark.parametrize(
    "text", ["{" * 9999, "lr: !!python/object/apply:os.system ['false']", "- 1\n- 2", "\x00\xff", ""]
)
def test_what_is_no_sweep_stops_nothing(place, wandb, tmp_path, text):
    """The sweep is told without parameters."""
    (tmp_path / "parameters.yaml").write_text(text, encoding="latin-1")
    labels, config = labels_and_config(place)
    assert labels["sweep"] == "9k2fw1qz"
    assert config is None


def test_a_tool_of_another_release_stops_nothing(place, monkeypatch):
    """Whatever its modules hold."""
    monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", sys)
    monkeypatch.setitem(sys.modules, "ray.tune", sys)
    monkeypatch.setitem(sys.modules, "optuna.trial", sys)
    assert labels_and_config(place) == [None, None]

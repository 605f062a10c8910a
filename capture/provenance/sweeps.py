"""Sweeps: finds the hyperparameter search that a run is a trial of, without a call in the script.

    wandb's agent     WANDB_SWEEP_ID, and the file of WANDB_SWEEP_PARAM_PATH
    Hydra             HydraConfig in this process, else .hydra/overrides.yaml in its folder
    Ray Tune          the trial's context in this process
    Optuna            a trial in the local variables of a caller of `start`

Sweep, trial and tool become the labels ``sweep``, ``trial`` and ``sweep_by``. The trial's parameters become the run's
config if neither the caller nor a framework sets one. Ray does not report parameters.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

_MAX_FRAMES: Final = 64
_MAX_BYTES: Final = 1 << 20
_OVERRIDES: Final = ".hydra/overrides.yaml"


@dataclass(frozen=True, slots=True)
class Trial:
    """A run as a trial of a sweep.

    Attributes
    ----------
    tool
        The tool that runs the sweep: wandb, hydra, ray or optuna.
    sweep, number
        Name of the sweep, equal in all its trials, and name of the trial.
    parameters
        Parameters that the sweep chose, by name.
    """

    tool: str
    sweep: str
    number: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def merge_labels(self, labels: object) -> object:
        """Add the trial's labels to a run's labels, which take precedence."""
        trial_labels = {"sweep": self.sweep, "trial": self.number, "sweep_by": self.tool}
        if labels is None:
            return trial_labels
        return trial_labels | dict(labels) if isinstance(labels, Mapping) else labels


def find_trial(environ: Mapping[str, str], frame: FrameType | None) -> Trial | None:
    """Return the trial that this process runs; None if there is none. Never raises.

    Parameters
    ----------
    frame
        Frame of the caller of `start`. Local variables of it and its callers are searched for a trial of Optuna.
    """
    finders: tuple[Callable[[], Trial | None], ...] = (
        partial(_wandb_trial, environ),
        _hydra_trial,
        _ray_trial,
        partial(_optuna_trial, frame),
    )
    for find in finders:
        with suppress(Exception):  # another release of a tool may raise anything
            if (trial := find()) is not None:
                return trial
    return None


def _wandb_trial(environ: Mapping[str, str]) -> Trial | None:
    sweep = environ.get("WANDB_SWEEP_ID", "")
    if not sweep:
        return None
    parameters: dict[str, Any] = {}
    with suppress(Exception):  # return the sweep without parameters
        content = _yaml(Path(environ["WANDB_SWEEP_PARAM_PATH"])) if "WANDB_SWEEP_PARAM_PATH" in environ else {}
        items = content.items() if isinstance(content, dict) else ()
        parameters = {str(name): item["value"] for name, item in items if isinstance(item, dict) and "value" in item}
    return Trial("wandb", sweep, environ.get("WANDB_RUN_ID", ""), parameters)


def _hydra_trial() -> Trial | None:
    module: Any = sys.modules.get("hydra.core.hydra_config")
    if module is not None and module.HydraConfig.initialized():
        config = module.HydraConfig.get()
        if str(getattr(config.mode, "name", config.mode)) != "MULTIRUN":
            return None
        folder = Path(str(config.sweep.dir))
        return Trial("hydra", _multirun_name(folder), str(config.job.num), _overrides(list(config.overrides.task)))
    folder = Path.cwd()
    if not (folder.parent / "multirun.yaml").is_file():
        return None
    overrides = _yaml(folder / _OVERRIDES)
    if not isinstance(overrides, list):
        return None
    return Trial("hydra", _multirun_name(folder.parent), folder.name, _overrides(overrides))


def _multirun_name(folder: Path) -> str:
    """Return the name of a multirun: the last two parts of its folder, which are date and time by default."""
    return "/".join(folder.parts[-2:])


def _overrides(texts: list[Any]) -> dict[str, Any]:
    """Parse overrides such as ``+optim.lr=0.1``: return their values, read as YAML, by name."""
    import yaml

    parameters = {}
    for override in map(str, texts):
        name, sign, value = override.partition("=")
        if sign and not name.startswith("~"):
            parameters[name.lstrip("+")] = yaml.safe_load(value)
    return parameters


def _ray_trial() -> Trial | None:
    for name in ("ray.tune", "ray.train"):
        module: Any = sys.modules.get(name)
        if module is None or not hasattr(module, "get_context"):
            continue
        context = module.get_context()
        if trial := context.get_trial_id():
            return Trial("ray", str(context.get_experiment_name() or ""), str(trial))
    return None


def _optuna_trial(frame: FrameType | None) -> Trial | None:
    module: Any = sys.modules.get("optuna.trial")
    if module is None:
        return None
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        for value in frame.f_locals.values():
            if isinstance(value, module.Trial):
                return Trial("optuna", str(value.study.study_name), str(value.number), dict(value.params))
        frame = frame.f_back
    return None


def _yaml(path: Path) -> Any:  # noqa: ANN401 - YAML
    import yaml

    if path.stat().st_size > _MAX_BYTES:
        return None
    return yaml.safe_load(path.read_text(encoding="utf-8"))

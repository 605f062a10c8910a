"""Sweep: the search of hyperparameters that a run is a trial of, as its tool reports it; the script calls nothing.

    wandb's agent     WANDB_SWEEP_ID, and the file of WANDB_SWEEP_PARAM_PATH
    Hydra             HydraConfig in this process, else .hydra/overrides.yaml in its folder
    Ray Tune          the trial's context in this process
    Optuna            the trial that a caller of `start` holds

They become the labels ``sweep``, ``trial`` and ``sweep_by``. The parameters of the trial become the run's config if
neither the caller nor a framework gives one; Ray does not report them.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

_MOST_FRAMES: Final = 64
_MOST_BYTES: Final = 1 << 20
_OVERRIDES: Final = ".hydra/overrides.yaml"


@dataclass(frozen=True, slots=True)
class Trial:
    """A run as a trial of a sweep.

    Attributes
    ----------
    tool
        What runs the sweep: wandb, hydra, ray or optuna.
    sweep, number
        Name of the sweep, the same in all its trials, and of the trial in it.
    parameters
        What the sweep chose, by name.
    """

    tool: str
    sweep: str
    number: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def merge_labels(self, labels: object) -> object:
        """Return a run's labels with those of the trial; the user's own of the same names stay."""
        trial_labels = {"sweep": self.sweep, "trial": self.number, "sweep_by": self.tool}
        if labels is None:
            return trial_labels
        return trial_labels | dict(labels) if isinstance(labels, Mapping) else labels


def find_trial(environ: Mapping[str, str], frame: FrameType | None) -> Trial | None:
    """Return the trial that this process runs; None if it runs none. Nothing is raised.

    Parameters
    ----------
    frame
        Frame of the caller of `start`, whose variables and those of its callers may hold Optuna's trial.
    """
    finders: tuple[Callable[[], Trial | None], ...] = (
        partial(_wandb, environ),
        _hydra,
        _ray,
        partial(_optuna, frame),
    )
    for find in finders:
        with suppress(Exception):  # another release of a tool may raise anything
            if (trial := find()) is not None:
                return trial
    return None


def _wandb(environ: Mapping[str, str]) -> Trial | None:
    sweep = environ.get("WANDB_SWEEP_ID", "")
    if not sweep:
        return None
    parameters: dict[str, Any] = {}
    with suppress(Exception):  # the sweep is known without them
        chosen = _yaml(Path(environ["WANDB_SWEEP_PARAM_PATH"])) if "WANDB_SWEEP_PARAM_PATH" in environ else {}
        items = chosen.items() if isinstance(chosen, dict) else ()
        parameters = {str(name): item["value"] for name, item in items if isinstance(item, dict) and "value" in item}
    return Trial("wandb", sweep, environ.get("WANDB_RUN_ID", ""), parameters)


def _hydra() -> Trial | None:
    module: Any = sys.modules.get("hydra.core.hydra_config")
    if module is not None and module.HydraConfig.initialized():
        config = module.HydraConfig.get()
        if str(getattr(config.mode, "name", config.mode)) != "MULTIRUN":
            return None
        folder = Path(str(config.sweep.dir))
        return Trial("hydra", _sweep_of(folder), str(config.job.num), _overrides(list(config.overrides.task)))
    here = Path.cwd()
    if not (here.parent / "multirun.yaml").is_file():
        return None
    overrides = _yaml(here / _OVERRIDES)
    if not isinstance(overrides, list):
        return None
    return Trial("hydra", _sweep_of(here.parent), here.name, _overrides(overrides))


def _sweep_of(folder: Path) -> str:
    """Return the name of a multirun: its last two folders, which Hydra names by date and time."""
    return "/".join(folder.parts[-2:])


def _overrides(texts: list[Any]) -> dict[str, Any]:
    """Return overrides such as ``+optim.lr=0.1`` by name, their values as YAML reads them."""
    import yaml

    parameters = {}
    for override in map(str, texts):
        name, sign, value = override.partition("=")
        if sign and not name.startswith("~"):
            parameters[name.lstrip("+")] = yaml.safe_load(value)
    return parameters


def _ray() -> Trial | None:
    for name in ("ray.tune", "ray.train"):
        module: Any = sys.modules.get(name)
        if module is None or not hasattr(module, "get_context"):
            continue
        context = module.get_context()
        if trial := context.get_trial_id():
            return Trial("ray", str(context.get_experiment_name() or ""), str(trial))
    return None


def _optuna(frame: FrameType | None) -> Trial | None:
    module: Any = sys.modules.get("optuna.trial")
    if module is None:
        return None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        for value in frame.f_locals.values():
            if isinstance(value, module.Trial):
                return Trial("optuna", str(value.study.study_name), str(value.number), dict(value.params))
        frame = frame.f_back
    return None


def _yaml(path: Path) -> Any:  # noqa: ANN401 - YAML
    import yaml

    if path.stat().st_size > _MOST_BYTES:
        return None
    return yaml.safe_load(path.read_text(encoding="utf-8"))

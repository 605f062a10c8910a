"""Room ``capture``: what runs beside training; see its README.md.

import ranklake.capture

with ranklake.capture.start(job="gpt", spool="s3://bucket/spool") as run:
    for n, batch in enumerate(batches):
        with run.step(n, tokens=batch.tokens):
            with run.phase("forward"): ...
            run.log(loss=loss, lr=lr)
"""

if __name__ != "ranklake.capture":  # `import capture` would load a second copy of every class in the room
    raise ImportError("import this room as ranklake.capture")

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.capture.frameworks.autolog import autolog
    from ranklake.capture.training.guard import guard
    from ranklake.capture.training.inference import inference
    from ranklake.capture.training.run import Run
    from ranklake.capture.training.start import start

__all__ = ["Run", "autolog", "guard", "inference", "start"]

_MODULES: Final = {
    "Run": "training.run",
    "autolog": "frameworks.autolog",
    "guard": "training.guard",
    "inference": "training.inference",
    "start": "training.start",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - two classes and three functions
    """Import a public name on first use. The agent and its worker processes need few modules of this room."""
    if name in _MODULES:
        globals()[name] = member = getattr(import_module(f"ranklake.capture.{_MODULES[name]}"), name)
        return member
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, without importing them."""
    return sorted(__all__)

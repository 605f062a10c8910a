"""Room ``capture``: what runs beside training; see its README.md.

import ranklake.capture

with ranklake.capture.start(job="gpt", spool="s3://bucket/spool") as run:
    for n, batch in enumerate(batches):
        with run.step(n, tokens=batch.tokens):
            with run.phase("forward"): ...
            run.log(loss=loss, lr=lr)
"""

if __name__ != "ranklake.capture":  # a bare import would make a second copy of every class in the room
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

_IN: Final = {
    "Run": "training.run",
    "autolog": "frameworks.autolog",
    "guard": "training.guard",
    "inference": "training.inference",
    "start": "training.start",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - five things of different kinds
    """Import what is asked for, and nothing else: the agent and its worker processes need little of the room."""
    if name in _IN:
        globals()[name] = member = getattr(import_module(f"ranklake.capture.{_IN[name]}"), name)
        return member
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what users may call; nothing of it is imported by that."""
    return sorted(__all__)

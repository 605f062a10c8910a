"""Room ``capture``: what runs beside training; see its README.md.

import ranklake.capture

with ranklake.capture.training.start(job="gpt", spool="s3://bucket/spool") as run:
    for n, batch in enumerate(batches):
        with run.step(n, tokens=batch.tokens):
            with run.phase("forward"): ...
            run.log(loss=loss, lr=lr)
"""

if __name__ != "ranklake.capture":  # a bare import would make a second copy of every class in the room
    raise ImportError("import this room as ranklake.capture")

from typing import TYPE_CHECKING

from ranklake.capture.serving.inference import inference
from ranklake.capture.training.run import Run
from ranklake.capture.training.start import start

if TYPE_CHECKING:
    from collections.abc import Callable

    from ranklake.capture.frameworks.autolog import autolog

__all__ = ["Run", "autolog", "inference", "start"]


def __getattr__(name: str) -> "Callable[..., Run]":
    """Import `autolog` when it is asked for: whoever does without it has nothing of frameworks loaded."""
    if name == "autolog":
        from ranklake.capture.frameworks.autolog import autolog

        return autolog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

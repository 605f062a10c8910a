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

from ranklake.capture.inference import inference
from ranklake.capture.run import Run
from ranklake.capture.start import start

__all__ = ["Run", "inference", "start"]

"""MaxText and MaxDiffusion: the dialect of their standard output, with a line for each step, usually without a time.

completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, total_weights: 196608, loss: 10.374
"""

import re
from typing import Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.step_lines import NUMBER, Dialect, log_format

DIALECT: Final = Dialect(
    name="MaxText",
    line=re.compile(r"\bcompleted step: (?P<step>\d{1,15})(?P<rest>, seconds: .*)"),
    fields=re.compile(rf", (?P<name>[A-Za-z_][\w /]{{0,100}}): (?P<value>{NUMBER})(?=,|\s*$)"),
    seconds="seconds",
    columns={"loss": "loss"},
)
FORMAT: Final[Format] = log_format(
    DIALECT,
    rb"\bcompleted step: \d+, seconds: ",
    "completed step: 9, seconds: 5.667, TFLOP/s/device: 134.9, loss: 10.374",
)

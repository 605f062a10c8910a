"""Nanotron: the dialect of its standard output, with a line for each iteration from the rank that computes the loss.

10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 7 / 90 | … | elapsed_time_per_iteration_ms: 11.5K | …
"""

import re
from typing import Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.step_lines import NUMBER, Dialect, log_format

DIALECT: Final = Dialect(
    name="nanotron",
    line=re.compile(
        r"(?P<at>\d\d/\d\d/\d{4} \d\d:\d\d:\d\d) \[INFO\|[^\]]{0,200}\]:? ?"
        r"iteration: (?P<step>\d{1,15}) / \d+(?P<rest> \|.*)"
    ),
    fields=re.compile(rf"\| (?P<name>[a-z_0-9]{{1,100}}): (?P<value>{NUMBER})(?P<unit>[KMGBTP]?)(?= \||\s*$)"),
    at_form="%m/%d/%Y %H:%M:%S",
    seconds="elapsed_time_per_iteration_ms",
    scale=1e-3,
    columns={"lm_loss": "loss", "lr": "lr", "grad_norm": "grad_norm"},
)
FORMAT: Final[Format] = log_format(
    DIALECT,
    rb"\[INFO\|DP=\d+\|PP=\d+\|TP=\d+[^\]]*\]:? ?iteration: \d+ / \d+ \|",
    "iteration: 7 / 90 | elapsed_time_per_iteration_ms: 11.5K | lm_loss: 2.38",
)

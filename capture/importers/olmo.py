"""OLMo: the dialect of its standard output, with a line for each step and its metrics in the lines below.

2024-08-06 10:00:05.520 host:0  olmo.train:908  INFO    [step=2/739328,epoch=0]
optim/total_grad_norm=0.0002
train/CrossEntropyLoss=1.787
"""

import re
from typing import Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.step_lines import NUMBER, Dialect, log_format

DIALECT: Final = Dialect(
    name="OLMo",
    line=re.compile(r"\[step=(?P<step>[\d,]{1,15})/[\d,]+(?:,epoch=\d+)?[^\]]{0,80}\]\s*$"),
    fields=re.compile(rf"^\s*(?P<name>[A-Za-z][\w/ ().@-]{{0,200}}?)=(?P<value>{NUMBER})\s*$"),
    below=True,
    columns={
        "train/CrossEntropyLoss": "loss",
        "optim/total_grad_norm": "grad_norm",
        "optim/learning_rate_group0": "lr",
    },
)
FORMAT: Final[Format] = log_format(
    DIALECT,
    rb"\[step=[\d,]+/[\d,]+(?:,epoch=\d+)?[^\]\n]*\]\s*\n\s+[\w/ ().-]+=",
    "[step=2/739328,epoch=0], and below it train/CrossEntropyLoss=1.787",
)

"""The operations of a pipeline-parallel training step: their names, and the streams that they run on.

The vocabulary is that of the trace format of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI'25), which Megatron-LM's timers use, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Operation:
    """What is known of an operation by its name.

    Parameters
    ----------
    name
        As the spans have it.
    stream
        What it runs on in order; ``end`` for what follows the last compute, one after another.
    communicates
        Its ideal length is the median of its kind's transfers, not the mean.
    over_dp
        It waits for the other data-parallel ranks.
    part
        Name that slowdowns are told under.
    """

    name: str
    stream: str
    communicates: bool = False
    over_dp: bool = False
    part: str = ""


_ALL: Final = (
    Operation("forward-compute", "compute"),
    Operation("backward-compute", "compute"),
    Operation("forward-send", "forward-send", communicates=True, part="forward-pp-comm"),
    Operation("forward-recv", "forward-recv", communicates=True, part="forward-pp-comm"),
    Operation("backward-send", "backward-send", communicates=True, part="backward-pp-comm"),
    Operation("backward-recv", "backward-recv", communicates=True, part="backward-pp-comm"),
    Operation("params-all-gather", "data-parallel", communicates=True, over_dp=True),
    Operation("grads-reduce-scatter", "data-parallel", communicates=True, over_dp=True),
    Operation("gc", "end"),
    Operation("layernorm-grads-all-reduce", "end", communicates=True),
    Operation("embedding-grads-all-reduce", "end", communicates=True),
    Operation("separate-grads-all-reduce", "end", communicates=True, over_dp=True),
    Operation("optimizer-clip-main-grad", "end", communicates=True, over_dp=True),
    Operation("optimizer", "end"),
)
OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType({one.name: one for one in _ALL})
"""By name, in the order in which the nodes of a stage are numbered."""

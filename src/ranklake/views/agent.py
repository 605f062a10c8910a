"""What the agent tells on a terminal: a line for each look that did something."""

from pathlib import Path

from ranklake.capture.node.agent_metrics import PassResult
from ranklake.capture.spool.leader import Leader
from ranklake.printable import counted


def pass_line(done: PassResult) -> str:
    """Return what one look at the local spool did; what there is none of is left out."""
    why = f" ({done.failure})" if done.failure else ""
    more = (
        (done.packs, f", in {counted(done.packs, 'pack')}"),
        (done.fallback, f"; {counted(done.fallback, 'segment')} to the fallback spool{why}"),
        (done.left, f"; {counted(done.left, 'segment')} waiting for the spool{why}"),
        (done.alive, f"; {counted(done.alive, 'stream')} still written"),
        (done.foreign, f"; {counted(done.foreign, 'stream')} meant for another spool"),
        (done.others, f"; {counted(done.others, 'stream')} of other users"),
    )
    adopted, sent = counted(done.streams, "stream"), counted(done.segments, "segment")
    first = f"{adopted} adopted, {sent} uploaded, {counted(done.rows, 'row')}"
    return first + "".join(text for count, text in more if count)


def standby_line(root: Path, leader: Leader) -> str:
    """Return who is the agent of a local spool that another one waits for."""
    return f"{root} has an agent ({leader}); waiting to take over"

"""What the agent tells on a terminal: a line for each look that did something."""

from pathlib import Path

from ranklake.capture.node.agent_metrics import PassResult
from ranklake.capture.spool.leader import Leader


def pass_line(done: PassResult) -> str:
    """Return what one look at the local spool did; what there is none of is left out."""
    more = (
        (done.packs, f", in {done.packs} packs"),
        (done.left, f"; {done.left} segments wait for the spool{f' ({done.failure})' if done.failure else ''}"),
        (done.alive, f"; {done.alive} streams are being written"),
        (done.foreign, f"; {done.foreign} streams are meant for another spool"),
        (done.others, f"; {done.others} streams are other users'"),
    )
    first = f"{done.streams} streams adopted, {done.segments} segments uploaded, {done.rows:,} rows"
    return first + "".join(text for count, text in more if count)


def standby_line(root: Path, leader: Leader) -> str:
    """Return who is the agent of a local spool that another one waits for."""
    return f"{root} has an agent ({leader}); waiting to take over"

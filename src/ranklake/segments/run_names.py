"""Run names: runs of agents, which train nothing, and what people call a run whose id only a launcher could like.

A readable name is made of the run's id alone, so that all ranks, and whoever meets the id later, come to the same one.
"""

import hashlib
from typing import Final

AGENT_JOB: Final = "ranklake-agent"
"""Job of an agent's run."""


def is_agent_run(run: str) -> bool:
    """Whether a run is an agent's: rollups of runs leave it out, and so does whatever is counted or billed by run.

    >>> is_agent_run("ranklake-agent-node7-20260301T120000.000000")
    True
    >>> is_agent_run("ranklake-agents")
    False
    """
    return run.startswith(f"{AGENT_JOB}-")


_ADJECTIVES: Final = (
    *("able", "amber", "ample", "brave", "brief", "bright", "brisk", "broad", "calm", "civil", "clear", "clever"),
    *("coral", "crisp", "curly", "daily", "deep", "eager", "early", "easy", "even", "fair", "fancy", "fast"),
    *("fine", "firm", "fleet", "fond", "fresh", "full", "gentle", "glad", "golden", "grand", "green", "happy"),
    *("hardy", "honest", "jolly", "keen", "kind", "large", "light", "lively", "loyal", "lucky", "mellow", "merry"),
    *("mild", "neat", "noble", "plain", "proud", "quick", "quiet", "rapid", "ready", "rosy", "shiny", "silent"),
    *("smart", "solid", "steady", "sunny"),
)
_NOUNS: Final = (
    *("acorn", "alder", "aspen", "badger", "bay", "beaver", "birch", "bison", "brook", "canyon", "cedar", "cliff"),
    *("cloud", "comet", "coral", "crane", "creek", "delta", "dune", "eagle", "elm", "falcon", "fern", "finch"),
    *("fjord", "forest", "fox", "garden", "glade", "grove", "harbor", "hare", "heron", "hill", "ibis", "island"),
    *("lake", "lark", "lynx", "maple", "marsh", "meadow", "mesa", "moon", "moss", "oak", "ocean", "orchid"),
    *("osprey", "otter", "owl", "pine", "pond", "prairie", "reef", "river", "robin", "sparrow", "spruce", "star"),
    *("stone", "tide", "valley", "willow"),
)
_NUMBERS: Final = 1000


def readable_name(run: str) -> str:
    """Return an adjective, a noun and a number for a run's id, such as ``brisk-otter-417``.

    Two of a thousand runs have the same name with a probability of an eighth; the id tells them apart.
    """
    drawn = int.from_bytes(hashlib.sha256(f"readable {run}".encode("utf-8", "replace")).digest()[:8], "big")
    drawn, number = divmod(drawn, _NUMBERS)
    drawn, noun = divmod(drawn, len(_NOUNS))
    return f"{_ADJECTIVES[drawn % len(_ADJECTIVES)]}-{_NOUNS[noun]}-{number}"

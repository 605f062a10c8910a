"""Who is told when a step of the pipeline begins, where the flow runs in the process that waits for it."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

ANNOUNCE: Final[ContextVar[Callable[[str], None]]] = ContextVar("announce", default=lambda _: None)
"""Takes the name of a stage. A flow's parameters are data, and cannot hold it."""

"""Listeners that are called when a step of the pipeline begins, in flows that run in the process that waits."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

ANNOUNCE: Final[ContextVar[Callable[[str], None]]] = ContextVar("announce", default=lambda _: None)
"""Takes the name of a stage. A flow's parameters are data, and cannot hold it."""

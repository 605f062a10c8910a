"""Artifacts of runs: what a stage found and did, under keys that stay the same. A server that fails stops nothing."""

import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_table_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from ranklake.flows import pages
from ranklake.flows.pages import Links
from ranklake.redaction.place_keys import place_key

_LOG: Final = logging.getLogger(__name__)

LONG_S: Final = 5.0
"""Seconds of work after which its progress is shown, and between two updates."""


def key(stage: str, lake: str, suffix: str = "") -> str:
    """Return the key of a stage's artifact: of one lake, whatever its run."""
    place = place_key(lake)
    name = re.sub(r"[^a-z0-9]+", "-", place.rpartition("/")[2].lower()).strip("-")[:40]
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    parts = ("ranklake", stage.replace("_", "-"), suffix, name, digest)
    return "-".join(part for part in parts if part)


async def publish(stage: str, lake: str, done: Mapping[str, Any], links: Links, kinds: Sequence[str] = ()) -> None:
    """Write down the page of a stage's run, and what its checks found as a table."""
    suffix = "-".join(kinds)
    page = pages.page(stage, dict(done), links)
    try:
        if page:
            await acreate_markdown_artifact(page, key=key(stage, lake, suffix), description=f"ranklake {stage}")
        if "unsound" in done:
            title = "checks that failed, or failed before on rows that are still there"
            rows = pages.findings(dict(done))
            await acreate_table_artifact(rows, key=key("findings", lake, suffix), description=title)
    except Exception as error:  # noqa: BLE001 - whatever a server or the way there does, the work is done
        _LOG.warning("no artifact of this run: %s", type(error).__name__)


class Progress:
    """Shows how far long work is. Called in the thread that works."""

    def __init__(self, stage: str, lake: str) -> None:
        self._stage, self._key = stage, key("progress", lake, stage.replace("_", "-"))
        self._shown_s = time.monotonic()
        self._id: UUID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Tell that so many of all parts are done."""
        now = time.monotonic()
        is_last = done >= total and self._id is not None
        if now - self._shown_s < LONG_S and not is_last:
            return
        self._shown_s = now
        share, text = 100.0 * done / max(total, 1), f"{self._stage}: {done:,} of {total:,}"
        try:
            if self._id is None:
                made = create_progress_artifact(share, key=self._key, description=text)
                self._id = made if isinstance(made, UUID) else None
            else:
                update_progress_artifact(self._id, share, description=text)
        except Exception as error:  # noqa: BLE001 - likewise
            _LOG.debug("progress is not shown: %s", type(error).__name__)

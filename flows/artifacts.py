"""Prefect artifacts of a run: the page of each stage, its findings, its progress, and the stages that are overdue.

The key of an artifact depends on lake and stage only, so that each run renews it. A server error is logged; the run
continues.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_table_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from ranklake.context import Context
from ranklake.doctor import outcomes
from ranklake.doctor.examination import Finding, Patient, not_known
from ranklake.errors import RanklakeError
from ranklake.flows import pages
from ranklake.flows.pages import Links
from ranklake.redaction.place_keys import place_key

_LOG: Final = logging.getLogger(__name__)

LONG_S: Final = 5.0
"""Seconds until the progress of a stage is first shown, and between two updates."""
_PROBES: Final = (outcomes.ingest, outcomes.check, outcomes.rollup, outcomes.catalog, outcomes.upkeep)


def key(stage: str, lake: str, suffix: str = "") -> str:
    """Return the key of a stage's artifact. It is the same for all runs on one lake."""
    place = place_key(lake)
    name = re.sub(r"[^a-z0-9]+", "-", place.rpartition("/")[2].lower()).strip("-")[:40]
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    parts = ("ranklake", stage.replace("_", "-"), suffix, name, digest)
    return "-".join(part for part in parts if part)


async def publish(stage: str, lake: str, done: Mapping[str, Any], links: Links, kinds: Sequence[str] = ()) -> None:
    """Create the page of a stage's run, and a table of its failed checks if it ran any."""
    suffix = "-".join(kinds)
    page = pages.page(stage, dict(done), links)
    try:
        if page:
            await acreate_markdown_artifact(page, key=key(stage, lake, suffix), description=f"ranklake {stage}")
        if "unsound" in done:
            title = "checks that failed, or failed before on rows that are still there"
            rows = pages.findings(dict(done))
            await acreate_table_artifact(rows, key=key("findings", lake, suffix), description=title)
    except Exception as error:  # noqa: BLE001 - the stage's work is done; a server error must not undo that
        _LOG.warning("no artifact of this run: %s", type(error).__name__)


def overdue_page(context: Context) -> str:
    """Return the overdue stages with the remedy of each, as Markdown, and the probes that could not be computed.

    The doctor's probes read only lake and spool. The result therefore does not depend on who runs the stages.
    """
    rows = [
        (name, finding)
        for name, finding in _probe_stages(context)
        if finding.is_wrong or finding.what.startswith("not known")
    ]
    if not rows:
        return "Nothing is overdue."
    return pages.table(
        ("stage", "what", "what to do"), [(name, finding.what, finding.remedy) for name, finding in rows]
    )


def _probe_stages(context: Context) -> Iterator[tuple[str, Finding]]:
    for probe in _PROBES:
        try:
            yield from ((probe.__name__, finding) for finding in probe(Patient(context.config)))
        except (RanklakeError, OSError) as error:  # the other probes may still succeed
            yield probe.__name__, not_known(str(error))


async def publish_overdue(context: Context) -> None:
    """Create the artifact of the overdue stages. A server error is logged."""
    page = await asyncio.to_thread(overdue_page, context)
    try:
        title = "stages of the pipeline that are behind"
        await acreate_markdown_artifact(page, key=key("overdue", context.lake_uri), description=title)
    except Exception as error:  # noqa: BLE001 - as above
        _LOG.warning("no artifact of overdue stages: %s", type(error).__name__)


class Progress:
    """Progress artifact of a stage that takes longer than `LONG_S`. Call it in the thread that does the work."""

    def __init__(self, stage: str, lake: str) -> None:
        self._stage, self._key = stage, key("progress", lake, stage.replace("_", "-"))
        self._shown_s = time.monotonic()
        self._id: UUID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` parts are done."""
        now = time.monotonic()
        is_last = done >= total and self._id is not None
        if now - self._shown_s < LONG_S and not is_last:
            return
        self._shown_s = now
        share, text = 100.0 * done / max(total, 1), f"{self._stage}: {done:,} of {total:,}"
        try:
            if self._id is None:
                artifact = create_progress_artifact(share, key=self._key, description=text)
                self._id = artifact if isinstance(artifact, UUID) else None
            else:
                update_progress_artifact(self._id, share, description=text)
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.debug("progress is not shown: %s", type(error).__name__)

"""What is overdue, as an artifact of every run of the pipeline, under a key that stays the same for a lake.

The doctor's own probes say it, from the lake and the spool alone; so it is true whoever runs the stages, and when.
"""

import asyncio
import logging
from collections.abc import Iterator

from prefect.artifacts import acreate_markdown_artifact

from ranklake.context import Context
from ranklake.doctor import outcomes
from ranklake.doctor.examination import Finding, Patient, not_known
from ranklake.errors import RanklakeError
from ranklake.flows.artifacts import key
from ranklake.flows.pages import table

_LOG = logging.getLogger(__name__)
_PROBES = (outcomes.ingest, outcomes.check, outcomes.rollup, outcomes.catalog, outcomes.upkeep)


def page(context: Context) -> str:
    """Return what is overdue, for how long and what to do, as Markdown; and what could not be found out."""
    result = [(name, one) for name, one in _findings(context) if one.is_wrong or one.what.startswith("not known")]
    if not result:
        return "Nothing is overdue."
    return table(("stage", "what", "what to do"), [(name, one.what, one.remedy) for name, one in result])


def _findings(context: Context) -> Iterator[tuple[str, Finding]]:
    for probe in _PROBES:
        try:
            yield from ((probe.__name__, one) for one in probe(Patient(context.config)))
        except (RanklakeError, OSError) as error:  # of one of them; the others may know
            yield probe.__name__, not_known(str(error))


async def publish(context: Context) -> None:
    """Write it down. A server that fails stops nothing."""
    page_text = await asyncio.to_thread(page, context)
    try:
        title = "stages of the pipeline that are behind"
        await acreate_markdown_artifact(page_text, key=key("overdue", context.lake_uri), description=title)
    except Exception as error:  # noqa: BLE001 - whatever a server or the way there does, the work is done
        _LOG.warning("no artifact of what is overdue: %s", type(error).__name__)

"""Bringing segments into a lake, and asking whether the books add up."""

from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake_config import LakeConfig, SpoolSection


def bring(lake, spool, **options):
    """Ingest what is in the spool, in this process, within the limits of the lake."""
    return ingest(lake, Spool(str(spool), config=lake.config), InProcess(), **options)


def under(writers):
    """Return the configuration that says of a spool who may write where."""
    return LakeConfig(SpoolSection(prefixes=writers.prefixes))


def books(lake, spool):
    """Return the books by table; the spool is a folder, or a `Spool`."""
    listed = spool.listing() if isinstance(spool, Spool) else Spool(str(spool)).listing()
    return {item.table: item for item in balance(lake, listed)}


def adds_up(lake, spool):
    """Assert that the books of all tables add up, and return them."""
    found = books(lake, spool)
    assert [fault for item in found.values() for fault in item.faults] == []
    return found

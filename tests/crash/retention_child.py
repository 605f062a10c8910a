"""One step of the campaign of kills over retention, to be killed on the way: see `retention_chaos.STEPS`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from keyed import section

from ranklake.lake.audit import clock
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake import Lake
from ranklake.retention.archive.rehydrated import remove_expired
from ranklake.retention.archive.rehydration import rehydrate
from ranklake.retention.archive.sweeping import sweep_archives
from ranklake.retention.erasure.apply import apply as erase
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.plans.apply import apply
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.plans.purge import purge_due
from ranklake.retention.policies.policies import load_policies
from ranklake.retention.sweep import sweep

OPERATOR = "Otto Operator"


def step(lake_uri: str, spool_uri: str, place: str, kind: str, name: str) -> None:
    """Carry out one step, as the commands do."""
    subjects = section(Path(place).parent, copies=1)
    lake, spool = Lake.open(lake_uri).configured(subjects=subjects), Spool(spool_uri)
    contracts = load_contracts()
    policies = load_policies(contracts, Path(place))
    if kind in {"apply", "archive"}:
        apply(lake, name, OPERATOR, contracts, policies)
        sweep(lake, spool, OPERATOR)
        sweep_archives(lake.tables)
    elif kind == "rehydrate":
        rehydrate(lake, name, OPERATOR, policies)
        remove_expired(lake.store, datetime.now(UTC).date())
    elif kind == "cancel":
        cancel(lake, name, OPERATOR)
        sweep_archives(lake.tables)
    elif kind == "purge":
        _pass_time(float(name))
        purge_due(lake, OPERATOR)
        sweep(lake, spool, OPERATOR)
    else:
        erasure, _, values = name.partition(" ")
        erase(Reach(lake, spool), erasure, subject_of(lake, values.split(",")), OPERATOR)


def _pass_time(days: float) -> None:
    """Have this process believe that so many days passed, by the clock and by the machine's uptime."""
    now, up = clock.now, clock.uptime()
    clock.now = lambda: now() + timedelta(days=days)
    clock.uptime = lambda: None if up is None else (up[0], up[1] + days * 86_400)

"""Probes of what vouches for a lake: anchors of its audit trail, how old its keys are, how its places are protected."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, not_known, ok, warning
from ranklake.doctor.finding import skipped as nothing
from ranklake.lake.audit.chain import head_records
from ranklake.lake.store.lake_config import SIGNED
from ranklake.lake.store.reachability import LakeError
from ranklake.printable import counted
from ranklake.retention.proposals.examination import last_anchor
from ranklake.retention.report.placement import DIFFERS, UNKNOWN, key_ages, places, verdicts

_LONG: Final = timedelta(days=7)
"""How old the last anchor may be where nobody says how often there is to be one."""


def anchors(patient: Patient) -> Iterator[Finding]:
    """Check whether the last anchor of the audit trail is there, young, and locked where that was asked for."""
    config = patient.config
    if not config.audit.witness:
        yield nothing("no witness is configured, which anchors are written to", "name one by witness under [audit]")
        return
    if config.approvals.mode != SIGNED:
        yield nothing("no signatures are configured", "docs/approvals.md says how to sign, and anchor the trail")
        return
    lake = Context.of(config).open_lake()
    by_hand = "ranklake audit anchor --key PATH, or anchor_every_h under [audit]"
    try:
        last = last_anchor(lake)
    except (LakeError, OSError) as error:
        yield failed(f"the witness cannot be reached: {error}", "look after its store, and this account's rights there")
        return
    if last is None:
        yield warning("the audit trail was never anchored", by_hand)
        return
    now, section = datetime.now(UTC), config.audit
    most = timedelta(hours=2 * section.anchor_every_h) if section.anchor_every_h else _LONG
    message = f"the last anchor is of {last.rows:,} rows, signed {last.signed:%Y-%m-%d %H:%M} UTC"
    behind = head_records(lake)[0].last().rows - last.rows
    if now - last.signed > most:
        yield warning(f"{message}: {counted(behind, 'row')} came since", f"'ranklake upkeep' makes one, or {by_hand}")
    elif section.anchor_lock_days and (last.locked_until is None or last.locked_until < now):
        hint = "make the witness's bucket with Object Lock, and let this account read retention"
        yield warning(f"{message}, and the bucket does not say that it is locked", hint)
    else:
        until = f", locked until {last.locked_until:%Y-%m-%d}" if last.locked_until else ""
        yield ok(f"{message}{until}")


def keys(patient: Patient) -> Iterator[Finding]:
    """Say which keys are older than they should be, and of which nobody knows the age."""
    section, is_fine = patient.config.audit, True
    results = key_ages(Context.of(patient.config).open_lake(), datetime.now(UTC))
    if not results:
        yield nothing("no keys are configured")
        return
    for item in results:
        if item.age_days is None:
            is_fine = False
            yield not_known(f"the age of {item.setting}: {item.unknown}", item.hint)
        elif section.key_days and item.age_days > section.key_days:
            is_fine = False
            message = (
                f"the key of {item.setting} is in use for {item.age_days:,} days, {section.key_days:,} are configured"
            )
            yield warning(message, "write a new key before it, and keep the old one; see docs/signing.md")
    if is_fine:
        yield ok(
            f"{counted(len(results), 'key')}, the oldest {max(one.age_days or 0 for one in results):,} days in use"
        )


def placement(patient: Patient) -> Iterator[Finding]:
    """Say where places of tables are not what policies demand, and where nobody knows."""
    context = Context.of(patient.config)
    lake = context.open_lake()
    demands = context.policies(lake).demands
    if not demands:
        yield nothing("no policy demands encryption or a region")
        return
    contracts = lake.contracts()
    results = verdicts(demands, places(lake.tables, contracts, context.spool_place()), contracts)
    for item in results:
        if item.state == DIFFERS:
            yield warning(item.text, item.hint)
        elif item.state == UNKNOWN:
            yield not_known(item.text, item.hint)
    met = sum(one.state not in {DIFFERS, UNKNOWN} for one in results)
    if met == len(results):
        yield ok(f"{counted(len(demands), 'demand')} of policies met at all places of their tables")

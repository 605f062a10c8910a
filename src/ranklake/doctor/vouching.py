"""Probes of protection and proof: roles, keys, signed heads of the audit log, placement of tables."""

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, failed, not_known, ok, skipped, warning
from ranklake.doctor.examination import skipped as nothing
from ranklake.lake.audit.chain import head_records
from ranklake.lake.contracts.capture_masks import NO_MASKS, load_capture_masks
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import SIGNED
from ranklake.lake.store.reachability import LakeError
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.proposals.examination import last_anchor
from ranklake.retention.report.placement import DIFFERS, UNKNOWN, key_ages, places, verdicts
from ranklake.retention.subjects.keys import known_columns
from ranklake.retention.subjects.store import LOST, key_state

MOST_ROWS: Final = 5_000_000
"""Most rows of a table that are read here: a text column of this size takes about a second."""
_NAMED: Final = 5
_REMEDY: Final = (
    "mask at capture (policy under [masking]) or by retention, give readers shares in place of the {place}"
    "{mode}, or say allow_unprotected = true under [lake] if all who read it may see all"
)


def protection(patient: Patient) -> Iterator[Finding]:
    """Report unprotected data: roles restrict queries, but not direct reads of the files."""
    context = Context.of(patient.config)
    lake = context.open_lake()
    shown = redact_uri(lake.uri)
    if lake.store.is_local and not _others_read(Path(lake.store.root)):
        yield ok(f"{shown}: no other user of this machine can read it")
        return
    place = "folder" if lake.store.is_local else "bucket"
    masked, classified = _masked(context, lake), _classified(lake)
    at_rest = sum("mask" in rule.action_days for rule in context.policies(lake).rules)
    if masked or at_rest:
        at_capture = f"{masked:,} of {counted(classified, 'column')} with data of persons masked at capture"
        rules = f", {counted(at_rest, 'rule')} of retention masks more later" if at_rest else ""
        yield ok(f"{at_capture}{rules}; whoever may read the {place} {shown} sees the rest")
        return
    message = (
        f"nothing protects it: whoever may read the {place} {shown} sees everything, {counted(classified, 'column')}"
    )
    message += " with data of persons among it"
    if patient.config.lake.allow_unprotected:
        yield ok(f"{message}; allowed by [lake] allow_unprotected")
    else:
        mode = ", take the rights of others away (chmod -R o-rwx)" if lake.store.is_local else ""
        yield warning(message, _REMEDY.format(place=place, mode=mode))


def _others_read(folder: Path) -> bool:
    """Whether every user of this machine can read a folder: each parent folder permits access."""
    above = all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.absolute().parents)
    return above and bool(os.stat(folder).st_mode & stat.S_IROTH)  # noqa: PTH116 - follows a link, as readers do


def _classified(lake: Lake) -> int:
    return sum(column.class_ != CLASSES[0] for contract in lake.contracts().values() for column in contract.columns)


def _masked(context: Context, lake: Lake) -> int:
    policy = context.config.masking_policy
    masks = NO_MASKS if policy is None else load_capture_masks(policy, lake.contracts())
    return sum(map(len, masks.columns.values()))


def subject_keys(patient: Patient) -> Iterator[Finding]:
    """Check that each key that was not forgotten exists and is readable."""
    lake = Context.of(patient.config).open_lake()
    if not known_columns(lake.store):
        yield skipped("no column was stored under keys of subjects")
        return
    state = key_state(lake, MOST_ROWS)
    for where, wrong, hint in state.faults[:_NAMED]:
        yield failed(f"{redact_uri(where)}: a subject's key {wrong}", hint)
    if len(state.faults) > _NAMED:
        yield failed(
            f"{counted(len(state.faults) - _NAMED, 'key')} more are like that", "'ranklake erase keys' has all"
        )
    for column, rows in state.lost:
        yield failed(f"{column}: {counted(rows, 'row')} under keys that are lost", LOST)
    if state.is_sound:
        yield ok(f"{counted(state.keys, 'key')} of subjects, {state.forgotten:,} forgotten")
    if state.unread:
        message = f"keys of {', '.join(state.unread)} that are lost, as there are more than {MOST_ROWS:,} rows"
        yield not_known(message, "'ranklake erase keys' reads them all")


_LONG: Final = timedelta(days=7)
"""Greatest age of the last anchor if no interval is configured."""


def anchors(patient: Patient) -> Iterator[Finding]:
    """Check that the last anchor of the audit log exists, is recent, and is locked if so configured."""
    config = patient.config
    if not config.audit.witness:
        yield nothing("no witness is configured, which anchors are written to", "name one by witness under [audit]")
        return
    if config.approvals.mode != SIGNED:
        yield nothing("no signatures are configured", "docs/approvals.md says how to sign, and anchor the audit log")
        return
    lake = Context.of(config).open_lake()
    by_hand = "ranklake audit anchor --key PATH, or anchor_every_h under [audit]"
    try:
        last = last_anchor(lake)
    except (LakeError, OSError) as error:
        yield failed(f"the witness cannot be reached: {error}", "look after its store, and this account's rights there")
        return
    if last is None:
        yield warning("the audit log was never anchored", by_hand)
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
    """Report keys that are too old, and keys of unknown age."""
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
            f"{counted(len(results), 'key')}, the oldest {max(item.age_days or 0 for item in results):,} days in use"
        )


def placement(patient: Patient) -> Iterator[Finding]:
    """Report tables whose place violates a policy, or is unknown."""
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
    met = sum(item.state not in {DIFFERS, UNKNOWN} for item in results)
    if met == len(results):
        yield ok(f"{counted(len(demands), 'demand')} of policies met at all places of their tables")

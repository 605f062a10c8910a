"""Probe of what keeps values from those who may read the lake's files: rights on a folder, masks, keys."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, not_known, ok, skipped, warning
from ranklake.lake.contracts.capture_masks import NO_MASKS, load_capture_masks
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.subjects.keys import known_columns
from ranklake.retention.subjects.store import LOST, key_state

MOST_ROWS: Final = 5_000_000
"""Rows of a table whose values are looked at here: a column of as many texts takes about a second to read."""
_NAMED: Final = 5
_REMEDY: Final = (
    "mask at capture (policy under [masking]) or by retention, give readers shares in place of the {place}"
    "{mode}, or say allow_unprotected = true under [lake] if all who read it may see all"
)


def protection(patient: Patient) -> Iterator[Finding]:
    """Say who sees what: roles bind those who query through them, and nobody who reads the files."""
    context = Context.of(patient.config)
    lake = context.open_lake()
    shown = redact_uri(lake.uri)
    if lake.store.is_local and not _others_read(Path(lake.store.root)):
        yield ok(f"{shown}: no other user of this machine can read it")
        return
    place = "folder" if lake.store.is_local else "bucket"
    masked, classified = _masked(context, lake), _classified(lake)
    at_rest = sum("mask" in rule.waiting for rule in context.policies(lake).rules)
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
    """Whether every user of this machine can read a folder: each folder above it lets them through."""
    above = all(parent.stat().st_mode & stat.S_IXOTH for parent in folder.absolute().parents)
    return above and bool(os.stat(folder).st_mode & stat.S_IROTH)  # noqa: PTH116 - follows a link, as readers do


def _classified(lake: Lake) -> int:
    return sum(column.class_ != CLASSES[0] for contract in lake.contracts().values() for column in contract.columns)


def _masked(context: Context, lake: Lake) -> int:
    policy = context.config.masking_policy
    masks = NO_MASKS if policy is None else load_capture_masks(policy, lake.contracts())
    return sum(map(len, masks.columns.values()))


def subject_keys(patient: Patient) -> Iterator[Finding]:
    """Check whether each key that was not forgotten is there, whole and readable, and what to do where one is not."""
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

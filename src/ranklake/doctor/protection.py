"""Probe of what keeps values from those who may read the lake's files: rights on a folder, and masks."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, ok, warning
from ranklake.lake.contracts.capture_masks import NO_MASKS, load_capture_masks
from ranklake.lake.contracts.model import CLASSES
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri

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

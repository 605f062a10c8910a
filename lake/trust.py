"""Whom a lake believes: the operator's own settings, which nobody who writes the bucket can change."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trust:
    """What is kept outside the lake so that what is in it can be held against it.

    Attributes
    ----------
    audit_witness
        Folder or URI where the audit trail's head is written down, too; see `ranklake.lake.audit.heads`. Empty: only
        in the lake.
    """

    audit_witness: str = ""

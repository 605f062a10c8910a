"""Whom a lake believes: the operator's own settings, which nobody who writes the bucket can change."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Trust:
    """What is kept outside the lake so that what is in it can be held against it.

    Attributes
    ----------
    audit_witness
        Folder or URI where the audit trail's head is written down, too; see `ranklake.lake.audit.heads`. Empty: only
        in the lake.
    plans_key
        Where the keys are that seal plans, as `ranklake.segments.keys` has it; see `ranklake.lake.plans.signature`.
        Empty: plans are not sealed.
    require_signed_plans
        Whether a plan that is found without a seal of these keys is refused.
    spools
        Spools (URIs or folders) that a found plan may read; none: any.
    """

    audit_witness: str = ""
    plans_key: str = ""
    require_signed_plans: bool = False
    spools: tuple[str, ...] = ()

    def reading(self, spool: str) -> Self:
        """Return the same, with a spool that plans may read."""
        return replace(self, spools=(*self.spools, spool))

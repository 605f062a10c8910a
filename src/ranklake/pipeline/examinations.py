"""The work of the stage ``doctor``: what `ranklake doctor` finds, where the pipeline runs."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from ranklake.context import Context
from ranklake.doctor.examination import Patient, examine
from ranklake.errors import RanklakeError


class UnsoundError(RanklakeError):
    """The doctor found something wrong; `done` is what it found."""

    exit_code = 1

    def __init__(self, done: dict[str, Any]) -> None:
        wrong = done["findings"]
        first = "; ".join(f"{each['check']}: {each['what']}" for each in wrong[:3])
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""  # noqa: PLR2004 - as many as are named
        super().__init__(f"the doctor finds {first}{more}", hint="its artifact, and 'ranklake doctor', say what to do")
        self.done = done


def refuse_unsound(done: dict[str, Any]) -> dict[str, Any]:
    """Return what the doctor found. Raises `UnsoundError` where something is wrong, so that a flow ends Failed."""
    if done["findings"]:
        raise UnsoundError(done)
    return done


def doctor_once(context: Context) -> dict[str, Any]:
    """Look at everything that ranklake depends on, where this runs; return counts by state, and what is wrong."""
    findings = examine(Patient(context.config))
    wrong = [asdict(finding) for finding in findings if finding.is_wrong]
    return {"counts": dict(Counter(finding.state for finding in findings)), "findings": wrong}

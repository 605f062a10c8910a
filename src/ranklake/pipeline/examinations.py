"""The work of the stage ``doctor``: what `ranklake doctor` finds, where the pipeline runs."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from ranklake.context import Context
from ranklake.doctor.examination import Patient, examine
from ranklake.pipeline.findings import FindingsError, first_few


class UnsoundError(FindingsError):
    """The doctor found something wrong; `done` is what it found."""

    def __init__(self, done: dict[str, Any]) -> None:
        first = first_few([f"{each['check']}: {each['what']}" for each in done["findings"]])
        super().__init__(done, f"the doctor finds {first}", hint="its artifact, and 'ranklake doctor', say what to do")


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

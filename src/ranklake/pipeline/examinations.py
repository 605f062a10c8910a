"""The work of the stage ``doctor``: what `ranklake doctor` finds, where the pipeline runs."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from ranklake.context import Context
from ranklake.doctor.examination import Patient, examine
from ranklake.pipeline.findings import FindingsError, first_few


class UnsoundError(FindingsError):
    """The doctor found something wrong; `done` is what it found, the message what nobody else tells of it."""

    def __init__(self, done: dict[str, Any]) -> None:
        untold = [each for each in done["findings"] if not each["is_alerted"]]
        first = first_few([f"{each['check']}: {each['what']}" for each in untold or done["findings"]])
        super().__init__(done, f"the doctor finds {first}", hint="its artifact, and 'ranklake doctor', say what to do")


class AlertedError(UnsoundError):
    """All that the doctor found wrong is what rounds of alerts tell by themselves."""


def refuse_unsound(done: dict[str, Any]) -> dict[str, Any]:
    """Return what the doctor found. Raises `UnsoundError` where something is wrong, so that a flow ends Failed."""
    if done["findings"]:
        raise (AlertedError if all(each["is_alerted"] for each in done["findings"]) else UnsoundError)(done)
    return done


def doctor_once(context: Context) -> dict[str, Any]:
    """Look at everything that ranklake depends on, where this runs; return counts by state, and what is wrong."""
    findings = examine(Patient(context.config))
    wrong = [asdict(finding) for finding in findings if finding.is_wrong]
    return {"counts": dict(Counter(finding.state for finding in findings)), "findings": wrong}

"""Probe of the configuration."""

from collections.abc import Iterator

from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, ok


def configuration(patient: Patient) -> Iterator[Finding]:
    """Say whether the configuration can be read."""
    error = patient.config_error
    if error is not None:
        yield failed(f"{error.where}: {error.what}", error.mend or "ranklake config check tells all that is wrong")
    else:
        file = patient.config.file
        yield ok(f"{file} is understood" if file else "no file; environment, options and defaults alone")

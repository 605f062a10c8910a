"""The examination: a table of probes, each with a time limit, and their findings.

A probe is a function of `Patient` that returns findings. It runs in a thread of its own, so that a hanging store costs
only its time limit; an exception becomes a finding, never a traceback. Its module is imported by name, since the
pipeline's packages may not be installed.
"""

import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from ranklake.config import Config, ConfigFile
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import redact

State = Literal["ok", "warning", "failed", "skipped"]
WRONG: Final = frozenset({"warning", "failed"})


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the output of ``ranklake doctor``.

    Attributes
    ----------
    state
        ok; warning (it works now, but needs attention); failed; skipped (not configured, or unknown).
    what
        The finding, in a clause.
    remedy
        How to fix it; empty if nothing is to be done.
    check
        Name of its probe, which `examine` sets.
    is_alerted
        Whether each round of alerts also makes this finding, and sends a message.
    is_known
        False where the probe timed out or raised, so that its state is unknown.
    """

    state: State
    what: str
    remedy: str = ""
    check: str = ""
    is_alerted: bool = False
    is_known: bool = True

    @property
    def is_wrong(self) -> bool:
        """Whether it is a warning or a failure."""
        return self.state in WRONG


def ok(what: str) -> Finding:
    """Return a finding that all is well."""
    return Finding("ok", what)


def warning(what: str, remedy: str) -> Finding:
    """Return a finding about something that works but should be fixed."""
    return Finding("warning", what, remedy)


def failed(what: str, remedy: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding("failed", what, remedy)


def skipped(what: str, remedy: str = "") -> Finding:
    """Return a finding that there was nothing to check."""
    return Finding("skipped", what, remedy)


def alerted(finding: Finding) -> Finding:
    """Mark a finding as one that each round of alerts makes, too."""
    return replace(finding, is_alerted=True)


def not_known(what: str, remedy: str = "") -> Finding:
    """Return a finding of an unknown state, which does not count as ok."""
    return Finding("skipped", f"not known: {what}", remedy)


LIMIT_S: Final = 10.0
"""Time limit of a probe."""
_PIPELINE: Final = "pip install 'ranklake[pipeline]' where tables are made; nothing to do beside training"


def up_home() -> Path:
    """Return the home folder of this process's ``ranklake up``, else the usual one."""
    return Path(os.environ.get("RANKLAKE_UP") or "~/.ranklake")


@dataclass(frozen=True, slots=True)
class Patient:
    """The installation that probes examine.

    Attributes
    ----------
    config
        The configuration with overrides of this invocation; wrong keys of the file are left out.
    read
        The configuration file, with its mistakes.
    overdue_h
        Hours that a stage of the pipeline may be behind; None: as configured.
    home
        Home folder of ``ranklake up``.
    """

    config: Config
    read: ConfigFile = field(default_factory=ConfigFile)
    overdue_h: float | None = None
    home: Path = field(default_factory=up_home)

    @property
    def overdue_s(self) -> float:
        """Seconds that a stage of the pipeline may be behind before it is overdue."""
        return float(self.config.health.overdue_s) if self.overdue_h is None else self.overdue_h * 3600


@dataclass(frozen=True, slots=True)
class Probe:
    """A check of the installation.

    Attributes
    ----------
    check
        Its name in outputs and in docs/operate.md.
    place
        Module below `ranklake.doctor` and function.
    needs
        Checks that must be ok before this one runs.
    slow_remedy
        Remedy if it exceeds its time limit.
    is_alerted
        Whether each round of alerts runs it, too.
    """

    check: str
    place: str
    needs: tuple[str, ...] = ()
    slow_remedy: str = "run it again on a machine at rest, or with a longer --limit-s"
    is_alerted: bool = False


_NETWORK: Final = "check the network, proxies and the service's own health; --limit-s gives it longer"

PROBES: Final = (
    Probe("configuration", "settings:configuration"),
    Probe("settings", "settings:settings", ("configuration",)),
    Probe("secret-files", "settings:secret_files", ("configuration",)),
    Probe("python", "versions:python"),
    Probe("pyarrow", "versions:pyarrow"),
    Probe("delta-engine", "versions:delta_engine"),
    Probe("great-expectations", "versions:great_expectations"),
    Probe("dask-version", "versions:dask"),
    Probe("prefect-version", "versions:prefect"),
    Probe("torch", "versions:torch"),
    Probe("local-spool", "machine:local_spool", ("configuration",)),
    Probe("disk", "machine:disk", ("configuration",)),
    Probe("preallocation", "machine:preallocation", ("configuration",)),
    Probe("clock", "machine:clock", ("configuration",), _NETWORK),
    Probe("store", "places:store", ("configuration",), _NETWORK),
    Probe("conditional-writes", "places:conditional_writes", ("store",), _NETWORK),
    Probe("lake", "places:lake", ("store",), _NETWORK),
    Probe("kept-versions", "places:versions", ("lake",), _NETWORK),
    Probe("spool", "places:spool", ("configuration",), _NETWORK),
    Probe("room", "places:room", ("configuration",), is_alerted=True),
    Probe("dask", "services:dask", ("configuration",), _NETWORK),
    Probe("prefect", "scheduling:server", (), _NETWORK),
    Probe("prefect-runs", "scheduling:runs", ("prefect",), _NETWORK, is_alerted=True),
    Probe("contracts", "rules:contracts", ("configuration",)),
    Probe("retention-policies", "rules:policies", ("contracts",)),
    Probe("roles", "rules:roles", ("contracts",)),
    Probe("prices", "rules:prices", ("configuration",)),
    Probe("table-logs", "books:logs", ("lake",), _NETWORK),
    Probe("plans", "books:plans", ("table-logs",), _NETWORK),
    Probe("audit-trail", "books:audit", ("lake",), _NETWORK),
    Probe("anchors", "vouching:anchors", ("lake",), _NETWORK),
    Probe("keys", "vouching:keys", ("lake",), _NETWORK, is_alerted=True),
    Probe("placement", "vouching:placement", ("lake", "retention-policies"), _NETWORK),
    Probe("subject-keys", "vouching:subject_keys", ("lake",), _NETWORK),
    Probe("masking", "rules:masking", ("contracts",)),
    Probe("protection", "vouching:protection", ("lake", "retention-policies"), _NETWORK),
    Probe("proposals", "books:proposals", ("lake",), _NETWORK),
    Probe("approvals", "books:approvals", ("lake",), _NETWORK),
    Probe("rows", "outcomes:rows", ("table-logs",), _NETWORK),
    Probe("lost-rows", "outcomes:lost_rows", ("lake",), _NETWORK),
    Probe("checks", "outcomes:checks", ("lake",), _NETWORK),
    Probe("artifacts", "outcomes:artifacts", ("lake",), _NETWORK),
    Probe("grants", "books:grants", ("lake",), _NETWORK),
    Probe("removals", "books:removals", ("table-logs",), _NETWORK),
    Probe("drift", "books:drift", ("table-logs", "contracts"), _NETWORK),
    Probe("ingest", "outcomes:ingest", ("lake",), _NETWORK, is_alerted=True),
    Probe("check", "outcomes:check", ("lake",), _NETWORK, is_alerted=True),
    Probe("rollup", "outcomes:rollup", ("lake",), _NETWORK, is_alerted=True),
    Probe("catalog", "outcomes:catalog", ("lake",), _NETWORK, is_alerted=True),
    Probe("upkeep", "outcomes:upkeep", ("lake",), _NETWORK, is_alerted=True),
    Probe("backup", "books:backup", ("lake",), _NETWORK),
    Probe("alerts", "services:alerts", ("lake",), _NETWORK),
)
"""All probes, in the order of display."""


def examine(patient: Patient, limit_s: float = LIMIT_S, probes: Sequence[Probe] = PROBES) -> list[Finding]:
    """Run the probes, at most `limit_s` seconds each, and return their findings, in the order of the table.

    Independent probes run in parallel. Raises nothing. Threads of hanging probes run until the process ends.
    """
    result: dict[str, list[Finding]] = {}
    waiting = list(probes)
    while waiting:
        ready = [probe for probe in waiting if result.keys() >= set(probe.needs)]
        waiting = [probe for probe in waiting if probe not in ready]
        threads = [_ProbeThread(probe, patient, _missing_check(probe, result)) for probe in ready]
        until = time.monotonic() + limit_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
            late = replace(failed(f"no answer within {limit_s:g} s", thread.probe.slow_remedy), is_known=False)
            result[thread.probe.check] = thread.findings or [late]
    return [
        replace(finding, check=probe.check, is_alerted=finding.is_alerted or probe.is_alerted)
        for probe in probes
        for finding in result[probe.check]
    ]


def _missing_check(probe: Probe, findings: dict[str, list[Finding]]) -> str:
    """Return the first needed check that is not ok; empty if the probe can run."""
    return next(
        (name for name in probe.needs if any(finding.state in {"failed", "skipped"} for finding in findings[name])), ""
    )


class _ProbeThread(threading.Thread):
    """Thread that runs one probe."""

    def __init__(self, probe: Probe, patient: Patient, missing_check: str) -> None:
        super().__init__(name=f"ranklake-doctor-{probe.check}", daemon=True)
        self.probe, self.findings = probe, list[Finding]()
        self._patient = patient
        self._examine = (lambda _: [skipped(f"see {missing_check}")]) if missing_check else _load_probe(probe)

    def run(self) -> None:
        self.findings = _run_probe(lambda: self._examine(self._patient))


def _load_probe(probe: Probe) -> Callable[[Patient], Iterable[Finding]]:
    """Return a probe's function, or one that reports the failed import. Imports run in the calling thread."""
    result: list[Callable[[Patient], Iterable[Finding]]] = []

    def resolve() -> Iterable[Finding]:
        result.append(pkgutil.resolve_name(f"ranklake.doctor.{probe.place}"))
        return ()

    attempt = _run_probe(resolve)
    return result[0] if result else lambda _: attempt


def _run_probe(probe: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(probe())
    except ModuleNotFoundError as error:
        return [skipped(f"{error.name} is not installed", _PIPELINE)]
    except RanklakeError as error:
        where = f"{error.where}: " if error.where else ""
        return [failed(_safe_text(f"{where}{error.what}"), _safe_text(error.hint))]
    except Exception as error:  # noqa: BLE001 - any error becomes a finding
        text = _safe_text(f"cannot be checked ({type(error).__name__}: {error})")
        return [replace(failed(text, "fix that, and run it again"), is_known=False)]


def _safe_text(text: str) -> str:
    return " ".join(str(redact(text)).split())

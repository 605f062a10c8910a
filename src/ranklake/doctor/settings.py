"""Probes of the configuration: its syntax, its meaning, and permissions of files with secrets."""

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ranklake.config import Config
from ranklake.config.check import problems
from ranklake.config.shown import KEYRINGS, values
from ranklake.doctor.examination import Finding, Patient, failed, ok, skipped
from ranklake.errors import RanklakeError
from ranklake.redaction.redact import has_credential
from ranklake.redaction.secret_names import secret_level
from ranklake.segments.references import is_reference

_HINT: Final = "fix it; 'ranklake config check' tells the same"
_RULES: Final = ("sql.roles", "masking.policy", "approvals.allowed_signers", "retention.policies", "cost.prices")
"""Files that control visibility, approval or retention: no other user may be able to write them."""


def configuration(patient: Patient) -> Iterator[Finding]:
    """Check that the configuration file can be read, and report its faults."""
    yield from map(_as_finding, patient.read.problems)
    if not patient.read.problems:
        file = patient.config.file
        yield ok(f"{file} is understood" if file else "no file; environment, options and defaults alone")


def settings(patient: Patient) -> Iterator[Finding]:
    """Check that configured files exist, references resolve, and keys fit each other."""
    result = list(problems(patient.config, patient.read, os.environ))
    yield from map(_as_finding, result)
    if not result:
        yield ok("files are there, references give something, keys go together")


def _as_finding(error: RanklakeError) -> Finding:
    return failed(f"{error.where}: {error.what}" if error.where else error.what, error.hint or _HINT)


def secret_files(patient: Patient) -> Iterator[Finding]:
    """Check whether others can read files with secrets, or write files that control permissions."""
    config = patient.config
    secret = dict.fromkeys(_secret_files(config))
    rules = [str(value) for place, value in values(config) if place in _RULES and value]
    looked = [*secret, *rules, *filter(None, [config.file])]
    findings = [
        *_open_to(secret, stat.S_IROTH, "be read", "chmod 600"),
        *_open_to(looked, stat.S_IWOTH, "be written", "chmod o-w"),
    ]
    yield from findings
    if not findings:
        count = len(dict.fromkeys(looked))
        yield ok("nobody else reads secrets or writes rules") if count else skipped("no file is configured")


def _secret_files(config: Config) -> Iterator[str]:
    """Yield files with secrets: targets of references, and the configuration if it has a literal secret."""
    storage = {place.partition(".")[2]: str(text) for place, text in values(config) if place.startswith("storage.")}
    keyrings = [str(value) for place, value in values(config) if place in KEYRINGS]
    storage |= {f"fallback {name}": text for name, text in config.spool.fallback_storage.items()}
    for source in (*keyrings, *(prefix.keys for prefix in config.spool.prefixes), *storage.values()):
        if source.startswith("file:") and is_reference(source):
            yield source.removeprefix("file:")
    if config.dask.tls_client_key:
        yield config.dask.tls_client_key
    in_clear = any(secret_level(name) and not is_reference(text) for name, text in storage.items())
    if config.file and (in_clear or has_credential(config.lake.uri) or has_credential(config.spool.uri)):
        yield config.file


def _open_to(paths: Iterable[str], right: int, what: str, hint: str) -> Iterator[Finding]:
    for name in dict.fromkeys(paths):
        path = Path(name).expanduser()
        try:
            mode = path.stat().st_mode
        except OSError:  # the probe `settings` reports it
            continue
        if mode & right:
            yield failed(f"{path} can {what} by everybody ({stat.filemode(mode)})", f"{hint} {shlex.quote(str(path))}")

"""Runs operators' programs with limits on time and output.

A program gets its arguments from the file, without a shell; facts of the incident come as JSON on standard input and in
variables ``INCIDENT_…``, never in an argument.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ranklake.pipeline.playbooks import post
from ranklake.printable import printable
from ranklake.redaction.identities import without_identities
from ranklake.redaction.redact import remove_secrets

OUTPUT_CHARACTERS: Final = 2000
"""Characters at the end of a program's output that are kept."""
_READ_BYTES: Final = 1 << 16
_READS: Final = 16
_TICK_S: Final = 0.05
_GRACE_S: Final = 2.0
"""Seconds between SIGTERM and SIGKILL to a group of processes."""
_SHORTEST_SECRET: Final = 6
_BASE_VARIABLES: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"),
)
"""Variables that every program gets; others, which may be secrets, have to be named."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program.

    Attributes
    ----------
    outcome
        ``done``, ``failed`` or ``timed out``.
    exit_code
        None if it could not be started or was killed.
    output
        The end of its output, without credentials and names.
    """

    outcome: str
    exit_code: int | None
    seconds: float
    output: str


def run_program(
    argv: Sequence[str],
    facts: Mapping[str, str],
    stdin: bytes,
    *,
    timeout_s: float,
    folder: Path,
    pass_env: Sequence[str] = (),
    secrets: Sequence[str] = (),
    output_characters: int = OUTPUT_CHARACTERS,
) -> ProgramResult:
    """Run a program; at its time limit, kill all of its process group.

    Processes that it leaves running continue, but their output is not read.

    Parameters
    ----------
    facts, stdin
        Environment variables, and standard input.
    pass_env
        Further variables to pass; their values are hidden in its output, like `secrets`.
    output_characters
        Number of characters kept of the end of its output, up to 64 KiB.
    """
    environment = {name: os.environ[name] for name in (*_BASE_VARIABLES, *pass_env) if name in os.environ}
    began = time.monotonic()
    with tempfile.TemporaryFile() as source:  # a pipe would block this process if the program does not read
        source.write(stdin)
        source.seek(0)
        try:
            process = subprocess.Popen(
                list(argv), stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                cwd=folder, env={**environment, **facts},
            )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            return ProgramResult("failed", None, 0.0, f"cannot be run: {reason}")
    try:
        raw, is_timed_out = _output(process, began + timeout_s)
    except BaseException:
        _end_group(process)
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    code = None if is_timed_out else process.returncode
    hidden = [*secrets, *(os.environ[name] for name in pass_env if len(os.environ.get(name, "")) >= _SHORTEST_SECRET)]
    outcome = "timed out" if is_timed_out else "failed" if code else "done"
    return ProgramResult(
        outcome, code, round(time.monotonic() - began, 3), _output_tail(raw, hidden)[-output_characters:]
    )


def _output(process: "subprocess.Popen[bytes]", until: float) -> tuple[bytes, bool]:
    """Return the end of a program's output, and whether it reached its time limit."""
    assert process.stdout is not None
    descriptor, raw, is_open = process.stdout.fileno(), b"", True
    os.set_blocking(descriptor, False)
    while True:
        has_ended = process.poll() is not None
        for _ in range(_READS):  # bounded reads: endless output must not delay the check of the time
            chunk = None
            if is_open:
                with suppress(BlockingIOError):
                    chunk = os.read(descriptor, _READ_BYTES)
            if not chunk:
                is_open = is_open and chunk is None
                break
            raw = (raw + chunk)[-_READ_BYTES:]
        if has_ended:
            return raw, False
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            _end_group(process)
            return raw, True
        if is_open:
            select.select([descriptor], [], [], min(_TICK_S, rest_s))
        else:
            time.sleep(min(_TICK_S, rest_s))


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Terminate all processes of a group, then kill the rest; members may outlive the first."""
    until = time.monotonic() + _GRACE_S
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < until:
            process.poll()  # reaps the first process, otherwise its group would still exist
            os.killpg(process.pid, 0)
            time.sleep(_TICK_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _output_tail(raw: bytes, secrets: Sequence[str]) -> str:
    if len(raw) == _READ_BYTES:  # the first line is cut, and half a credential is not recognized
        raw = raw.partition(b"\n")[2]
    text = without_identities(remove_secrets(raw.decode(errors="replace"), secrets))
    lines = [printable(line) for line in text.splitlines()]
    return "\n".join(lines)


def post_webhook(url: str, body: bytes, *, timeout_s: float, folder: Path) -> ProgramResult:
    """Post a body to a URL, with a time limit, in a child process."""
    argv, head = [sys.executable, "-I", str(post.__file__)], json.dumps({"url": url}).encode() + b"\n"
    path = urlsplit(url).path  # answers may repeat it
    secrets = [url, *([path] if len(path) >= _SHORTEST_SECRET else [])]
    return run_program(argv, {}, head + body, timeout_s=timeout_s, folder=folder, secrets=secrets)

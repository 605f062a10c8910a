"""Tee: a process between a rank and its standard error. It is run as a file, and imports only the standard library.

    descriptor 0: a pipe, the rank's descriptor 2  ──▶ descriptor 1: the original output, bytes unchanged, in order
                                                 └───▶ the pipe `back`: the same bytes, from which the rank makes rows
                     after "Fatal Python error"  └───▶ the file `faults`: the rank reads no more

The process outlives the rank, because the last lines matter most, and ends when the pipe is closed everywhere. Bytes
are forwarded first, so an error affects only the rows.

    tee.py BACK_DESCRIPTOR FAULTS_PATH NONCE
"""

import os
import signal
import sys

FATAL = b"Fatal Python error"
MOST_BYTES = 1 << 20


def pass_on(raw: bytes) -> None:
    """Write to the rank's original standard error; ignore a closed reader."""
    try:
        while raw:
            raw = raw[os.write(1, raw) :]
    except OSError:
        pass


def main(back: int, faults: str, nonce: bytes) -> None:
    """Forward bytes until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(back, False)
    tail, held, written, file = b"", b"", 0, -1
    while raw := os.read(0, 65536):
        raw, held = held + raw, b""
        begun = next((n for n in range(min(len(nonce) - 1, len(raw)), 0, -1) if raw.endswith(nonce[:n])), 0)
        if begun:  # possibly the nonce, with which the rank ends its output, and which must not be forwarded
            raw, held = raw[:-begun], raw[-begun:]
        pass_on(raw.replace(nonce, b""))
        seen = tail + raw
        begin = seen.find(FATAL) if file < 0 else -1
        if begin >= 0:
            try:
                file = os.open(faults, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError:
                file = -1
            raw = seen[begin:]
        tail = raw[-len(FATAL) :]
        try:
            if file < 0:
                os.write(back, raw)  # if a stuck rank does not read the pipe, lines are forwarded and not recorded
            elif written < MOST_BYTES:
                written += os.write(file, raw[: MOST_BYTES - written])
        except OSError:
            pass
    pass_on(held)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], b"\0" + sys.argv[3].encode() + b"\0\n")

"""Tee: a process between a rank and its standard error. Run as a file, with nothing but Python's own library.

    descriptor 0, a pipe that is the rank's descriptor 2 ──▶ descriptor 1, what that was before: unchanged, in order
                                                     └────▶ the pipe `back`: the same bytes, for the rank to make rows
                                                     of
                     from "Fatal Python error" on    └────▶ the file `faults`: the rank will read no more

It outlives the rank, for the last lines are those that matter, and ends when nobody has the pipe open any more. What
fails here fails for the rows alone: bytes are passed on first.

    tee.py BACK_DESCRIPTOR FAULTS_PATH NONCE
"""

import os
import signal
import sys

FATAL = b"Fatal Python error"
MOST_BYTES = 1 << 20


def pass_on(raw: bytes) -> None:
    """Write to the rank's original standard error; stop once its reader has gone."""
    try:
        while raw:
            raw = raw[os.write(1, raw) :]
    except OSError:
        pass


def main(back: int, faults: str, nonce: bytes) -> None:
    """Pass on until the end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(back, False)
    tail, held, written, file = b"", b"", 0, -1
    while raw := os.read(0, 65536):
        raw, held = held + raw, b""
        begun = next((n for n in range(min(len(nonce) - 1, len(raw)), 0, -1) if raw.endswith(nonce[:n])), 0)
        if begun:  # perhaps the rank's last word, which is for itself alone
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
                os.write(
                    back, raw
                )  # where a rank that is stuck does not read, its lines are passed on and not recorded
            elif written < MOST_BYTES:
                written += os.write(file, raw[: MOST_BYTES - written])
        except OSError:
            pass
    pass_on(held)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], b"\0" + sys.argv[3].encode() + b"\0\n")

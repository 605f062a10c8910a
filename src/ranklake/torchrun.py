"""Starts ranks of ranklake's own programs with torchrun, for the demo and for calibration."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ranklake.errors import RanklakeError


class TrainingFailedError(RanklakeError):
    """The ranks ended with an error."""

    exit_code = 1


def torchrun(module: str, words: Sequence[str], ranks: int, log: Path, *, may_fail: bool = False) -> None:
    """Run a module on some ranks until all end, with their output in a log. Ctrl-C ends them, too.

    Raises `TrainingFailedError` if they fail, unless `may_fail`; the log is kept.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--module", module, *words], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            exit_code = process.wait()
        except BaseException:
            process.terminate()  # torchrun forwards the signal to the ranks
            process.wait()
            raise
    if exit_code != 0 and not may_fail:
        error = re.search(r"\w+(?:Error|Exception): .*", log.read_text(errors="replace"))
        message = f"the ranks failed: {error[0].strip()}" if error else "the ranks failed"
        raise TrainingFailedError(message, where=str(log), hint="read the log")

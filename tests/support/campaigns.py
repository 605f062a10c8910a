"""Starting a campaign, a script of its own in a folder of tests, and holding it to its word."""

import os
import subprocess
import sys
from pathlib import Path


def held(script, option, variable, default, capsys):
    """Run a campaign of as many cases as a variable says, assert that it found nothing, and show its words.

    Parameters
    ----------
    script
        Its path; it finds the modules of this folder.
    option, variable, default
        How many cases: the script's option, the variable that may say, and the number without it.
    """
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(script), option, os.environ.get(variable, str(default))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print(f"\n{done.stdout.strip()}")

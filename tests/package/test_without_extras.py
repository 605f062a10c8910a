"""What is an extra is not needed: flows and the demo import without it."""

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["openlineage"] = None
import ranklake.commands.demo, ranklake.flows.embedded, ranklake.flows.stage_flows
"""


def test_flows_import_without_the_client_of_openlineage():
    """``make demo`` installs the extras pipeline, report and torch alone."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

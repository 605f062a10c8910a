"""The fuzz campaign in short; `make fuzz` runs it in full, and `campaign.py` says what it holds."""

from pathlib import Path

import pytest
from campaigns import held


@pytest.mark.fuzz
def test_nothing_hostile_stops_the_lake_or_gets_out_of_it(capsys):
    """Mutated objects, plans and log entries leave no traceback, no hang, no way out, and cost no sound row."""
    held(Path(__file__).with_name("campaign.py"), "--cases", "RANKLAKE_FUZZ_CASES", 600, capsys)

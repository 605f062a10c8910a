"""Rows of any values that contracts allow, of one seed; `make fuzz` takes many."""

import pytest
from any_values import findings
from reading import READING

from ranklake.views.html import site


@pytest.mark.slow
@pytest.mark.leaky("engines and clients of every command keep files open")
def test_no_value_that_a_contract_allows_leaves_a_traceback(tmp_path, monkeypatch):
    """Every stage and every command that reads goes on."""
    monkeypatch.setattr(site, "library", lambda: b"")
    assert findings(tmp_path, 5, count=4, reading=[line for line in READING if "--json" not in line]) == []

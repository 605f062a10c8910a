"""What the lake asks of governance is there, and takes what the lake gives."""

import inspect
from pkgutil import resolve_name

import pytest

from ranklake.lake.store import governance


@pytest.mark.parametrize("name", governance.PLACES)
def test_every_name_resolves_to_a_function_with_these_parameters(name):
    """An implementation takes the parameters of the lake's function; any more have defaults."""
    asked = inspect.signature(getattr(governance, name)).parameters
    there = inspect.signature(resolve_name(governance.PLACES[name])).parameters
    assert list(there)[: len(asked)] == list(asked)
    assert all(more.default is not more.empty for more in list(there.values())[len(asked) :])

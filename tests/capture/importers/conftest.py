"""A lake and a spool beside it; files of other tools found in public."""

import pytest
from lake_fixtures import lake, spool
from published_data import DATA

__all__ = ["lake", "spool"]


@pytest.fixture
def wild():
    """Return a function that gives a file's path, if the wild data is there."""

    def path(name, kind="wild"):
        file = DATA / kind / name
        if not file.exists():
            pytest.skip(f"the wild data is not there: {file}; set RANKLAKE_PUBLISHED_DATA")
        return file

    return path

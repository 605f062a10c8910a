"""The published data: `RANKLAKE_PUBLISHED_DATA`, or the folder shared/data beside the repository."""

import pytest
from lake_fixtures import lake, spool
from published_data import DATA

__all__ = ["lake", "published", "spool"]


@pytest.fixture
def published():
    """Return a function that gives the data's folder if it holds a folder of that name."""

    def data(name):
        if not (DATA / name).is_dir():
            pytest.skip(f"the published data is not there: {DATA / name}; set RANKLAKE_PUBLISHED_DATA")
        return DATA

    return data

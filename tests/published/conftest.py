"""The published data: `RANKLAKE_PUBLISHED_DATA`, or the folder shared/data beside the repository."""

import pytest
from published_data import DATA

from ranklake.lake.store import Lake


@pytest.fixture
def published():
    """Return a function that gives the data's folder if it holds a folder of that name."""

    def data(name):
        if not (DATA / name).is_dir():
            pytest.skip(f"the published data is not there: {DATA / name}; set RANKLAKE_PUBLISHED_DATA")
        return DATA

    return data


@pytest.fixture
def lake(tmp_path):
    return Lake.create(str(tmp_path / "lake"))


@pytest.fixture
def spool(tmp_path):
    return tmp_path / "spool"

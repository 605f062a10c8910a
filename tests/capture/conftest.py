"""A run that records into a folder of its own."""

import logging

import pytest

from ranklake import capture


class Place:
    """A local spool and a spool, and runs between them."""

    def __init__(self, folder):
        self.local, self.spool = folder / "local", folder / "spool"
        self.runs = []

    def start(self, **settings):
        """Start a run here; it is closed when the test ends."""
        settings = {"job": "job", "run": "run", "spool": self.spool, "local_dir": self.local} | settings
        self.runs.append(capture.start(**settings))
        return self.runs[-1]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Give a `Place` in an environment that names no run, rank or spool."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "RANKLAKE_RUN", "RANKLAKE_SPOOL", "RANKLAKE_LOCAL_SPOOL"):
        monkeypatch.delenv(name, raising=False)
    made = Place(tmp_path)
    yield made
    for run in made.runs:
        run.close()


@pytest.fixture(autouse=True)
def warnings_told(caplog):
    """Give the warnings that ranklake logged in the test."""
    caplog.set_level(logging.WARNING, "ranklake")
    return caplog
